"""Where in a sample the largest scores stand, and how far those of two scores coincide (Figures 2b and 2c)."""

from typing import Any

import numpy as np
import polars as pl

from lm_eval_takeover.analysis.pooling import add_mean_rows
from lm_eval_takeover.analysis.tokens import ENTROPY, SampleTokens

BINS = 20
PERCENTS = (1, 2, 5, 10, 20, 30, 50)


def measure_position(sample: SampleTokens, score: str) -> dict[str, Any] | None:
    """How many of the top 1 % positions lie at `t / n` in each of 20 equal bins; None without mass."""
    if not sample.has_mass(score):
        return None
    places = np.flatnonzero(sample.top(score, 1)) * BINS // len(sample)
    return {"counts": np.bincount(places, minlength=BINS).astype(np.int32)}


def tabulate_position(measured: pl.DataFrame) -> pl.DataFrame:
    """Figure 2b: density by bin (1 is uniform) over all top positions of a task, and their number in `tokens`."""
    parts = []
    for (task, score), group in measured.group_by(["task", "score"], maintain_order=True):
        counts = group["counts"].to_numpy().sum(axis=0, dtype=np.int64)
        edges = np.arange(BINS + 1) / BINS
        part = {"bin": np.arange(BINS), "left": edges[:-1], "right": edges[1:]}
        part |= {"density": counts * BINS / counts.sum(), "tokens": counts}
        parts.append(pl.DataFrame({"task": [task] * BINS, "score": [score] * BINS, **part}))
    return add_mean_rows(pl.concat(parts), ["score", "bin", "left", "right"], ["density"], ["tokens"])


def measure_overlap(sample: SampleTokens, score: str) -> dict[str, Any] | None:
    """Intersection over union of the top sets by this score and by the base's entropy; None where either has no mass."""
    if not (sample.has_mass(score) and sample.has_mass(ENTROPY)):
        return None
    ours, entropy = sample.tops(score, PERCENTS), sample.tops(ENTROPY, PERCENTS)
    shares = []
    for one, both in zip(ours, ours & entropy, strict=True):
        shared, size = np.count_nonzero(both), np.count_nonzero(one)
        shares.append(shared / (2 * size - shared))
    return {"iou": np.array(shares)}


def tabulate_overlap(measured: pl.DataFrame) -> pl.DataFrame:
    """Figure 2c: the mean over samples at each size of the sets, beside `p / (200 - p)`, that of independent large sets."""
    parts = []
    for (task, score), group in measured.group_by(["task", "score"], maintain_order=True):
        part = {
            "top_percent": PERCENTS,
            "iou": group["iou"].to_numpy().mean(axis=0),
            "chance": [percent / (200 - percent) for percent in PERCENTS],
        }
        parts.append(pl.DataFrame({"task": [task] * len(PERCENTS), "score": [score] * len(PERCENTS), **part}))
    return add_mean_rows(pl.concat(parts), ["score", "top_percent", "chance"], ["iou"], [])
