"""Calibration files: equations (3) and (4) against numpy, what is refused, and what a file survives."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.calibration.comparison import Row, compare, plot
from lm_eval_takeover.calibration.files import find, made_for, packaged, read, write
from lm_eval_takeover.calibration.page import card
from lm_eval_takeover.calibration.thresholds import Calibration, ScoreCalibration, Target
from lm_eval_takeover.errors import ArgumentError, CalibrationError
from lm_eval_takeover.method.gate import Gate, fires_along
from lm_eval_takeover.method.model_id import ModelId

BASE, GUIDE = ModelId("some/base", "abc"), ModelId("some/guide", "def")
SCORES = np.random.default_rng(0).gamma(0.2, 1.0, 20_000).astype(np.float32).astype(np.float64)

TARGET = Target(0.08, "ce", "threshold_to_mean", 10, 0.12, 0.0805, 100, 9000)


@pytest.fixture
def made():
    return Calibration(
        BASE, GUIDE, {"size": 10, "digest": "sha256:00"}, rollouts=3, tokens=len(SCORES),
        scores={"ce": ScoreCalibration.of_values(SCORES)}, name="made", targets=(TARGET,),
        prompts={"dataset": "x", "seed": 0, "indices": [1]},
        decoding={"temperature": 0.6, "top_p": 0.95, "max_gen_toks": 9, "seed": 0},
    )  # fmt: skip


@pytest.mark.parametrize("rho", [0.005, 0.01, 0.03, 0.05, 0.1, 0.5])
def test_tau_and_kappa_equal_their_definitions(rho):
    threshold = ScoreCalibration.of_values(SCORES).threshold(rho)
    tau = np.quantile(SCORES, 1 - rho)
    assert threshold.tau == pytest.approx(tau, rel=1e-12)
    assert threshold.kappa_threshold_to_mean == pytest.approx(tau / SCORES.mean(), rel=1e-12)
    assert threshold.kappa_tail_to_mean == pytest.approx(SCORES[tau < SCORES].mean() / SCORES.mean(), rel=1e-9)


@given(st.floats(0.001, 0.5))
def test_any_rho_is_read_within_a_tenth_of_a_percent_of_rank(rho):
    tau = CALIBRATED.threshold(rho).tau
    share = (tau < SCORES).mean()
    assert abs(share - rho) <= 0.001


CALIBRATED = ScoreCalibration.of_values(SCORES)


def test_zero_scores_give_a_gate_that_fires_on_whatever_is_not_zero():
    threshold = ScoreCalibration.of_values(np.zeros(100)).threshold(0.03)
    gate = Gate(threshold.tau, threshold.kappa_threshold_to_mean)
    assert fires_along(gate, torch.tensor([0.0, 0.1, 0.0])).tolist() == [False, True, False]


@pytest.mark.parametrize("rho", [0.0005, 0.6, 0.0, -1.0, float("nan")])
def test_rho_outside_the_file_is_refused(rho):
    with pytest.raises(CalibrationError, match=r"spike_ratio=.* is outside 0\.001\.\.0\.5"):
        CALIBRATED.threshold(rho)


@pytest.mark.parametrize("values", [[], [1.0, np.nan], [np.inf]])
def test_scores_that_cannot_be_calibrated_are_refused(values):
    with pytest.raises(CalibrationError):
        ScoreCalibration.of_values(values)


def test_a_written_file_reads_back(made, tmp_path):
    path = tmp_path / "deep" / "made.json"
    write(made, path)
    assert read(path) == made
    assert json.loads(path.read_text())["schema"] == 2
    assert len(path.read_text().splitlines()) < 150  # long lists stand on one line each
    assert [p.name for p in path.parent.iterdir()] == ["made.json"]


def test_a_failed_write_keeps_the_old_file(made, tmp_path):
    path = tmp_path / "made.json"
    write(made, path)
    before = path.read_text()
    with pytest.raises(TypeError):
        write(replace(made, notes=object()), path)
    assert path.read_text() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda c: c.pop("schema"), "has no field 'schema'"),
        (lambda c: c.update(schema=99), "schema=99 is newer than 2, which this version reads; upgrade"),
        (lambda c: c.update(schema=True), "field 'schema' is 'True'"),
        (lambda c: c.update(schema=-3), "field 'schema' is '-3'"),
        (lambda c: c.pop("base"), "field 'base' is missing"),
        (lambda c: c.pop("direction"), "field 'direction' is missing"),
        (lambda c: c.pop("source"), "field 'source' is missing"),
        (lambda c: c.pop("checksum"), "field 'checksum' is missing"),
        (lambda c: c["guide"].pop("revision"), "field 'guide.revision' is missing"),
        (lambda c: c.update(extra=1), "field 'extra' is not known"),
        (lambda c: c.update(score={}), "field 'score' is not known; did you mean 'scores'?"),
        (lambda c: c.update(scores={}), "field 'scores' is empty"),
        (lambda c: c.update(scores=None), "field 'scores' is NoneType, not an object"),
        (lambda c: c["scores"].update(kl=c["scores"]["ce"]), "field 'scores.kl' is no score"),
        (lambda c: c["scores"]["ce"].pop("sketch"), "field 'scores.ce.sketch' is missing"),
        (lambda c: c["scores"]["ce"]["table"][2].update(tau=1.0), "'scores.ce.table' has another tau at rho=0.02"),
        (lambda c: c["scores"]["ce"]["table"][2].update(tau=None), "field 'scores.ce.table[rho=0.02].tau' is 'None'"),
        (lambda c: c["scores"]["ce"].update(table=3), "field 'scores.ce.table' is int, not a list"),
        (lambda c: c["scores"]["ce"].update(table=[]), "field 'scores.ce.table' has other spike ratios"),
        (lambda c: c["scores"].update(ce=[]), "field 'scores.ce' is list, not an object"),
        (lambda c: c["targets"][0].update(spike_ratio=7), "field 'targets[0].spike_ratio' is '7'"),
        (lambda c: c["targets"][0].update(realized_rate=0.2), "field 'targets[0].realized_rate' is not within 0.005"),
        (lambda c: c["targets"][0].update(score="kl"), "field 'targets[0].score' is not known: kl"),
        (lambda c: c["targets"][0].pop("window"), "field 'targets[0].window' is missing"),
        (lambda c: c.update(targets={}), "field 'targets' is dict, not a list"),
        (lambda c: c["scores"]["ce"]["sketch"]["tau"].pop(), "field 'scores.ce.sketch' is damaged"),
        (lambda c: c["scores"]["ce"].update(mean=float("nan")), "field 'scores.ce.mean' is 'nan'"),
        (lambda c: c["scores"]["ce"].update(mean=10**400), "field 'scores.ce.mean' is '1000"),
        (lambda c: c["scores"]["ce"].update(mean=0), "field 'scores.ce.mean' is 0"),
        (lambda c: c["scores"]["ce"]["sketch"]["rho"].reverse(), "field 'scores.ce.sketch' is damaged"),
        (lambda c: [one.clear() for one in c["scores"]["ce"]["sketch"].values()], "'scores.ce.sketch' is damaged"),
        (lambda c: c["scores"]["ce"]["sketch"].update(tau="high"), "field 'scores.ce.sketch.tau' is str, not a list"),
        (lambda c: c["scores"]["ce"]["sketch"]["tau"].__setitem__(3, "1.0"), "'scores.ce.sketch.tau' is '1.0'"),
        (lambda c: c["scores"]["ce"]["sketch"]["tail_mean"].__setitem__(100, 9.0), "field 'checksum' does not fit"),
        (lambda c: c.update(vocabulary="x"), "field 'vocabulary' is str, not an object"),
        (lambda c: c.update(vocabulary=None), "field 'vocabulary' is NoneType, not an object"),
        (lambda c: c.update(tokens="83827"), "field 'tokens' is '83827', not a whole number"),
        (lambda c: c["base"].update(id=None), "field 'base' is damaged"),
        (lambda c: c["base"].update(id="other/base"), "field 'checksum' does not fit: the file was edited"),
        (lambda c: c.update(direction="up"), "field 'direction' is not known: up"),
        (lambda c: c.update(source="published"), "field 'columns' is empty"),
        (lambda c: c.update(columns={"ce": {}}), "has no row"),
        (lambda c: c.update(columns={"ce": {"A": [{"tau": 1}]}}), "field 'columns.ce.A[0].kappa' is 'None'"),
        (lambda c: c.update(columns={"ce": {"A": [{"tau": "1", "kappa": 1}]}}), "field 'columns.ce.A[0].tau' is '1'"),
        (lambda c: c.update(columns={"ce": {"A": [{"tau": 1, "kappa": 1}]}}, default_row="B"), "has no row 'B'"),
        (
            lambda c: c.update(columns={"ce": {"A": [{"tau": 1, "kappa": 1}], "B": [{"tau": 1, "kappa": 1}] * 2}}),
            "field 'columns.ce' has rows of other lengths",
        ),
    ],
)
def test_a_damaged_file_is_named_with_its_field(made, tmp_path, edit, text):
    path = tmp_path / "made.json"
    write(made, path)
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    with pytest.raises(CalibrationError) as caught:
        read(path)
    assert text in str(caught.value)
    assert str(path) in str(caught.value)


def test_notes_may_be_edited(made, tmp_path):
    path = tmp_path / "made.json"
    write(made, path)
    path.write_text(path.read_text().replace('"notes": ""', '"notes": "measured on a Sunday [ 1 2 ]"'))
    assert read(path).notes == "measured on a Sunday [ 1 2 ]"
    template = "- [ ] {{q}} [1,   2]"
    write(replace(made, prompts=made.prompts | {"template": template}), path)
    assert read(path).prompts["template"] == template


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"a": 1}', "\x00\x01", "[" * 100_000, "9" * 5000])
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


def test_every_packaged_file_is_sound_and_has_its_page():
    assert set(packaged()) >= {"demo", "qwen3-0.6b-base+qwen3-8b"}
    for path in packaged().values():
        assert path.with_suffix(".md").read_text() == card(read(path))


def test_the_packaged_demo_calibration_is_complete():
    demo = find("demo")[0]
    assert demo.schema == 2
    assert demo.rollouts == 500
    assert demo.scores.keys() == {"ce", "rkl", "entropy", "js"}
    for held in demo.scores.values():
        for row in held.table:
            # the window test only holds takeovers back
            assert 0 <= row["share_tail_to_mean"] <= row["share_threshold_to_mean"] <= row["rho"] + 0.0005
    assert [target.target_rate for target in demo.targets] == [0.02, 0.05, 0.08, 0.1]
    assert all(abs(target.realized_rate - target.target_rate) <= 0.005 for target in demo.targets)


def test_a_file_of_the_first_schema_is_still_read(made, tmp_path):
    path = tmp_path / "old.json"
    write(made, path)
    content = json.loads(path.read_text())
    content.pop("targets"), content.pop("window"), content["scores"]["ce"].pop("rank_error"), content.pop("checksum")
    path.write_text(json.dumps(content | {"schema": 1}))
    assert read(path).score("ce").threshold(0.03) == made.score("ce").threshold(0.03)


def test_a_target_is_found_by_its_whole_gate(made):
    assert made.target(0.08, "ce", "threshold_to_mean", 10) == TARGET
    for asked in (
        (0.05, "ce", "threshold_to_mean", 10),
        (0.08, "ce", "tail_to_mean", 10),
        (0.08, "ce", "threshold_to_mean", 5),
    ):
        with pytest.raises(CalibrationError, match=r"was not solved for target_rate=.* --target_rate 0\.0"):
            made.target(*asked)


def test_quantiles_lie_on_the_scores_of_a_mass_of_nearly_equal_ones():
    """A choice among six synonyms: a tenth of all scores within 1e-5 nats of ln 6 still splits at the rank asked for."""
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.uniform(0, 0.1, 45_000), np.log(6) + rng.uniform(-1e-5, 1e-5, 5_000)])
    values = values.astype(np.float32)
    calibrated = ScoreCalibration.of_values(values)
    for rho in (0.02, 0.05, 0.08):
        tau = calibrated.threshold(rho).tau
        assert (values > tau).mean() <= rho + 0.001
        assert (values >= np.float32(tau)).mean() >= rho - 0.001


def test_compare_prints_table_13_of_the_published_file():
    published = find("qwen3-0.6b-base+qwen3-8b")[0]
    table = compare([published])
    assert "|GSM8K|3.667 / 24.443|0.467 / 3.114|0.239 / 1.591|6.657 to 6.668|yes|" in table
    assert "|largest over smallest|1.296 / 1.414|2.797 / 2.378|2.882 / 1.835| | |" in table
    assert table.count("|yes|") == 6


def test_compare_tells_whether_kappa_over_tau_is_constant(made):
    assert "|made|" in compare([made])
    assert "|yes|" in compare([made])
    assert "|no|" in compare([made], kappa_rule="tail_to_mean")
    assert "|no|" in compare([find("demo")[0]], score="rkl", kappa_rule="tail_to_mean")
    assert not Row("x", ((3.0, 20.0), (1.0, 6.5))).is_constant
    both = compare([made, replace(made, scores={"ce": ScoreCalibration.of_values(SCORES * 2)})])
    assert "|made (1)|" in both
    assert "|largest over smallest|2.000 / 1.000|" in both
    with pytest.raises(CalibrationError, match="does not hold score=js"):
        compare([made], score="js")


@pytest.mark.parametrize("suffix", ["svg", "PNG", "pdf"])
def test_the_plot_is_the_same_file_each_time(made, tmp_path, suffix):
    first, again = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    plot([made], first)
    plot([made], again)
    assert first.stat().st_size > 5_000
    assert first.read_bytes() == again.read_bytes()


def test_a_plot_needs_a_distribution_and_a_known_suffix(made, tmp_path):
    with pytest.raises(CalibrationError, match="published tables hold no distribution"):
        plot([find("qwen3-0.6b-base+qwen3-8b")[0]], tmp_path / "a.svg")
    zero = replace(made, scores={"ce": ScoreCalibration.of_values(np.zeros(100))})
    with pytest.raises(CalibrationError, match=r"all ce scores are 0, which a logarithmic axis cannot show"):
        plot([zero], tmp_path / "a.svg")
    plot([made, zero], tmp_path / "a.svg")
    with pytest.raises(ArgumentError, match=r"suffix '\.gif'; expected \.svg, \.png or \.pdf"):
        plot([made], tmp_path / "a.gif")


def test_the_card_of_a_published_table_invents_no_spike_ratio():
    page = packaged()["qwen3-0.6b-base+qwen3-8b"].with_suffix(".md").read_text()
    assert "column 1" in page
    assert "%" not in page


def test_the_command_of_the_page_is_one_that_loads(tmp_path, monkeypatch):
    """Whatever was solved, the model arguments on the page name the whole gate."""
    from lm_eval.utils import simple_parse_args_string

    from lm_eval_takeover.arguments import ModelArguments
    from lm_eval_takeover.pair.loading import load_pair, load_policy

    monkeypatch.chdir(tmp_path)
    demo = find("demo")[0]
    target = demo.targets[0]
    for made in (
        demo,
        replace(demo, name="mine", targets=()),
        replace(demo, name="mine"),
        replace(demo, name="mine", direction="reverse"),
        replace(demo, name="mine", targets=(replace(target, score="js", kappa_rule="tail_to_mean", window=5),)),
        replace(demo, name="mine", targets=(replace(target, score="entropy"),)),
    ):
        if made.name == "mine":
            write(made, tmp_path / "mine.json")
        command = next(line for line in card(made).splitlines() if "--model_args" in line).split()
        assert command[-2:] == ["--tasks", "takeover_demo"]
        arguments = ModelArguments.parse(simple_parse_args_string(command[command.index("--model_args") + 1]))
        policy, origin = load_policy(arguments, load_pair(arguments))
        assert origin.calibration == made.name
        if made.targets:
            assert (policy.score, policy.gate.window) == (made.targets[0].score, made.targets[0].window)


@pytest.mark.slow
def test_calibrations_on_disjoint_prompts_agree_within_a_tenth(tmp_path):
    """Three sets of 60 puzzles; `benchmarks/calibration.py --only sets` prints the same for 500."""
    import random

    from lm_eval_takeover.arguments import ModelArguments
    from lm_eval_takeover.commands.calibrate.prompts import read_prompts
    from lm_eval_takeover.commands.calibrate.rollouts import calibrate
    from lm_eval_takeover.demo import PROMPT
    from lm_eval_takeover.demo.puzzle import make_puzzle
    from lm_eval_takeover.method.request import Sampling
    from lm_eval_takeover.pair.loading import load_pair

    pair, rng, found = load_pair(ModelArguments()), random.Random(5), []
    for number in range(3):
        path = tmp_path / f"{number}.jsonl"
        texts = [PROMPT.format(problem=make_puzzle(rng).text) for _ in range(60)]
        path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        found.append(calibrate(pair, read_prompts(str(path)), sampling=Sampling(0.6, 0.95), progress=False))
    for rho in (0.005, 0.01, 0.02, 0.03):
        tau = [made.score("ce").threshold(rho).tau for made in found]
        assert max(tau) / min(tau) <= 1.1
