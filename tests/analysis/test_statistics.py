"""Each statistic beside an independent calculation: by hypothesis, and by numpy, scipy and scikit-learn."""

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from difficulties import table3
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import binom
from sklearn.metrics import roc_auc_score

from lm_eval_takeover.analysis import pooling
from lm_eval_takeover.analysis.catalogue import COLUMNS, analyse, make_frame
from lm_eval_takeover.analysis.concentration import measure_concentration, measure_lorenz
from lm_eval_takeover.analysis.failure import (
    bootstrap_auroc,
    choose_threshold,
    count_pairs,
    cross_validated_accuracy,
    measure_failure,
    tabulate_failure,
)
from lm_eval_takeover.analysis.outcomes import sign_test, tabulate_budget, tabulate_flips, tabulate_rates
from lm_eval_takeover.analysis.places import measure_overlap, measure_position
from lm_eval_takeover.analysis.takeovers import measure_cross, measure_ranks, tabulate_cross, tabulate_ranks
from lm_eval_takeover.analysis.tokens import SampleTokens, split_tables
from lm_eval_takeover.results.statistics import mean_interval

values = st.lists(st.one_of(st.just(0.0), st.floats(0, 20, width=32)), min_size=1, max_size=300)


def sample(scores, entropies=None, name=("takeover_gsm8k", 0, 0)):
    scores = np.array(scores, np.float32)
    entropies = scores if entropies is None else np.array(entropies, np.float32)
    return SampleTokens(name, {"token_id": np.arange(len(scores)), "ce": scores, "base_entropy": entropies})


def top_set(scores, percent):
    """By sorting pairs, the larger score first and of equal ones the earlier."""
    count = max(1, int(np.ceil(round(len(scores) * percent / 100, 9))))
    return set(sorted(range(len(scores)), key=lambda i: (-np.float32(scores[i]), i))[:count])


@given(values)
def test_gini_is_half_the_relative_mean_absolute_difference(scores):
    found = measure_concentration(sample(scores), "ce")
    x = np.array(scores, np.float32).astype(float)
    if not x.sum():
        assert found == {"gini": None, "top1": None, "top5": None, "top8": None}
        return
    expected = np.abs(x[:, None] - x[None]).mean() / (2 * x.mean())
    assert found["gini"] == pytest.approx(expected, abs=1e-9)
    for percent in (1, 5, 8):
        largest = np.sort(x)[::-1][: len(top_set(scores, percent))]
        assert found[f"top{percent}"] == pytest.approx(largest.sum() / x.sum(), abs=1e-9)


@given(values)
def test_the_lorenz_curve_encloses_the_gini_coefficient(scores):
    found = measure_lorenz(sample(scores), "ce")
    x = np.sort(np.array(scores, np.float32).astype(float))
    if not x.sum():
        assert found is None
        return
    shares = np.concatenate([[0], x.cumsum()]) / x.sum()
    expected = np.interp(np.linspace(0, 1, 101), np.linspace(0, 1, len(shares)), shares)
    np.testing.assert_allclose(found["curve"], expected, atol=1e-6)
    # Equation (8): twice the area between curve and diagonal.
    area = 1 - 2 * trapezoid(shares, np.linspace(0, 1, len(shares)))
    assert measure_concentration(sample(scores), "ce")["gini"] == pytest.approx(area, abs=1e-9)


@given(values, st.randoms())
def test_top_positions_and_their_overlap_are_those_of_sorted_pairs(scores, random):
    entropies = random.sample(scores, len(scores))
    one = sample(scores, entropies)
    for percent in (1, 2, 5, 10, 20, 30, 50):
        assert set(np.flatnonzero(one.top("ce", percent))) == top_set(scores, percent)
    if not any(np.float32(scores) > 0):
        assert measure_position(one, "ce") is None and measure_overlap(one, "ce") is None
        return
    places = [i * 20 // len(scores) for i in top_set(scores, 1)]
    assert measure_position(one, "ce")["counts"].tolist() == [places.count(b) for b in range(20)]
    pairs = [(top_set(scores, p), top_set(entropies, p)) for p in (1, 2, 5, 10, 20, 30, 50)]
    assert measure_overlap(one, "ce")["iou"] == pytest.approx([len(a & b) / len(a | b) for a, b in pairs])


def test_the_signal_is_the_mean_of_the_100_largest():
    x = np.random.default_rng(0).exponential(size=250).astype(np.float32)
    assert measure_failure(sample(x), "ce")["signal_value"] == pytest.approx(np.sort(x)[-100:].mean(dtype=float))
    assert measure_failure(sample(x[:30]), "ce")["signal_value"] == pytest.approx(x[:30].mean(dtype=float))
    x[0] = np.inf  # a donor that rules a token out
    assert np.isfinite(measure_failure(sample(x), "ce")["signal_value"])


labelled = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5), st.booleans()), min_size=2, max_size=60)


