"""Which calibration the rows read: the packaged one, one in the folder, or one that is measured first."""

import json
from dataclasses import replace
from pathlib import Path
from shlex import split

import pytest
from helpers.stock import arguments_of, comparing_here, value_of

from lm_eval_takeover.calibration.files import find_calibration, read_calibration, write_calibration
from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.compare import budget_parameters
from lm_eval_takeover.commands.compare.calls import plan_calls
from lm_eval_takeover.commands.compare.rows import plan_rows
from lm_eval_takeover.commands.compare.workload import read_workload
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.runs import read_run


@pytest.fixture
def plan(read_options):
    def plan(*words):
        options = read_options(*words)
        (plan,) = budget_parameters.plan_calibrations(options, plan_rows(options), read_workload(options))
        return plan

    return plan


def test_a_calibration_is_measured_only_where_none_fits(plan):
    fits = plan()
    assert (fits.words, fits.calibration) == ((), None)
    other = plan("--target_rate", "0.07", "--num_prompts", "4", "--batch_size", "8")
    assert other.words[0] == "calibrate" and value_of(other.words, "--methods") == "ce@0.07"
    assert value_of(other.words, "--max_gen_toks") == "320" and value_of(other.words, "--temperature") == "0.6"
    assert other.calibration == value_of(other.words, "--out")
    for words in (["--gen_kwargs", "temperature=0.9"], ["--apply_chat_template"], ["--model_args", "score=rkl"]):
        assert plan(*words).words, words
    by_hand = plan("--model_args", "tau=1.5")
    assert (by_hand.words, by_hand.calibration) == ((), None)
    reverse = plan("--direction", "reverse")
    assert value_of(reverse.words, "--direction") == "reverse"
    assert plan("--model_args", "direction=reverse").words == reverse.words
    for words in ("--rows js:score_top_p=0.95@0.04", "--model_args score=js score_top_p=0.95 --rates 0.04"):
        solved = plan("--target_rate", "0.04", *words.split()).words
        assert "js:score_top_p=0.95@0.04" in solved[solved.index("--methods") :]
    grid = plan("--rows", "base,ce,entropy,segment:length=4@0.3", "--rates", "0.02,0.05").words
    methods = grid[grid.index("--methods") + 1 : grid.index("--nearest")]
    assert methods == ("ce@0.02:0.05", "entropy@0.02:0.05", "segment:length=4@0.3")


@pytest.mark.parametrize("more", ["", ",rkl@0.02"])
def test_a_spike_ratio_is_read_off_the_calibration_that_the_call_measures(plan, read_options, more):
    words = ["--rows", f"base,ce:spike_ratio=0.03{more}", "--gen_kwargs", "temperature=0.9", "--field", "question"]
    measured = plan(*words)
    assert value_of(measured.words, "--field") == "question" and ("--methods" in measured.words) is bool(more)
    options = read_options(*words)
    for row in plan_rows(options):
        (call,) = plan_calls(options, row, [measured], read_workload(options))
        assert arguments_of(call.words).get("calibration") == (None if row.name == "base" else measured.calibration)


def test_what_was_measured_is_used_again_and_extended(plan):
    out = Path(plan("--target_rate", "0.07").calibration)
    packaged, _ = find_calibration("demo")
    solved = [replace(target, target_rate=0.07) for target in packaged.targets if target.target_rate == 0.05]
    write_calibration(replace(packaged, targets=tuple(solved)), out)
    assert plan("--target_rate", "0.07").words == ()
    more = plan("--target_rate", "0.09")  # one file for all rates
    assert "--extend" in more.words and more.calibration == str(out)


def test_with_match_task_each_task_has_the_threshold_of_its_own_prompts(tmp_path):
    """Of the bundled pair. The row has a call for each task, and is one row of the table."""
    tasks = ["takeover_demo", "takeover_demo_graded"]
    words = ["compare", "--tasks", *tasks, *split("--rows base,ce,entropy --target_rate 0.2 --match task --limit 1")]
    words += split("--gen_kwargs max_gen_toks=20 --num_prompts 2 --num_held_out 3 --batch_size 32 --quiet --run_dir")
    with comparing_here():
        assert main([*words, str(tmp_path)]) == 0
    found = [read_calibration(path) for path in tmp_path.glob("calibration-*.json")]
    calibrations = {each.prompts["dataset"]: each for each in found}
    assert sorted(calibrations) == ["calibration_prompts.jsonl", "graded_prompts.jsonl"]
    for row in ("ce", "entropy"):
        runs = [read_run(path) for path in tmp_path.glob(f"{row}/results-*/**/results_*.json")]
        of_task = {task: run for run in runs for task in run.tasks}
        assert len(runs) == len(of_task) == 2
        for task, dataset in zip(tasks, sorted(calibrations), strict=True):
            assert of_task[task].takeover["tau"] == calibrations[dataset].scores[row].threshold(0.2).tau
    board = json.loads((tmp_path / "leaderboard.json").read_text())["rows"]
    assert sorted((row["model"], len(row["tasks"])) for row in board) == [("base", 2), ("ce", 2), ("entropy", 2)]
    assert main(["frontier", str(tmp_path), "--out", str(tmp_path)]) == 0
    lines = json.loads((tmp_path / "frontier.json").read_text())
    assert [line["task"] for line in lines if line["row"] == "ce"] == [*tasks, "average"]


def test_a_real_pair_is_matched_by_task_on_prompts_that_are_named(plan, tmp_path):
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text("")
    words = ["--base", str(DEMO["base"]), "--guide", str(DEMO["guide"]), "--match", "task", "--task_prompts"]
    assert value_of(plan(*words, f"takeover_demo={prompts}").words, "--prompts") == str(prompts)
    with pytest.raises(ArgumentError, match="--task_prompts takeover_dem=…: the tasks are takeover_demo"):
        plan(*words, f"takeover_dem={prompts}")
    with pytest.raises(ArgumentError, match=r"--match task needs .* give --task_prompts takeover_demo=PROMPTS"):
        plan(*words[:-1])
    with pytest.raises(ArgumentError, match="--task_prompts takeover_demo=… goes with --match task"):
        plan("--task_prompts", f"takeover_demo={prompts}")
