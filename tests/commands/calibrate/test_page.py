"""The page beside a calibration file, whose command is one that runs; and calibrations side by side: Table 13 of the paper."""

from dataclasses import replace

import pytest
from helpers.calibrations import SCORES, calibrate_values, small_calibration
from lm_eval.utils import simple_parse_args_string

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.calibration.files import find_calibration, packaged_calibrations, read_calibration, write_calibration
from lm_eval_takeover.commands.calibrate.page import compare, render_page
from lm_eval_takeover.errors import CalibrationError
from lm_eval_takeover.pair.loading import load_pair, load_policy


def test_every_packaged_file_is_sound_and_has_its_page():
    assert set(packaged_calibrations()) >= {"demo", "qwen3-0.6b-base+qwen3-8b"}
    for path in packaged_calibrations().values():
        page = path.with_suffix(".md").read_text()
        assert page == render_page(read_calibration(path))
        assert ("column 1" in page) == ("%" not in page) == (path.stem == "qwen3-0.6b-base+qwen3-8b")  # it invents no ratio


def test_the_command_of_the_page_is_one_that_loads(tmp_path, monkeypatch):
    """Whatever was solved, the model arguments on the page name the whole gate."""
    monkeypatch.chdir(tmp_path)
    demo = find_calibration("demo")[0]
    target = demo.targets[0]
    other_gate = target.method | {"score": "js", "kappa_rule": "tail_to_mean", "window": 5}
    entropy = target.method | {"policy": "entropy", "score": "entropy"}
    for made in (
        demo,
        replace(demo, name="mine", targets=()),
        replace(demo, name="mine"),
        replace(demo, name="mine", direction="reverse"),
        replace(demo, name="mine", targets=(replace(target, method=other_gate),)),
        replace(demo, name="mine", targets=(replace(target, method=entropy),)),
    ):
        if made.name == "mine":
            write_calibration(made, tmp_path / "mine.json")
        command = next(line for line in render_page(made).splitlines() if "--model_args" in line).split()
        assert command[-2:] == ["--tasks", "takeover_demo"]
        arguments = ModelArguments.parse(simple_parse_args_string(command[command.index("--model_args") + 1]))
        policy, origin = load_policy(arguments, load_pair(arguments))
        assert origin.calibration == made.name
        if made.targets:
            method = made.targets[0].method
            assert (policy.score, policy.gate.window) == (method["score"], method["window"])


def lines(calibrations, score="ce", **options):
    """Of the one table: the cells of each row by its name."""
    (table,) = compare(calibrations, score, **options).values()
    return {name: cells for name, *cells in table.rows}


def test_compare_prints_table_13_of_the_published_file():
    rows = lines([find_calibration("qwen3-0.6b-base+qwen3-8b")[0]])
    assert rows["GSM8K"] == ["3.667 / 24.443", "0.467 / 3.114", "0.239 / 1.591", "6.657 to 6.668"]
    assert rows["largest over smallest"][:3] == ["1.296 / 1.414", "2.797 / 2.378", "2.882 / 1.835"]


def test_compare_tells_how_kappa_over_tau_varies():
    made = small_calibration()
    (least, most), (low, high) = (
        lines([made], kappa_rule=rule)["made"][-1].split(" to ") for rule in ("threshold_to_mean", "tail_to_mean")
    )
    assert least == most and float(low) < float(high)
    both = lines([made, replace(made, scores={"ce": calibrate_values(SCORES * 2)})])
    assert list(both) == ["made", "made (2)", "largest over smallest"]
    assert both["largest over smallest"][0] == "2.000 / 1.000"
    with pytest.raises(CalibrationError, match="does not hold score=js"):
        compare([made], "js")