@given(labelled)
def test_auroc_of_pairs_is_scikit_learns(rows):
    problems, signal, incorrect = (np.array(column) for column in zip(*rows, strict=True))
    pairs = count_pairs(problems, signal.astype(float), incorrect)
    assert (pairs.positive.sum(), pairs.negative.sum()) == (incorrect.sum(), (~incorrect).sum())
    if 0 < incorrect.sum() < len(rows):
        assert pairs.auroc() == pytest.approx(roc_auc_score(incorrect, signal))
    inside = [
        (x > y) + (x == y) / 2
        for p, x, wrong in rows for q, y, other in rows if p == q and wrong and not other
    ]  # fmt: skip
    assert pairs.within() == (pytest.approx(np.mean(inside)) if inside else None)


def test_the_bootstrap_of_auroc_is_that_of_rows_drawn_by_problem(monkeypatch):
    rng = np.random.default_rng(3)
    problems, signal = np.repeat(np.arange(12), 4), rng.normal(size=48)
    incorrect = signal + rng.normal(size=48) > 0
    monkeypatch.setattr(pooling, "RESAMPLES", 30)
    found = bootstrap_auroc(count_pairs(problems, signal, incorrect), "t")["auroc"]
    for weights, value in zip(pooling.draw_weights(12, "t"), found, strict=True):
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
    assert cross_validated_accuracy(problems * 5, signal, incorrect) is None


def test_one_class_has_no_auroc_and_no_interval():
    frame = pl.DataFrame(
        {"task": "t", "doc_id": [0, 1, 2], "sample": 0, "score": "ce", "signal_value": [1.0, 2, 3], "length": 9.0}
    )
    row, length, mean, _ = tabulate_failure(frame.with_columns(correct=pl.lit(True))).to_dicts()
    assert length["signal"] == "length"
    assert (row["auroc"], row["low"], row["accuracy"], row["majority"]) == (None, None, 1.0, 1.0)
    assert mean["auroc"] is None and mean["task"] == "mean"


def plant_failures(signals, lengths, hard=0.5):
    """Samples of 40 problems, half of them hard; `signals` and `lengths` are functions of (hard, incorrect)."""
    rng, rows = np.random.default_rng(0), []
    for doc in range(40):
        for j in range(8):
            wrong = bool(rng.random() < (0.5 + hard / 2 if doc % 2 else 0.5 - hard / 2))
            length = lengths(doc % 2, wrong) + rng.normal()
            for name, signal in signals.items():
                value = signal(doc % 2, wrong, length) + rng.normal()
                rows.append(("takeover_gsm8k", doc, j, name, value, float(length), not wrong))
    names = ["task", "doc_id", "sample", "score", "signal_value", "length", "correct"]
    return {row["signal"]: row for row in tabulate_failure(pl.DataFrame(rows, schema=names, orient="row")).to_dicts()}


def test_a_signal_of_length_alone_is_no_better_than_length():
    """Scores that grow with the text, where wrong texts are longer: a high AUROC that says nothing."""
    signals = {"ce": lambda hard, wrong, length: length, "entropy": lambda hard, wrong, length: 0}
    found = plant_failures(signals, lambda hard, wrong: 4 * wrong)
    assert found["ce"]["auroc"] > 0.9 and found["length"]["auroc"] > found["ce"]["auroc"]
    assert found["ce"]["minus_length"] == pytest.approx(found["ce"]["auroc"] - found["length"]["auroc"])
    assert found["ce"]["minus_length_high"] < 0 < found["ce"]["minus_entropy_low"]
    assert found["length"]["minus_length"] is None


