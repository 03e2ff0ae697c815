"""Budget, rates, flips and ranks: by hand, by the leaderboard's intervals, and by the paper's own tables."""

import numpy as np
import polars as pl
import pytest
from difficulties import table3

from lm_eval_takeover.lab.analysis.catalogue import COLUMNS
from lm_eval_takeover.lab.analysis.outcomes import (
    measure_cross,
    measure_ranks,
    tabulate_budget,
    tabulate_cross,
    tabulate_flips,
    tabulate_ranks,
    tabulate_rates,
)
from lm_eval_takeover.lab.analysis.pooling import make_frame
from lm_eval_takeover.lab.analysis.tokens import SampleTokens
from lm_eval_takeover.results.statistics import mean_interval


def outcomes(rows):
    names = ["run", "policy", "score", "nominal", "task", "doc_id", "sample", "correct", "tokens", "takeovers"]
    return pl.DataFrame(rows, schema=names, orient="row")


def test_the_null_of_flips_is_that_of_a_second_seed():
    """340 problems as hard as those of the paper for Qwen3-0.6B-Base: expected from one run, and counted in another."""
    beta, rng = table3()[0, "Math500"], np.random.default_rng(1)
    counted, expected = [], []
    for _ in range(20):
        chances = rng.beta(beta.a, beta.b, 340)
        columns = {"task": "takeover_math500", "doc_id": np.arange(340).repeat(8)}
        right = {run: np.arange(8) < rng.binomial(8, chances)[:, None] for run in ("base", "again", "guided")}
        samples = pl.concat([pl.DataFrame({"run": run, **columns, "correct": of.ravel()}) for run, of in right.items()])
        alone = tabulate_flips(samples.filter(pl.col("run") != "again"), "base")
        (row,) = alone.filter(task="takeover_math500").to_dicts()
        assert row["null"] == "expected"
        expected.append((row["null_rescued"], row["null_harmed"]))
        table = tabulate_flips(samples, "base", ["again"])
        both = {row["run"]: row for row in table.to_dicts() if row["task"] == "mean"}
        assert (both["guided"]["null"], both["again"]["null"]) == ("again", "expected")
        assert both["guided"]["null_harmed"] == both["again"]["harmed"]
        counted.append((both["again"]["rescued"], both["again"]["harmed"]))
    np.testing.assert_allclose(np.mean(expected, axis=0), np.mean(counted, axis=0), rtol=0.12)
    assert 20 < np.mean(counted) < 50  # a review found 29 of 340


def test_budget_rates_and_flips_by_hand():
    right = {"base": [8, 0, 1], "new": [0, 3, 8]}
    rows = [
        (run, run, None, 0.1, task, doc, j, j < count, 10 + doc, doc * (run == "new"))
        for run in right
        for task in ("takeover_gsm8k", "takeover_amc23", "takeover_demo")
        for doc, count in enumerate(right[run])
        for j in range(8)
    ]
    samples = outcomes(rows)
    budget = {(row["task"], row["run"]): row for row in tabulate_budget(samples).to_dicts()}
    assert len(budget) == 8
    for task in ("takeover_gsm8k", "mean"):
        row = budget[task, "new"]
        assert (row["acc"], row["pass8"]) == pytest.approx((11 / 24, 2 / 3))
        assert row["realized_rate"] == pytest.approx(3 / 33)
        assert 0 <= row["acc_low"] < 11 / 24 < row["acc_high"] <= 1
    # Two independent tasks are averaged: a narrower interval; the demo is no mathematical task.
    assert budget["mean", "new"]["acc_high"] < budget["takeover_gsm8k", "new"]["acc_high"]
    three = tabulate_budget(samples.filter(pl.col("sample") < 3))
    of_three = {(row["task"], row["run"]): row for row in three.to_dicts()}
    assert all(row["k"] == 3 for row in of_three.values())
    assert of_three["mean", "new"]["pass8"] == pytest.approx(2 / 3) and budget["mean", "new"]["k"] == 8
    rates = tabulate_rates(samples).filter(task="takeover_gsm8k", run="new")
    assert rates.select("doc_id", "realized_rate", "tokens").rows() == [(0, 0, 80), (1, 1 / 11, 88), (2, 2 / 12, 96)]
    flips = {row["task"]: row for row in tabulate_flips(samples, "base").to_dicts()}
    assert [flips["takeover_gsm8k"][name] for name in COLUMNS["flips"][:6]] == ["takeover_gsm8k", "new", 3, 1, 1, 1.0]
    assert [flips["mean"][name] for name in ("problems", "rescued", "harmed")] == [6, 2, 2]
    behind = tabulate_flips(samples.filter(pl.col("doc_id") > 0), "base").filter(task="mean")
    assert behind.select("problems", "rescued", "harmed", "p_value").row(0) == (4, 2, 0, 0.5)
    part = samples.filter((pl.col("run") == "base") | (pl.col("task") == "takeover_amc23"))
    both = pl.concat([samples, part.filter(pl.col("run") == "new").with_columns(run=pl.lit("part"))])
    means = tabulate_flips(both, "base").filter(task="mean")
    assert means["run"].to_list() == ["new"]  # `part` lacks a task


