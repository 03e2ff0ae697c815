"""`compare --plan`: the difference that it names is found as often as it says."""

import numpy as np
import pytest

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.compare.detectable import find_least_difference
from lm_eval_takeover.commands.compare.workload import TaskLoad
from lm_eval_takeover.commands.regress.planning import EXPECTED, lower
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.results.statistics import paired_difference


@pytest.mark.parametrize(("problems", "samples", "acc"), [(30, 8, 0.5), (200, 8, 0.2), (500, 1, 0.8)])
def test_two_rows_that_differ_so_much_are_told_apart_four_times_in_five(problems, samples, acc):
    """Rows are drawn here, and judged by the interval that the tables print."""
    least = find_least_difference([TaskLoad("task", problems, samples, 10, Sampling())], acc)
    generator, found = np.random.default_rng(7), 0
    better = np.clip(generator.beta(acc, 1 - acc, (300, problems)), 1e-9, 1 - 1e-9)
    for chances in zip(better, lower(better, least, EXPECTED["acc"]), strict=True):
        one, other = (generator.binomial(samples, row) / samples for row in chances)
        interval = paired_difference(one - other, samples).interval()
        found += interval.low > 0
    assert found / 300 == pytest.approx(0.8, abs=0.08)


def test_few_problems_tell_nothing_and_many_tell_more():
    few, some, many = (find_least_difference([TaskLoad("task", n, 1, 10, Sampling())], 0.2) for n in (5, 100, 1000))
    assert few is None and 0 < many < some / 2.5


def test_the_command_prints_a_line_for_each_task_and_runs_nothing(tmp_path, capsys):
    words = ["compare", "--tasks", "takeover_demo", "--run_dir", str(tmp_path / "run"), "--plan", "--limit", "50"]
    assert main([*words, "--format", "md"]) == 0
    head, _, line, *_ = capsys.readouterr().out.splitlines()
    assert head.replace(" ", "").startswith("|Task|Problems|Samples|Acc20%|")
    assert line.replace(" ", "").startswith("|takeover_demo|50|8|")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ArgumentError, match="--dry_run, --plan and --merge print table, md or latex"):
        main([*words, "--format", "csv"])