def test_a_signal_of_difficulty_alone_tells_nothing_within_problems():
    signals = {
        "ce": lambda hard, wrong, length: 4 * hard,
        "entropy": lambda hard, wrong, length: 2 * wrong,
    }
    found = plant_failures(signals, lambda hard, wrong: 0)
    assert found["ce"]["auroc"] > 0.7
    assert found["ce"]["within_low"] < 0.5 < found["ce"]["within_high"] < 0.62
    assert found["entropy"]["within"] == pytest.approx(0.92, abs=0.04) and found["entropy"]["within_low"] > 0.85


def test_two_signals_of_the_same_worth_do_not_differ():
    signals = dict.fromkeys(("ce", "entropy"), lambda hard, wrong, length: 2 * wrong)
    found = plant_failures(signals, lambda hard, wrong: 0)
    assert found["ce"]["minus_entropy_low"] < 0 < found["ce"]["minus_entropy_high"]
    assert found["ce"]["minus_entropy_high"] - found["ce"]["minus_entropy_low"] < 0.12
    assert found["ce"]["minus_length_low"] > 0.2


def test_the_null_of_flips_is_that_of_a_second_seed():
    """340 problems as hard as those of the paper for Qwen3-0.6B-Base: expected from one run, and counted in another."""
    beta, rng = table3()[0, "Math500"], np.random.default_rng(1)
    counted, expected = [], []
    for _ in range(20):
        chances = rng.beta(beta.a, beta.b, 340)
        rows = [
            (run, run, None, None, "takeover_math500", doc, j, j < right, 9, 0)
            for run in ("base", "again", "guided")
            for doc, right in enumerate(rng.binomial(8, chances))
            for j in range(8)
        ]
        samples = outcomes(rows)
        (row,) = (
            tabulate_flips(samples.filter(pl.col("run") != "again"), "base").filter(task="takeover_math500").to_dicts()
        )
        assert row["null"] == "expected"
        expected.append((row["null_rescued"], row["null_harmed"]))
        table = tabulate_flips(samples, "base", ["again"])
        both = {row["run"]: row for row in table.to_dicts() if row["task"] == "mean"}
        assert (both["guided"]["null"], both["again"]["null"]) == ("again", "expected")
        assert both["guided"]["null_harmed"] == both["again"]["harmed"]
        counted.append((both["again"]["rescued"], both["again"]["harmed"]))
    np.testing.assert_allclose(np.mean(expected, axis=0), np.mean(counted, axis=0), rtol=0.12)
    assert 20 < np.mean(counted) < 50  # a review found 29 of 340


def test_intervals_are_of_problems_whose_samples_stay_together(monkeypatch):
    monkeypatch.setattr(pooling, "RESAMPLES", 4000)
    rng = np.random.default_rng(0)
    effects = rng.normal(size=40)
    low, high = pooling.interval(pooling.bootstrap_mean(np.arange(40).repeat(8), effects.repeat(8), "t"))
    wide = 2 * 1.96 * effects.std() / np.sqrt(40)
    assert high - low == pytest.approx(wide, rel=0.08)
    assert pooling.interval(pooling.bootstrap_mean(np.zeros(8), effects[:8], "t")) == (None, None)


@given(st.integers(0, 30), st.integers(0, 30))
def test_the_sign_test_is_exact(rescued, harmed):
    n = rescued + harmed
    expected = min(1.0, 2 * binom.cdf(min(rescued, harmed), n, 0.5)) if n else 1.0
    assert sign_test(rescued, harmed) == pytest.approx(expected)


def outcomes(rows):
    names = ["run", "policy", "score", "nominal", "task", "doc_id", "sample", "correct", "tokens", "takeovers"]
    return pl.DataFrame(rows, schema=names, orient="row")


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
    of_three = {
        (row["task"], row["run"]): row for row in tabulate_budget(samples.filter(pl.col("sample") < 3)).to_dicts()
    }
    assert all(row["k"] == 3 for row in of_three.values())
    assert of_three["mean", "new"]["pass8"] == pytest.approx(2 / 3) and budget["mean", "new"]["k"] == 8
    rates = tabulate_rates(samples).filter(task="takeover_gsm8k", run="new")
    assert rates.select("doc_id", "realized_rate", "tokens").rows() == [(0, 0, 80), (1, 1 / 11, 88), (2, 2 / 12, 96)]
    flips = {row["task"]: row for row in tabulate_flips(samples, "base").to_dicts()}
    assert [flips["takeover_gsm8k"][name] for name in COLUMNS["flips"][:6]] == ["takeover_gsm8k", "new", 3, 1, 1, 1.0]
    assert [flips["mean"][name] for name in ("problems", "rescued", "harmed")] == [6, 2, 2]


