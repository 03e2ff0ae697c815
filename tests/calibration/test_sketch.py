"""The quantile sketch: exact while it can be, within its own bound beyond."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.calibration.sketch import QuantileSketch

QUANTILES = (0.5, 0.9, 0.95, 0.97, 0.99, 0.995, 0.999)


def rank_distance(values, answer, q):
    """How far, as a share of all values, the ranks of `answer` are from the one asked for."""
    rank = q * (len(values) - 1)
    below, through = (values < answer).sum(), (values <= answer).sum() - 1
    return max(below - rank, rank - through, 0) / len(values)


def test_all_scores_are_kept_up_to_the_capacity():
    values = np.random.default_rng(0).gamma(0.2, 1.0, 9_999).astype(np.float32)
    sketch = QuantileSketch(10_000)
    sketch.add(values)
    assert sketch.rank_error == 0
    quantiles, tails = sketch.quantiles_and_tails(QUANTILES)
    np.testing.assert_array_equal(quantiles, np.quantile(values.astype(np.float64), QUANTILES))
    for quantile, tail in zip(quantiles, tails, strict=True):
        assert tail == pytest.approx(values[values > quantile].astype(np.float64).mean(), rel=1e-12)


KINDS = st.sampled_from(["gamma", "few", "rising", "falling"])


@given(st.lists(st.integers(1, 400), min_size=1, max_size=30), st.integers(2, 64), KINDS, st.integers(0, 10))
def test_answers_are_scores_within_the_bound_of_their_rank(sizes, capacity, kind, seed):
    rng = np.random.default_rng(seed)
    values = {
        "gamma": rng.gamma(0.2, 1.0, sum(sizes)),
        "few": rng.integers(0, 5, sum(sizes)),
        "rising": np.arange(sum(sizes)),
        "falling": -np.arange(sum(sizes)),
    }[kind].astype(np.float32)
    sketch, parts = QuantileSketch(capacity), np.split(values, np.cumsum(sizes)[:-1])
    for part in parts:
        sketch.add(part)
    assert sketch.count == len(values)
    assert sketch.total == pytest.approx(values.sum(dtype=np.float64), rel=1e-9, abs=1e-9)
    answers, _ = sketch.quantiles_and_tails(QUANTILES)
    for q, answer in zip(QUANTILES, answers, strict=True):
        # one rank more where the answer lies between two neighbours
        assert rank_distance(values, answer, q) <= sketch.rank_error + 1 / len(values) + 1e-9


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_is_refused(bad):
    with pytest.raises(ValueError, match="1 of 2 scores are NaN or infinite"):
        QuantileSketch().add([1.0, bad])


@pytest.mark.slow
def test_ten_million_scores_stay_within_a_thousandth_of_rank_and_a_few_megabytes():
    """`benchmarks/calibration.py --only sketch` prints the same for 10^8."""
    sketch, rng = QuantileSketch(), np.random.default_rng(0)
    tracemalloc.start()
    for _ in range(100):
        sketch.add(rng.gamma(0.2, 1.0, 10**5))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0 < sketch.rank_error < 0.001
    assert peak < 50 * 2**20
    ((tau,), _), rng = sketch.quantiles_and_tails([0.97]), np.random.default_rng(0)
    share = np.mean([(rng.gamma(0.2, 1.0, 10**5).astype(np.float32) > tau).mean() for _ in range(100)])
    assert abs(share - 0.03) <= sketch.rank_error + 1e-6
