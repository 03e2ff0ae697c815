"""Samples of scores files: told apart, measured in one process or several, and pooled by problem."""

import numpy as np
import polars as pl
import pytest
from helpers.analyses import write_scores
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.lab.analysis import pooling
from lm_eval_takeover.lab.analysis.catalogue import MANY, Measuring, measure_files
from lm_eval_takeover.lab.analysis.tokens import read_scored_samples


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
