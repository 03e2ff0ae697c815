"""Figures of a task and of the average over tasks: from results files, and from correct samples by problem."""

import numpy as np
import pytest
from helpers.results import takeover, write_results

from lm_eval_takeover.results import summary
from lm_eval_takeover.results.runs import Counts, read_runs
from lm_eval_takeover.results.statistics import mean_interval

PER_TASK = {
    task: dict(zip(("tokens", "takeovers", "base_passes", "guide_passes", "realized_rate"), values, strict=True))
    for task, values in (("takeover_amc23", (1000, 40, 1200, 100, 0.04)), ("takeover_aime24", (500, 50, 500, 250, 0.1)))
}


@pytest.fixture
def run(tmp_path):
    counts = {"takeover_amc23": [3, 5] * 20, "takeover_aime24": [1, 0, 8] * 10}
    reported = takeover(per_task=PER_TASK, parameters={"base": 10, "guide": 100})
    return read_runs([write_results(tmp_path / "run", counts, run=reported)])[0][0]


def test_a_task_has_its_scores_with_intervals_and_its_rates(run):
    tasks = summary.summarize_tasks([run])
    amc = tasks["takeover_amc23"]
    assert (amc.problems, amc.samples, amc.k, amc.acc.value) == (40, 8, 8, 0.5)
    assert amc.acc.interval == mean_interval(np.array([3, 5] * 20) / 8)
    assert amc.passed == amc.score("pass@8") and amc.score("pass@3") == summary.Figure()
    rates = amc.rates
    assert (rates.realized_rate, rates.base_passes_per_token, rates.donor_passes_per_token) == (0.04, 1.2, 0.1)
    assert rates.weights_per_token == pytest.approx(1.2 * 10 + 0.1 * 100)
    assert rates.seconds_per_problem == pytest.approx(60 / 70)  # of both tasks: the run's seconds are not split


def test_what_a_task_lacks_is_missing_in_the_average(tmp_path):
    write_results(tmp_path / "logged", {"a": [1, 2, 3]}, run=takeover(), samples=3)
    write_results(tmp_path / "means", {"b": [1, 2, 5]}, run=takeover(seed=1), samples=5, logged=False)
    runs, _ = read_runs([tmp_path])
    whole = summary.average(list(summary.summarize_tasks(runs).values()))
    assert (whole.k, whole.samples, whole.passed) == (None, None, summary.Figure())
    assert whole.acc.value is not None and whole.acc.interval is None
    assert "pass@5" not in whole.scores


def test_files_of_one_row_share_their_seconds_and_counts_add_up(tmp_path):
    for task, seconds in (("a", 10.0), ("b", 20.0)):
        write_results(tmp_path / task, {task: [1] * 5}, run=takeover(seconds=seconds))
    runs, _ = read_runs([tmp_path])
    assert {part.rates.seconds_per_problem for part in summary.summarize_tasks(runs).values()} == {3.0}
    parts = [Counts(100, 10, 9, 100, 110, 20, 0.1), Counts(300, 10, None, 300, 330, None, 1 / 30)]
    assert Counts.add(parts) == Counts(400, 20, None, 400, 440, None, 0.05)


@pytest.mark.parametrize(("tasks", "averaged"), [
    (["mine", "takeover_aime24", "takeover_amc23"], ["takeover_amc23", "takeover_aime24"]),
    (["mine", "takeover_gpqa_diamond", "mine"], ["mine", "takeover_gpqa_diamond"]),
    (["takeover_gsm8k_100", "takeover_amc23", "takeover_gsm8k"], ["takeover_gsm8k", "takeover_amc23"]),
    (["takeover_gsm8k_100", "takeover_demo"], ["takeover_gsm8k_100"]), (["mine", "mine_2"], ["mine", "mine_2"]),
    (["takeover_gpqa_diamond_50", "takeover_gpqa_diamond"], ["takeover_gpqa_diamond"]),
])  # fmt: skip
def test_averages_are_over_mathematical_tasks_and_never_over_a_task_and_its_subset(tasks, averaged):
    assert summary.choose_averaged(tasks) == averaged
