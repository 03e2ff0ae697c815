"""Budget, rates, flips and ranks by hand and by the paper's own tables; AUROC by problem beside scikit-learn."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from lm_eval_takeover.lab.measures import pooling
from lm_eval_takeover.lab.measures.catalogue import COLUMNS
from lm_eval_takeover.lab.measures.outcomes import (
    choose_threshold,
    count_pairs,
    cross_validated_accuracy,
    measure_cross,
    measure_failure,
    measure_ranks,
    tabulate_budget,
    tabulate_cross,
    tabulate_failure,
    tabulate_flips,
    tabulate_ranks,
    tabulate_rates,
)
from lm_eval_takeover.lab.measures.pooling import make_frame
from lm_eval_takeover.lab.score_files import SampleTokens
from lm_eval_takeover.results.statistics import mean_interval


def outcomes(rows):
    names = ["run", "policy", "score", "nominal", "task", "doc_id", "sample", "correct", "tokens", "takeovers"]
    return pl.DataFrame(rows, schema=names, orient="row")


@pytest.mark.parametrize("shared", [0.0, 0.9], ids=["two seeds", "one seed"])
def test_the_null_of_flips_is_what_chance_rescues_where_rows_share_numbers_too(shared):
    """30 problems with Acc 2 %, eight samples; `shared` of the samples have one verdict in both rows."""
    rng, places = (
        np.random.default_rng(1),
        {"task": "takeover_aime24", "doc_id": np.arange(30).repeat(8), "sample": [*range(8)] * 30},
    )
    counted, expected = [], []
    for _ in range(200):
        chances = rng.beta(0.2, 9.8, 30)[:, None]
        base, other = rng.random((30, 8)) < chances, rng.random((30, 8)) < chances
        right = {"base": base, "again": np.where(rng.random((30, 8)) < shared, base, other)}
        frames = [pl.DataFrame({"run": run, **places, "correct": of.ravel()}) for run, of in right.items()]
        (row, _) = tabulate_flips(pl.concat(frames), "base").to_dicts()
        counted.append((row["rescued"], row["harmed"]))
        expected.append(row["null_rescued"])
    assert np.mean(expected) == pytest.approx(np.mean(counted), rel=0.1)
    assert np.mean(counted) > 1 if not shared else 0.1 < np.mean(counted) < 0.5


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


labelled = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5), st.booleans()), min_size=2, max_size=60)


def test_the_signal_is_the_mean_of_the_100_largest():
    def signal(scores):
        return measure_failure(SampleTokens(("t", 0, 0), {"token_id": scores, "ce": scores}), "ce")["signal_value"]

    x = np.random.default_rng(0).exponential(size=250).astype(np.float32)
    assert signal(x) == pytest.approx(np.sort(x)[-100:].mean(dtype=float))
    assert signal(x[:30]) == pytest.approx(x[:30].mean(dtype=float))
    assert np.isfinite(signal(np.append(x, np.float32(np.inf))))  # a donor that rules a token out


@given(labelled)
def test_auroc_of_pairs_is_scikit_learns(rows):
    problems, signal, incorrect = (np.array(column) for column in zip(*rows, strict=True))
    pairs = count_pairs(problems, signal.astype(float), incorrect.astype(float))
    assert (pairs.positive.sum(), pairs.negative.sum()) == (incorrect.sum(), (~incorrect).sum())
    auroc, within = pairs.areas()
    if 0 < incorrect.sum() < len(rows):
        assert auroc == pytest.approx(roc_auc_score(incorrect, signal))
    inside = [
        (x > y) + (x == y) / 2
        for p, x, wrong in rows for q, y, other in rows if p == q and wrong and not other
    ]  # fmt: skip
    assert within == pytest.approx(np.mean(inside)) if inside else np.isnan(within)


def test_the_bootstrap_of_auroc_is_that_of_rows_drawn_by_problem():
    rng = np.random.default_rng(3)
    problems, signal = np.repeat(np.arange(12), 4), rng.normal(size=48)
    incorrect = signal + rng.normal(size=48) > 0
    drawn_counts = pooling.draw_weights(12, "t")[:30]
    found = count_pairs(problems, signal, incorrect.astype(float)).areas(drawn_counts)[:, 0]
    for weights, value in zip(drawn_counts, found, strict=True):
        drawn = np.concatenate([np.flatnonzero(problems == p).repeat(int(n)) for p, n in enumerate(weights)])
        assert value == pytest.approx(roc_auc_score(incorrect[drawn], signal[drawn]))


@given(labelled)
def test_no_threshold_calls_more_samples_rightly(rows):
    _, signal, incorrect = (np.array(column) for column in zip(*rows, strict=True))
    threshold = choose_threshold(signal.astype(float), incorrect)
    best = max(((signal > t) == incorrect).sum() for t in (-1, *(signal + 0.5)))
    assert ((signal > threshold) == incorrect).sum() == best


def test_a_threshold_is_chosen_on_other_problems():
    problems, signal = np.arange(10).repeat(2), np.tile([1.0, 3.0], 10)
    incorrect = signal > 2
    incorrect[problems % 5 == 0] ^= True  # the fold of problems 0 and 5 goes the other way
    assert cross_validated_accuracy(problems, signal, incorrect) == 0.8
    assert np.isnan(cross_validated_accuracy(problems * 5, signal, incorrect))


def test_one_class_has_no_auroc_and_no_interval():
    columns = {"task": "t", "doc_id": [0, 1, 2], "sample": 0, "score": "ce", "signal_value": [1.0, 2, 3], "length": 9.0}
    frame = pl.DataFrame(columns)
    row, length, mean, _ = tabulate_failure(frame.with_columns(correct=pl.lit(True))).to_dicts()
    assert length["signal"] == "length"
    assert (row["auroc"], row["low"], row["accuracy"], row["majority"]) == (None, None, 1.0, 1.0)
    assert mean["auroc"] is None and mean["task"] == "mean"


def test_a_signal_of_length_is_no_better_than_length_and_one_of_difficulty_tells_nothing_within_problems():
    """Scores that grow with the text, where wrong texts are longer, have a high AUROC that says nothing."""
    rng, rows = np.random.default_rng(0), []
    for doc in range(40):  # half of them are hard
        for j in range(8):
            wrong = bool(rng.random() < (0.75 if doc % 2 else 0.25))
            length = float(4 * wrong + rng.normal())
            for name, signal in (("ce", length), ("entropy", 4 * (doc % 2))):
                rows.append(("takeover_gsm8k", doc, j, name, signal + rng.normal(), length, not wrong))
    names = ["task", "doc_id", "sample", "score", "signal_value", "length", "correct"]
    found = {row["signal"]: row for row in tabulate_failure(pl.DataFrame(rows, schema=names, orient="row")).to_dicts()}
    assert found["ce"]["auroc"] > 0.9 and found["length"]["auroc"] > found["ce"]["auroc"]
    assert found["ce"]["minus_length"] == pytest.approx(found["ce"]["auroc"] - found["length"]["auroc"])
    assert found["ce"]["minus_length_high"] < 0 < found["ce"]["minus_entropy_low"] < found["ce"]["minus_entropy"]
    assert found["length"]["minus_length"] is None
    hard = found["entropy"]
    assert hard["auroc"] > 0.65 and hard["within_low"] < 0.5 < hard["within_high"] < 0.62
    assert found["ce"]["within_low"] > 0.85
