"""Intervals are over problems, whose samples stay together."""

import numpy as np
import polars as pl
import pytest

from lm_eval_takeover.lab.analysis import pooling


def test_intervals_are_of_problems_whose_samples_stay_together():
    effects = np.random.default_rng(0).normal(size=40)

    def measure(problems, values):
        frame = pl.DataFrame({"task": "t", "score": "ce", "doc_id": problems, "x": values, "n": 1})
        return dict(pooling.pool_ratios(frame, "x", "n"))["t", "ce"].estimates.describe(0, "x", "low", "high")

    found = measure(np.arange(40).repeat(8), effects.repeat(8))
    assert found["high"] - found["low"] == pytest.approx(2 * 1.96 * effects.std() / np.sqrt(40), rel=0.08)
    assert measure(np.zeros(8, int), effects[:8]) == {"x": pytest.approx(effects[:8].mean()), "low": None, "high": None}