def test_budget_has_the_intervals_of_the_leaderboard():
    """At 0 of 240 a bootstrap of problems knows nothing: [0, 0]."""
    rows = [("base", "base", None, None, "takeover_aime24", doc, j, False, 9, 0) for doc in range(30) for j in range(8)]
    row, mean = tabulate_budget(outcomes(rows)).to_dicts()
    expected = (0, pytest.approx(mean_interval(np.zeros(30)).high))
    assert (row["acc_low"], row["acc_high"]) == (row["pass8_low"], row["pass8_high"]) == expected
    assert 0.1 < row["acc_high"] == pytest.approx(mean["acc_high"])


def test_means_over_other_tasks_do_not_stand_beside_each_other():
    both, one = ("takeover_gsm8k", "takeover_aime25"), ("takeover_gsm8k",)
    rows = [
        (run, run, None, None, task, doc, j, task == "takeover_gsm8k", 9, 0)
        for run, tasks in (("base", both), ("guided", one), ("guide", both))
        for task in tasks for doc in range(10) for j in range(8)
    ]  # fmt: skip
    table = tabulate_budget(outcomes(rows)).filter(pl.col("task") == "mean")
    assert dict(table.select("run", "acc").iter_rows()) == {"base": 0.5, "guide": 0.5}


def test_ranks_and_near_positions_by_hand():
    columns = {
        "token_id": np.array([5, 6, 7, 8, 9, 10]), "takeover": np.array([1, 1, 1, 1, 0, 1], bool),
        "host_token_id": np.array([5, 1, -1, 2, 9, 3]), "donor_rank": np.array([1, 3, 2, 10, 1, 101]),
        "score": np.array([0.0, 0.1, 0.2, 0.05, 0.6, 0.6], np.float32),
    }  # fmt: skip
    one = SampleTokens(("t", 0, 0), columns)
    ranks = tabulate_ranks(make_frame([{"task": "t", "run": "r", "doc_id": 0, **measure_ranks(one)}] * 2))
    assert dict(ranks.select("rank", "takeovers").iter_rows()) == {
        "1": 0, "2": 0, "3": 2, "4-10": 2, "11-100": 0, ">100": 2,
    }  # fmt: skip
    measured = make_frame([{"task": "t", "run": "r", "direction": "forward", **measure_cross(one, 0.15)}])
    acc = pl.DataFrame({"task": "t", "run": "r", "acc": 0.5, "acc_host": 0.25, "acc_donor": [None]})
    (row,) = tabulate_cross(measured, acc, 0.15).to_dicts()
    assert list(row) == list(COLUMNS["cross"])
    assert (row["changed"], row["changed_share"]) == (3, 0.5)  # one drew the host's own token, of one it is not known
    assert (row["near_share"], row["replaced"], row["replaced_share"], row["threshold"]) == (0.5, 5, 5 / 6, 0.15)
