"""Samples of scores files, and where scores are large: Gini and Lorenz by independent calculations, planted rollouts."""

import numpy as np
import polars as pl
import pytest
import torch
from helpers.analyses import analyse, write_scores
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import trapezoid

from lm_eval_takeover.lab.measures import catalogue, pooling
from lm_eval_takeover.lab.measures.catalogue import (
    COLUMNS,
    EDGES,
    MANY,
    MEASURES,
    Measuring,
    measure_concentration,
    measure_files,
    measure_overlap,
    measure_position,
)
from lm_eval_takeover.lab.score_files import SampleTokens, ceil_percent, read_scored_samples
from lm_eval_takeover.method.reading import COMPARED, PairReading, compare

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
    found = catalogue.measure_lorenz(sample(scores), "ce")
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


TASKS = ("takeover_gsm8k", "takeover_amc23")


@pytest.fixture(scope="module")
def planted():
    """Rollouts of 200 tokens: 2 forks, the likeliest by js, where the guide wants the base's third token, and else agrees."""
    rng, samples = np.random.default_rng(0), []
    for task, doc, number in ((t, d, n) for t in TASKS for d in range(12) for n in range(4)):
        js, rank = rng.uniform(0, 0.0008, 200).astype(np.float32), np.ones(200, np.int32)
        forks, some = rng.choice(200, 2, replace=False), rng.choice(200, 20, replace=False)
        js[some], js[forks] = 0.05, 0.55
        rank[forks] = 3
        columns = {"token_id": np.zeros(200, int), "js": js, "guide_top_rank": rank}
        columns |= {"shared_top5": np.where(rank == 1, 5, 2), "shared_top10": np.where(rank == 1, 10, 3)}
        columns |= {"base_entropy": np.where(js > 0.5, 2.0, 0.25), "guide_entropy": np.where(js > 0.5, 1.0, 0.125)}
        samples.append(SampleTokens((task, doc, number), columns))
    return samples


def test_near_zero_shares_are_those_that_were_planted(planted):
    table = analyse("near", planted, ["js"])
    assert tuple(table.columns) == COLUMNS["near"]
    shares = {(row["task"], row["threshold"]): row for row in table.to_dicts()}
    for task in (*TASKS, "mean"):
        overlap = 1 - shares[task, 0.1]["share"]
        assert overlap == pytest.approx(2 / 200)
        assert 0.885 < shares[task, 0.001]["share"] == shares[task, 0.01]["share"] < 0.9
        assert shares[task, 0.01]["low"] < shares[task, 0.01]["share"] < shares[task, 0.01]["high"]
    assert shares["mean", 0.1]["tokens"] == 2 * shares[TASKS[0], 0.1]["tokens"] == 2 * 12 * 4 * 200


def test_the_guides_first_choice_is_found_where_it_was_planted(planted):
    table = analyse("choices", planted, ["js"])
    assert tuple(table.columns) == COLUMNS["choices"]
    found = {(row["set"], row["measure"]): row for row in table.filter(pl.col("task") == "mean").to_dicts()}
    assert [found["all", name]["value"] for name in MEASURES] == pytest.approx([0.99, 1, 1, 0.994, 0.993])
    assert [found["peaks", name]["value"] for name in MEASURES] == pytest.approx([0, 1, 1, 0.4, 0.3])
    assert (found["all", "rank_1"]["tokens"], found["peaks", "rank_1"]["tokens"]) == (96 * 200, 96 * 2)
    assert found["peaks", "top_5"]["low"] is found["peaks", "top_5"]["high"] is None  # all resamples agree


def test_entropies_stand_in_the_bin_of_their_js(planted):
    table = analyse("entropy_by_js", planted, ["js", "entropy"][:1])
    assert tuple(table.columns) == COLUMNS["entropy_by_js"]
    rows = [row for row in table.to_dicts() if row["task"] == "mean"]
    assert len(rows) == len(EDGES) - 1 and rows[-1]["right"] == pytest.approx(np.log(2))
    filled = {row["left"]: (row["base_entropy"], row["guide_entropy"]) for row in rows if row["tokens"]}
    assert filled == {0: (0.25, 0.125), 0.03: (0.25, 0.125), 0.5: (2, 1)}
    assert sum(row["tokens"] for row in rows) == 96 * 200
    empty = next(row for row in rows if not row["tokens"])
    assert (empty["base_entropy"], empty["base_entropy_low"]) == (None, None)


def test_ranks_and_shared_tokens_are_those_of_sorted_logits():
    generator = torch.Generator().manual_seed(0)
    base, guide = (torch.randn(7, 40, generator=generator) for _ in range(2))
    found = dict(zip(COMPARED, compare(PairReading(base, guide, torch.zeros(7, dtype=torch.long))).unbind(-1), strict=True))
    for row in range(7):
        ours, theirs = (logits[row].argsort(descending=True).tolist() for logits in (base, guide))
        assert found["guide_top_rank"][row] == ours.index(theirs[0]) + 1
        for size in (5, 10):
            assert found[f"shared_top{size}"][row] == len(set(ours[:size]) & set(theirs[:size]))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_the_samples_of_a_file_are_told_apart(tmp_path_factory, lengths):
    found = list(read_scored_samples([write_scores(tmp_path_factory.getbasetemp() / "cut.parquet", lengths)], ["ce"]))
    assert [one.name[1] for one in found] == list(range(len(lengths)))
    expected = [list(range(sum(lengths[:n]), sum(lengths[: n + 1]))) for n in range(len(lengths))]
    assert [one.columns["token_id"].tolist() for one in found] == expected


def test_intervals_are_of_problems_whose_samples_stay_together():
    effects = np.random.default_rng(0).normal(size=40)

    def measure(problems, values):
        frame = pl.DataFrame({"task": "t", "score": "ce", "doc_id": problems, "x": values, "n": 1})
        return dict(pooling.pool_ratios(frame, "x", "n"))["t", "ce"].estimates.describe(0, "x", "low", "high")

    found = measure(np.arange(40).repeat(8), effects.repeat(8))
    assert found["high"] - found["low"] == pytest.approx(2 * 1.96 * effects.std() / np.sqrt(40), rel=0.08)
    assert measure(np.zeros(8, int), effects[:8]) == {"x": pytest.approx(effects[:8].mean()), "low": None, "high": None}


def test_several_processes_measure_what_one_does(tmp_path):
    paths = [write_scores(tmp_path / f"{n}.parquet", [40, 30, 50]) for n in range(5)]
    places = {name: [name] for name in [("a", 0, 0), ("a", 1, 1), ("b", 2, 0)]}
    todo = Measuring(["concentration", "overlap"], ["ce", "entropy"], places)
    alone, together = (list(measure_files(todo, paths, tokens)) for tokens in (600, MANY))
    assert len(alone) == len(together) == 5
    for one, other in zip(alone, together, strict=True):
        assert one.keys() == other.keys()
        assert all(one[name].equals(other[name]) for name in one)
