"""Gini and Lorenz by independent calculations, and where the largest scores stand."""

import numpy as np
import polars as pl
import pytest
from helpers.analyses import analyse
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import trapezoid

from lm_eval_takeover.lab.analysis import concentration
from lm_eval_takeover.lab.analysis.catalogue import COLUMNS
from lm_eval_takeover.lab.analysis.concentration import measure_concentration, measure_overlap, measure_position
from lm_eval_takeover.lab.analysis.tokens import SampleTokens, ceil_percent

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
    gini, *tops, skipped = found["sums"]
    assert (found["samples"], skipped) == ((1, 0) if x.sum() else (0, 1))
    if x.sum():
        assert gini == pytest.approx(np.abs(x[:, None] - x[None]).mean() / (2 * x.mean()), abs=1e-9)
        largest = [np.sort(x)[::-1][: len(top_set(scores, percent))].sum() for percent in (1, 5, 8)]
        assert tops == pytest.approx(np.array(largest) / x.sum(), abs=1e-9)


@given(values)
def test_the_lorenz_curve_encloses_the_gini_coefficient(scores):
    found = concentration.measure_lorenz(sample(scores), "ce")
    x = np.sort(np.array(scores, np.float32).astype(float))
    if not x.sum():
        assert found is None
        return
    shares = np.concatenate([[0], x.cumsum()]) / x.sum()
    expected = np.interp(np.linspace(0, 1, 101), np.linspace(0, 1, len(shares)), shares)
    np.testing.assert_allclose(found["curve"], expected, atol=1e-6)
    # Equation (8): twice the area between curve and diagonal.
    area = 1 - 2 * trapezoid(shares, np.linspace(0, 1, len(shares)))
    assert measure_concentration(sample(scores), "ce")["sums"][0] == pytest.approx(area, abs=1e-9)


@given(values, st.randoms())
def test_top_positions_and_their_overlap_are_those_of_sorted_pairs(scores, random):
    entropies = random.sample(scores, len(scores))
    one = sample(scores, entropies)
    for percent in (1, 2, 5, 10, 20, 30, 50):
        assert set(np.flatnonzero(one.top("ce", percent))) == top_set(scores, percent)
    largest = np.count_nonzero(np.float32(scores) == np.float32(max(scores)))
    if not any(np.float32(scores) > 0) or largest > ceil_percent(len(scores), 1):
        assert measure_position(one, "ce") is None and measure_overlap(one, "ce") is None
        return
    places = [i * 20 // len(scores) for i in top_set(scores, 1)]
    assert measure_position(one, "ce")["counts"].tolist() == [places.count(b) for b in range(20)]
    pairs = [(top_set(scores, p), top_set(entropies, p)) for p in (1, 2, 5, 10, 20, 30, 50)]
    assert measure_overlap(one, "ce")["iou"] == pytest.approx([len(a & b) / len(a | b) for a, b in pairs])


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
        assert (name == "lorenz") == ("mean" not in table["task"].to_list())
    table = {row["task"]: row for row in analyse("concentration", samples, ["ce"]).to_dicts()}
    assert table["mean"]["gini"] == pytest.approx(np.mean([table[task]["gini"] for task in tasks[:2]]))
    assert (table["takeover_demo"]["samples"], table["takeover_demo"]["skipped"]) == (8, 1)
    assert all(row["low"] < row["gini"] < row["high"] for row in table.values())
    position = analyse("position", samples, ["ce"]).filter(pl.col("task") == "takeover_gsm8k")
    assert position["density"].mean() == pytest.approx(1) and position["tokens"].sum() == 8 * 2
