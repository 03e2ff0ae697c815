"""Calibration files: equations (3) and (4) against numpy, what is refused, and what a file survives."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.calibration import Calibration, ScoreCalibration, find, made_for, packaged, read
from lm_eval_takeover.errors import CalibrationError
from lm_eval_takeover.gate import Gate, fires_along
from lm_eval_takeover.model_id import ModelId

BASE, GUIDE = ModelId("some/base", "abc"), ModelId("some/guide", "def")
SCORES = np.random.default_rng(0).gamma(0.2, 1.0, 20_000)


@pytest.fixture
def made():
    return Calibration(
        BASE, GUIDE, {"size": 10, "digest": "sha256:00"}, rollouts=3, tokens=len(SCORES),
        scores={"ce": ScoreCalibration.of(SCORES)}, name="made",
    )  # fmt: skip


@pytest.mark.parametrize("rho", [0.005, 0.01, 0.03, 0.05, 0.1, 0.5])
def test_tau_and_kappa_equal_their_definitions(rho):
    threshold = ScoreCalibration.of(SCORES).threshold(rho)
    tau = np.quantile(SCORES, 1 - rho)
    assert threshold.tau == pytest.approx(tau, rel=1e-12)
    assert threshold.kappa_threshold_to_mean == pytest.approx(tau / SCORES.mean(), rel=1e-12)
    assert threshold.kappa_tail_to_mean == pytest.approx(SCORES[tau < SCORES].mean() / SCORES.mean(), rel=1e-9)


@given(st.floats(0.001, 0.5))
def test_any_rho_is_read_within_a_tenth_of_a_percent_of_rank(rho):
    tau = CALIBRATED.threshold(rho).tau
    share = (tau < SCORES).mean()
    assert abs(share - rho) <= 0.001


CALIBRATED = ScoreCalibration.of(SCORES)


def test_zero_scores_give_a_gate_that_fires_on_whatever_is_not_zero():
    threshold = ScoreCalibration.of(np.zeros(100)).threshold(0.03)
    gate = Gate(threshold.tau, threshold.kappa_threshold_to_mean)
    assert fires_along(gate, torch.tensor([0.0, 0.1, 0.0])).tolist() == [False, True, False]


@pytest.mark.parametrize("rho", [0.0005, 0.6, 0.0, -1.0, float("nan")])
def test_rho_outside_the_file_is_refused(rho):
    with pytest.raises(CalibrationError, match=r"spike_ratio=.* is outside 0\.001\.\.0\.5"):
        CALIBRATED.threshold(rho)


@pytest.mark.parametrize("values", [[], [1.0, np.nan], [np.inf]])
def test_scores_that_cannot_be_calibrated_are_refused(values):
    with pytest.raises(CalibrationError):
        ScoreCalibration.of(values)


def test_a_written_file_reads_back(made, tmp_path):
    path = tmp_path / "deep" / "made.json"
    made.write(path)
    assert read(path) == made
    assert json.loads(path.read_text())["schema"] == 1
    assert len(path.read_text().splitlines()) < 150  # long lists stand on one line each
    assert [p.name for p in path.parent.iterdir()] == ["made.json"]


def test_a_failed_write_keeps_the_old_file(made, tmp_path):
    path = tmp_path / "made.json"
    made.write(path)
    before = path.read_text()
    with pytest.raises(TypeError):
        replace(made, notes=object()).write(path)
    assert path.read_text() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda c: c.pop("schema"), "has no field 'schema'"),
        (lambda c: c.update(schema=99), "schema=99 is newer than 1, which this version reads; upgrade"),
        (lambda c: c.pop("base"), "is damaged"),
        (lambda c: c.update(extra=1), "unexpected keyword argument 'extra'"),
        (lambda c: c["scores"]["ce"]["sketch"]["tau"].pop(), "field 'scores.ce.sketch' is damaged"),
        (lambda c: c["scores"]["ce"].update(mean=float("nan")), "field 'scores.ce.mean' is nan"),
        (lambda c: c["scores"]["ce"].update(mean=0), "field 'scores.ce.mean' is 0"),
        (lambda c: c["scores"]["ce"]["sketch"]["rho"].reverse(), "field 'scores.ce.sketch' is damaged"),
        (
            lambda c: [column.clear() for column in c["scores"]["ce"]["sketch"].values()],
            "'scores.ce.sketch' is damaged",
        ),
        (lambda c: c["scores"]["ce"]["sketch"].update(tau="high"), "is damaged"),
        (lambda c: c.update(vocabulary="x"), "is damaged"),
        (lambda c: c["base"].update(id=None), "field 'base' is damaged"),
        (lambda c: c.update(direction="up"), "is not known: up"),
        (lambda c: c.update(source="published"), "field 'columns' is empty"),
        (lambda c: c.update(columns={"ce": {}}), "has no row"),
        (lambda c: c.update(columns={"ce": {"A": [{"tau": 1}]}}), "is damaged"),
        (lambda c: c.update(columns={"ce": {"A": [{"tau": 1, "kappa": 1}]}}, default_row="B"), "has no row 'B'"),
    ],
)
def test_a_damaged_file_is_named_with_its_field(made, tmp_path, edit, text):
    path = tmp_path / "made.json"
    made.write(path)
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    with pytest.raises(CalibrationError) as caught:
        read(path)
    assert text in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"a": 1}', "\x00\x01"])
def test_what_is_no_calibration_file_is_refused(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(CalibrationError, match=r"x\.json"):
        read(path)


def test_an_unknown_name_suggests_a_packaged_one():
    with pytest.raises(CalibrationError, match=r"neither a file nor a packaged calibration .* did you mean 'demo'"):
        find("demmo")


def test_a_score_that_is_not_held_is_refused(made):
    with pytest.raises(CalibrationError, match=r"'made' does not hold score=js \(it holds ce\)"):
        made.score("js")


def test_pairs_match_by_files_or_by_hub_id(made):
    assert made_for(made, BASE, GUIDE)
    assert made_for(made, ModelId("some/base", "another commit"), GUIDE)
    assert not made_for(made, GUIDE, BASE)
    assert not ModelId("a/x", "main").same_model(ModelId("b/y", "main"))
    local = ModelId("base", "sha256:11")
    assert made_for(replace(made, base=local), ModelId("renamed", "sha256:11"), GUIDE)
    assert not made_for(replace(made, base=local), ModelId("base", "sha256:22"), GUIDE)


def test_published_table_keeps_its_arithmetic():
    """Table 13: kappa / tau is constant within every row to three digits, which is 1 / mean(S)."""
    published, column = find("qwen3-0.6b-base+qwen3-8b:2")
    assert column == 2
    assert published.source == "published"
    rows = published.columns["ce"]
    means = {"MATH500": 0.156, "GSM8K": 0.150, "OlympiadBench": 0.146, "AMC23": 0.184, "AIME24": 0.114, "AIME25": 0.176}
    assert rows.keys() == means.keys()
    for name, row in rows.items():
        assert len(row) == 3
        assert [c["tau"] for c in row] == sorted((c["tau"] for c in row), reverse=True)
        quotients = [c["kappa"] / c["tau"] for c in row]
        assert max(quotients) - min(quotients) < 0.012  # what rounding tau to three decimals leaves
        assert 1 / np.mean(quotients) == pytest.approx(means[name], abs=0.001)
    assert published.published("ce", 2).tau == 0.467
    assert published.default_row == "GSM8K"
    with pytest.raises(CalibrationError, match=r"has columns 1\.\.3, strictest first"):
        published.published("ce", 4)
    with pytest.raises(CalibrationError, match=r"has columns 1\.\.3, strictest first"):
        published.published("ce", 0)
    with pytest.raises(CalibrationError, match="does not hold score=rkl"):
        published.published("rkl", 1)


def test_every_packaged_file_is_sound():
    assert set(packaged()) >= {"demo", "qwen3-0.6b-base+qwen3-8b"}
    for path in packaged().values():
        read(path)
