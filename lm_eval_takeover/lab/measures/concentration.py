"""How unevenly scores are spread over the tokens of a sample, and where the largest stand (section 4.1, Figure 2)."""

from typing import Any

import numpy as np
import polars as pl

from lm_eval_takeover.lab.measures.pooling import MEAN, pool_ratios, tabulate_ratios
from lm_eval_takeover.lab.measures.tokens import ENTROPY, SampleTokens, ceil_percent

SHARES = (1, 5, 8)  # percent of a sample's tokens
GRID = 100  # steps of the Lorenz curve
BINS = 20  # of places in a sample
PERCENTS = (1, 2, 5, 10, 20, 30, 50)


def measure_concentration(sample: SampleTokens, score: str) -> dict[str, Any]:
    """Equation (9), `G = 2 sum(i s_(i)) / (n sum s) - (n + 1) / n`, and the mass of the largest scores.

    `sums` has both, and whether the sample is skipped because its scores have no mass.
    """
    if not sample.has_mass(score):
        return {"sums": np.array([0.0] * (1 + len(SHARES)) + [1.0]), "samples": 0}
    sums, n = sample.cumulative(score), len(sample)
    total = sums[-1]
    weighted = (n + 1) * total - sums.sum()  # sum of i s_(i)
    tops = (1 - sums[n - ceil_percent(n, percent)] / total for percent in SHARES)
    return {"sums": np.array([2 * weighted / (n * total) - (n + 1) / n, *tops, 0.0]), "samples": 1}


def tabulate_concentration(measured: pl.DataFrame) -> pl.DataFrame:
    """The mean Gini over samples by task and score, with its interval, and how much lies in the top 1, 5 and 8 %."""
    rows = []
    for (task, score), ratio in pool_ratios(measured, "sums", "samples"):
        row = {"task": task, "score": score, "samples": int(ratio.below[0]), "skipped": int(ratio.above[-1])}
        row |= ratio.estimates.describe(0, "gini", "low", "high")
        for place, percent in enumerate(SHARES, 1):
            row |= ratio.estimates.describe(place, f"top{percent}")
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def measure_lorenz(sample: SampleTokens, score: str) -> dict[str, Any] | None:
    """Equation (7) at 0, 0.01 … 1 of the tokens, linear between; None without mass."""
    if not sample.has_mass(score):
        return None
    sums = sample.cumulative(score)
    places = np.arange(GRID + 1) * (len(sample) / GRID)
    curve = np.interp(places, np.arange(len(sums)), sums) / sums[-1]
    return {"curve": curve.astype(np.float32), "samples": 1}


def tabulate_lorenz(measured: pl.DataFrame) -> pl.DataFrame:
    """Figure 2a: the mean curve over samples by task and score."""
    labels = [{"share_of_tokens": place / GRID} for place in range(GRID + 1)]
    return tabulate_ratios(measured, "curve", "samples", labels, value="share_of_score").filter(pl.col("task") != MEAN)


def measure_position(sample: SampleTokens, score: str) -> dict[str, Any] | None:
    """How many of the top 1 % positions lie at `t / n` in each of 20 equal bins, and on average; None without mass or peaks."""
    if not (sample.has_mass(score) and sample.has_peaks(score)):
        return None
    places = np.flatnonzero(sample.top(score, 1)) * BINS // len(sample)
    return {"counts": np.bincount(places, minlength=BINS).astype(np.int32), "even": len(places) / BINS}


def tabulate_position(measured: pl.DataFrame) -> pl.DataFrame:
    """Figure 2b: density by bin (1 is uniform) over all top positions of a task, and their number in `tokens`."""
    labels = [{"bin": place, "left": place / BINS, "right": (place + 1) / BINS} for place in range(BINS)]
    return tabulate_ratios(measured, "counts", "even", labels, value="density", count="above")


def measure_overlap(sample: SampleTokens, score: str) -> dict[str, Any] | None:
    """Intersection over union of the top sets by this score and by the base's entropy; None where either has no mass or peaks."""
    if not all(sample.has_mass(name) and sample.has_peaks(name) for name in (score, ENTROPY)):
        return None
    ours, entropy = sample.tops(score, PERCENTS), sample.tops(ENTROPY, PERCENTS)
    shared, sizes = (ours & entropy).sum(axis=1), ours.sum(axis=1)
    return {"iou": shared / (2 * sizes - shared), "samples": 1}


def tabulate_overlap(measured: pl.DataFrame) -> pl.DataFrame:
    """Figure 2c: the mean over samples at each size of the sets, beside `p / (200 - p)`, that of independent large sets."""
    labels = [{"top_percent": percent, "chance": percent / (200 - percent)} for percent in PERCENTS]
    return tabulate_ratios(measured, "iou", "samples", labels, value="iou")
