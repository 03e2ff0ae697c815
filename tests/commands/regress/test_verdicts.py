"""Verdicts by interval: of tasks, of their average, of changes and of Recovery; settings and problems that differ; plans."""

from dataclasses import replace

import numpy as np
import pytest
from difficulties import table3
from helpers.results import TASK, draw_counts, takeover, write_results
from regression_alarms import measure, rate_alarms

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.regress.baseline import TaskScores
from lm_eval_takeover.commands.regress.plans import draw_difficulties, lower
from lm_eval_takeover.commands.regress.verdicts import compare
from lm_eval_takeover.errors import ArgumentError, ResultsError


def test_the_average_over_tasks_is_judged_and_tells_more_than_its_tasks(tmp_path, regress):
    tasks = {"takeover_math500": 60, "takeover_amc23": 40, "takeover_aime24": 30, "takeover_demo": 50}
    for name, seed, shift in (("old", 1, 0.0), ("new", 2, -0.1)):
        correct = {task: draw_counts(seed + place, shift, size) for place, (task, size) in enumerate(tasks.items())}
        write_results(tmp_path / name, correct, run=takeover(seed=seed))
    main(["regress", str(tmp_path / "old"), "--baseline", str(tmp_path / "b.json"), "--update"])
    words = [str(tmp_path / "new"), "--baseline", str(tmp_path / "b.json"), "--max_drop", "0"]
    status, found = regress(*words)
    shown = [found["tasks"][task] for task in list(tasks)[:3]]  # the demo is not mathematical
    average = found["average"]
    assert average["difference"] == pytest.approx(np.mean([task["difference"] for task in shown]))
    assert average["high"] - average["low"] < min(task["high"] - task["low"] for task in shown)
    assert (status, average["verdict"]) == (1, "regressed")
    assert average["p_holm"] < min(task["p_holm"] for task in shown)
    corrected = [task["p_holm"] / task["p_value"] for task in shown]
    assert min(corrected) >= 1 and max(corrected) > 1.9


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ({"decoding": {"temperature": 0.7}}, "temperature: 0.6 -> 0.7"),
        ({"run": takeover(tau=9.0)}, "tau: 1.5 -> 9.0"),
        ({"model_args": "max_length=99"}, "model_args.max_length: none -> 99"),
        ({"verifier": "math_verify"}, "verifier: none -> math_verify"),
    ],
)
def test_other_settings_are_an_error_that_lists_them_unless_allowed(check, written, text):
    with pytest.raises(ArgumentError, match="settings differ from --baseline") as caught:
        check({TASK: draw_counts(2)}, **written)
    assert text in str(caught.value)
    name = text.partition(":")[0]
    _, found = check({TASK: draw_counts(2)}, "--allow", name, **written)
    assert any(line.startswith(f"{name}:") or f" {name}:" in line for line in found["settings"]["differences_allowed"])


def test_another_seed_batch_size_or_run_dir_is_no_other_setting(check):
    run = takeover(seed=7, run_dir="elsewhere", block_size=4)
    assert check({TASK: draw_counts(2)}, run=run, model_args="batch_size=3,seed=7,run_dir=elsewhere")[0] == 0
    with pytest.raises(ArgumentError, match=r"--allow 'polcy' is not a setting of these runs; did you mean 'policy'\?"):
        check({TASK: draw_counts(1)}, "--allow", "polcy")


def test_problems_on_one_side_alone_are_an_error_unless_they_are_few(check):
    found = check({TASK: draw_counts(1)[:295]})[1]["tasks"][TASK]
    assert found["baseline"] == found["now"] == pytest.approx(np.mean(draw_counts(1)[:295]) / 8)
    with pytest.raises(
        ResultsError,
        match=r"takeover_math500: the baseline has 300 problems, the run 290; 10 are missing in the run, and",
    ):
        check({TASK: draw_counts(1)[:290]})
    with pytest.raises(ResultsError, match="the run 310; 10 are missing in the baseline"):
        check({TASK: draw_counts(1, size=310)})


def test_a_change_beyond_its_limit_regresses_where_its_interval_does():
    """The p-value of a change is two-sided already."""
    run = measure(np.random.default_rng(6), np.full(40, 0.1), "a", TASK)
    problems = run.tasks[TASK].problems
    verdicts = set()
    for cut in range(1, 30):
        no_answer = np.where(np.arange(40) < cut, 2 / 8, 0.0)
        sides = []
        for name, values in (("old", np.zeros(40)), ("new", no_answer)):
            changed = replace(problems, values=problems.values | {"no_answer": values}, texts=name)
            sides.append(replace(run, tasks={TASK: TaskScores(changed, {})}))
        found = compare(*sides, "no_answer", 0.02, 0.95)[TASK]
        verdicts.add(found.verdict)
        assert found.p_value == found.p_holm
        assert (found.verdict == "regressed") == (found.low > 0.02)
    assert verdicts == {"regressed", "inconclusive"}


def test_a_plan_prints_the_power_of_each_drop(check, regress):
    status, found = regress("--baseline", check.folder / "b.json", "--plan", "--drop", "0.02", "0.1")
    allowed, large = found["rows"]
    assert status == 0
    for row, drop in ((allowed, 0.02), (large, 0.1)):
        assert (row["task"], row["problems"], row["samples"], row["drop"]) == (TASK, 300, 8, drop)
    assert allowed["power"] < 0.05 and large["power"] > 0.95  # the allowed drop itself, and far beyond it
    assert allowed["problems_for_80"] is None and 20 < large["problems_for_80"] < 300


def test_planted_drops_shift_all_log_odds_by_one_amount_and_unsolved_problems_have_a_chance():
    chances = np.random.default_rng(0).beta(1, 1, (3, 50))
    lowered = lower(chances, 0.1, lambda p: p)
    assert lowered.mean(axis=1) == pytest.approx(chances.mean(axis=1) - 0.1, abs=1e-5)
    shifts = np.log(lowered / (1 - lowered)) - np.log(chances / (1 - chances))
    assert shifts == pytest.approx(np.broadcast_to(shifts[:, :1], shifts.shape), abs=1e-6)
    drawn = draw_difficulties(np.random.default_rng(0), np.array([0.0] * 20 + [0.5] * 20), 8, 2000)
    assert 0 < drawn[:, :20].mean() < drawn[:, 20:].mean() == pytest.approx(0.5, abs=0.1)


def test_equal_models_alarm_seldom_and_planted_drops_are_found():
    """A thousand comparisons; `benchmarks/regression_alarms.py` has ten thousand of more kinds."""
    generator, beta = np.random.default_rng(3), table3()[2, "AMC23"]
    alarms, _, points = rate_alarms(generator, beta, "AMC23", 0.0, 0.0, 1000)
    assert alarms <= 0.04 and points > 0.3
    assert rate_alarms(generator, beta, "AMC23", 0.1, 0.0, 1000)[0] >= 0.8