def test_budget_has_the_intervals_of_the_leaderboard():
    """At 0 of 240 a bootstrap of problems knows nothing: [0, 0]."""
    rows = [("base", "base", None, None, "takeover_aime24", doc, j, False, 9, 0) for doc in range(30) for j in range(8)]
    row, mean = tabulate_budget(outcomes(rows)).to_dicts()
    expected = mean_interval(np.zeros(30))
    assert (
        (row["acc_low"], row["acc_high"]) == (row["pass8_low"], row["pass8_high"]) == (0, pytest.approx(expected.high))
    )
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
    ranks = tabulate_ranks(make_frame([{"task": "t", "run": "r", **measure_ranks(one)}] * 2))
    assert dict(ranks.select("rank", "takeovers").iter_rows()) == {
        "1": 0, "2": 0, "3": 2, "4-10": 2, "11-100": 0, ">100": 2,
    }  # fmt: skip
    measured = make_frame([{"task": "t", "run": "r", "direction": "forward", **measure_cross(one, 0.15)}])
    acc = pl.DataFrame({"task": "t", "run": "r", "acc": 0.5, "acc_host": 0.25, "acc_donor": [None]})
    (row,) = tabulate_cross(measured, acc, 0.15).to_dicts()
    assert list(row) == list(COLUMNS["cross"])
    assert (row["changed"], row["changed_share"]) == (3, 0.5)  # one drew the host's own token, of one it is not known
    assert (row["near_share"], row["replaced"], row["replaced_share"], row["threshold"]) == (0.5, 5, 5 / 6, 0.15)


def test_samples_that_go_on_in_the_next_table_are_put_together():
    rows = [("b" if n > 6 else "a", n // 3, 0, x) for n in range(9) for x in range(n + 1)]
    columns = zip(*rows, strict=True)
    whole = pa.table(dict(zip(("task", "doc_id", "sample", "token_id"), map(list, columns), strict=True)))
    expected = [(one.name, one.columns["token_id"].tolist()) for one in split_tables([whole], ["token_id"])]
    assert [name for name, _ in expected] == [("a", 0, 0), ("a", 1, 0), ("a", 2, 0), ("b", 2, 0)]
    for size in (1, 4, 100):
        pieces = [whole.slice(start, size) for start in range(0, len(whole), size)]
        assert [(one.name, one.columns["token_id"].tolist()) for one in split_tables(pieces, ["token_id"])] == expected


def test_tables_have_a_mean_over_the_mathematical_tasks():
    rng = np.random.default_rng(1)
    tasks = ("takeover_gsm8k", "takeover_amc23", "takeover_demo")
    samples = [
        sample(rng.exponential(size=120) ** (2 + i), rng.exponential(size=120), (task, doc, j))
        for i, task in enumerate(tasks)
        for doc in range(4)
        for j in range(2)
    ]
    samples.append(sample(np.zeros(50), np.zeros(50), ("takeover_demo", 9, 0)))
    for name in ("concentration", "lorenz", "position", "overlap"):
        table = analyse(name, samples, ["ce"])
        assert tuple(table.select(COLUMNS[name]).columns) == COLUMNS[name]
        means = table.filter(pl.col("task") == "mean")
        assert means.is_empty() == (name == "lorenz")
    table = {row["task"]: row for row in analyse("concentration", samples, ["ce"]).to_dicts()}
    assert table["mean"]["gini"] == pytest.approx(np.mean([table[task]["gini"] for task in tasks[:2]]))
    assert (table["takeover_demo"]["samples"], table["takeover_demo"]["skipped"]) == (8, 1)
    assert all(row["low"] < row["gini"] < row["high"] for row in table.values())
    position = analyse("position", samples, ["ce"]).filter(pl.col("task") == "takeover_gsm8k")
    assert position["density"].mean() == pytest.approx(1) and position["tokens"].sum() == 8 * 2
