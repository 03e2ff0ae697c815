"""The rows of a comparison: methods at rates, and rows that follow the guided one."""

from helpers.stock import arguments_of, value_of

from lm_eval_takeover.commands.compare.budget_parameters import CalibrationPlan
from lm_eval_takeover.commands.compare.calls import plan_calls
from lm_eval_takeover.commands.compare.rows import plan_rows
from lm_eval_takeover.commands.compare.workload import TaskLoad
from lm_eval_takeover.method.request import TASK_SAMPLING


def test_rows_are_methods_at_rates(read_options):
    words = "guide,base,guided,ce,random,lossy@0.1,log_ratio:tau=0.5"
    planned = {row.label: row for row in plan_rows(read_options("--rows", words, "--rates", "0.05,0.01"))}
    assert list(planned) == [
        "guide", "base", "guided", "ce@0.01", "ce@0.05", "random@0.01", "random@0.05", "lossy@0.1", "log_ratio-tau-0.5"
    ]  # fmt: skip
    assert (planned["guided"].rate, planned["ce@0.01"].rate, planned["log_ratio-tau-0.5"].rate) == (0.05, 0.01, None)
    assert planned["ce@0.05"].arguments == {"policy": "disagreement", "score": "ce"}
    assert {planned["guided"].family, planned["ce@0.01"].family} == {"ce"}
    assert planned["lossy@0.1"].method.settings == {"policy": "lossy"}


def test_the_guided_row_takes_the_entropy_by_score_or_by_policy(read_options):
    for word in ("score=entropy", "policy=entropy"):
        (row,) = plan_rows(read_options("--rows", "guided", "--model_args", word))
        assert row.method.policy.name == "entropy"


def test_rows_that_follow_take_the_guided_rate_of_each_task(read_options):
    options = read_options("--rows", "guided,random,early")
    tasks = {"takeover_amc23": 0.03, "takeover_demo": 0.09}
    for row in plan_rows(options)[1:]:
        assert row.follows and row.rate is None
        calls = plan_calls(options, row, CalibrationPlan(), [TaskLoad(task, 1, 1, 1, TASK_SAMPLING) for task in tasks], tasks)
        assert [arguments_of(call.words)["rate"] for call in calls] == ["0.03", "0.09"]
        assert [value_of(call.words, "--tasks") for call in calls] == list(tasks)
        assert len({arguments_of(call.words)["run_dir"] for call in calls}) == 1
