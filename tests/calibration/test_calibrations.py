"""Calibrations: what a file survives and what is refused with its field; equations (3) and (4) against numpy."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.calibrations import BASE, GUIDE, METHOD, SCORES, TARGET, calibrate_values, small_calibration
from helpers.one_line import one_line

from lm_eval_takeover.calibration.files import (
    ModelId,
    compute_checksum,
    find_calibration,
    find_target,
    is_for_pair,
    name_method,
    packaged_calibrations,
    read_calibration,
    write_calibration,
)
from lm_eval_takeover.commands.calibrate.measurement import list_limits, peak_share, render_page
from lm_eval_takeover.errors import CalibrationError
from lm_eval_takeover.method.gate import Gate, fires_along


def test_a_written_file_reads_back(made, tmp_path):
    path = tmp_path / "deep" / "made.json"
    write_calibration(made, path)
    assert read_calibration(path) == made
    assert json.loads(path.read_text())["schema"] == 4
    assert len(path.read_text().splitlines()) < 150  # long lists stand on one line each
    assert [p.name for p in path.parent.iterdir()] == ["made.json"]
    path.write_text(path.read_text().replace('"notes": ""', '"notes": "measured on a Sunday [ 1 2 ]"'))  # which may be edited
    assert read_calibration(path).notes == "measured on a Sunday [ 1 2 ]"


EDITED = "field 'checksum' does not fit: the file was edited"


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda c: c.pop("schema"), "has no field 'schema'"),
        (lambda c: c.update(schema=99), "field 'schema' is 99, and this version reads 4; make a new one"),
        (lambda c: c.pop("base"), "field 'base' is missing"),
        (lambda c: c.update(scores={}), "field 'scores' is empty"),
        (lambda c: c["prompts"].pop("chat_template"), "field 'prompts.chat_template' is missing"),
        (lambda c: c.update(source="published", columns={"ce": {}}), "has no row"),
        (lambda c: c.update(source="published", columns={"ce": {"A": [{"tau": 1}]}}), "'columns.ce.A[0].kappa' is missing"),
        (lambda c: c.pop("checksum"), EDITED),
        (lambda c: c["scores"]["ce"]["sketch"]["tail_mean"].reverse(), EDITED),
    ],
)
def test_a_damaged_or_edited_file_is_named_with_its_field(made, tmp_path, edit, text):
    """Damaged ones also where a stranger made the checksum fit again."""
    path = tmp_path / "made.json"
    write_calibration(made, path)
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content if text == EDITED else content | {"checksum": compute_checksum(content)}))
    with one_line(CalibrationError, text, str(path)):
        read_calibration(path)


@pytest.mark.parametrize("content", ["", "[1, 2]", '{"a": 1}', "\x00\x01", "[" * 100_000])
def test_what_is_no_calibration_file_is_refused(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(CalibrationError, match=r"x\.json"):
        read_calibration(path)


def test_pairs_match_by_files_or_by_hub_id(made):
    assert is_for_pair(made, BASE, GUIDE)
    assert is_for_pair(made, ModelId("some/base", "another commit"), GUIDE)
    assert not is_for_pair(made, GUIDE, BASE)
    assert not ModelId("a/x", "main").same_model(ModelId("b/y", "main"))
    local = ModelId("base", "sha256:11")
    assert is_for_pair(replace(made, base=local), ModelId("renamed", "sha256:11"), GUIDE)
    assert not is_for_pair(replace(made, base=local), ModelId("base", "sha256:22"), GUIDE)


@pytest.fixture
def made():
    return small_calibration()


@pytest.mark.parametrize("rho", [0.005, 0.01, 0.03, 0.05, 0.1, 0.5])
def test_tau_and_kappa_equal_their_definitions(rho):
    threshold = calibrate_values(SCORES).threshold(rho)
    tau = np.quantile(SCORES, 1 - rho)
    assert threshold["tau"] == pytest.approx(tau, rel=1e-12)
    assert threshold["kappa_threshold_to_mean"] == pytest.approx(tau / SCORES.mean(), rel=1e-12)
    assert threshold["kappa_tail_to_mean"] == pytest.approx(SCORES[tau < SCORES].mean() / SCORES.mean(), rel=1e-9)


def test_zero_scores_give_a_gate_that_fires_on_whatever_is_not_zero():
    threshold = calibrate_values(np.zeros(100)).threshold(0.03)
    gate = Gate(threshold["tau"], threshold["kappa_threshold_to_mean"])
    assert fires_along(gate, torch.tensor([0.0, 0.1, 0.0])).tolist() == [False, True, False]


@pytest.mark.parametrize("rho", [0.0005, 0.6, float("nan")])
def test_rho_outside_the_file_is_refused(rho):
    with pytest.raises(CalibrationError, match=r"spike_ratio=.* is outside 0\.001\.\.0\.5"):
        calibrate_values(SCORES).threshold(rho)


def test_a_target_is_found_by_its_whole_gate(made):
    def command(options, known, extends):
        assert known.prompts["chat_template"] is options["apply_chat_template"] and extends
        return f"calibrate chat {options['apply_chat_template']}"

    assert find_target(made, 0.08, METHOD, "spike_ratio", command) == TARGET
    for rate, method, word in (
        (0.05, METHOD, "ce"),
        (0.08, METHOD | {"kappa_rule": "tail_to_mean", "window": 5}, "ce:kappa_rule=tail_to_mean:window=5"),
        (0.08, METHOD | {"score": "js"}, "js"),
        (0.08, {"policy": "random"}, "random"),
        (0.08, METHOD | {"policy": "segment", "score": "js", "length": 8}, "segment:score=js:length=8"),
    ):
        assert name_method(method) == word
        for chat in (False, True):
            told = rf"was not solved for target_rate=.* `calibrate chat {chat}` and give that file .* or give spike_ratio=…"
            of_chat = replace(made, prompts=made.prompts | {"chat_template": chat})
            with pytest.raises(CalibrationError, match=told):
                find_target(of_chat, rate, method, "spike_ratio", command)


def test_a_published_table_is_read_by_columns():
    published, column = find_calibration("qwen3-0.6b-base+qwen3-8b:2")
    assert (column, published.source, published.default_row) == (2, "published", "GSM8K")
    assert published.published("ce", 2)["tau"] == 0.467
    for column in (0, 4):
        with pytest.raises(CalibrationError, match=r"has columns .*, strictest first"):
            published.published("ce", column)
    with pytest.raises(CalibrationError, match="does not hold score=rkl"):
        published.published("rkl", 1)
    with pytest.raises(CalibrationError, match=r"neither a file nor a packaged one; did you mean 'demo'"):
        find_calibration("demmo")


def test_every_packaged_file_is_sound_and_has_its_page():
    packaged = {name: read_calibration(path) for name, path in packaged_calibrations().items()}
    assert {name for name, held in packaged.items() if held.source == "published"} == {"qwen3-0.6b-base+qwen3-8b"}
    for name, path in packaged_calibrations().items():
        page = path.with_suffix(".md").read_text()
        if packaged[name].source == "measured":
            assert page == render_page(packaged[name], name)
        for cell in (cell for rows in packaged[name].columns.values() for row in rows.values() for cell in row):
            assert f"{cell['tau']:.3f} / {cell['kappa']:.3f}" in page


def test_a_pair_whose_disagreement_is_everywhere_is_warned_about():
    """A tenth of exponential scores holds 33 % of their sum; of the demo pair's ce it holds all."""
    demo = find_calibration("demo")[0]
    assert peak_share(demo) == pytest.approx(1, abs=0.001) and not any("spread" in line for line in list_limits(demo))
    spread = calibrate_values(np.random.default_rng(0).exponential(size=100_000))
    everywhere = replace(demo, scores={"ce": spread, "top1": spread})
    assert peak_share(everywhere) == pytest.approx(0.1 * (1 + np.log(10)), abs=0.01)
    missed = replace(demo, targets=(replace(TARGET, low=0.05, high=0.07),))
    assert "ce: 8.0% was asked for, other prompts realize 5.00% to 7.00%" in list_limits(missed)[-1]
    assert any("the tenth of the tokens with the highest ce holds 33% of it" in line for line in list_limits(everywhere))
