"""The analyses by name: their columns, what is measured on one scored sample, and how samples are put together.

How unevenly scores are spread over the tokens of a sample, and where the largest stand (section 4.1, Figure 2).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import polars as pl

from lm_eval_takeover.lab.measures import outcomes, planning
from lm_eval_takeover.lab.measures.pooling import MEAN, describe, make_frame, pool_ratios, tabulate_ratios
from lm_eval_takeover.lab.sample_tokens import SampleTokens, ceil_percent
from lm_eval_takeover.runs.evidence import ENTROPY
from lm_eval_takeover.runs.parquet import NAME_COLUMNS, Name

SHARES = (1, 5, 8)  # percent of a sample's tokens
GRID = 100  # steps of the Lorenz curve
BINS = 20  # of places in a sample
PERCENTS = (1, 2, 5, 10, 20, 30, 50)


def measure_concentration(sample: SampleTokens, score: str) -> dict[str, Any]:
    """Equation (9), `G = 2 sum(i s_(i)) / (n sum s) - (n + 1) / n`, and the mass of the largest scores.

    `sums` has both, then 1 for a sample that is skipped because its scores have no mass, and 1 for any other.
    """
    if not sample.has_mass(score):
        return {"sums": np.array([0.0] * (1 + len(SHARES)) + [1.0, 0.0]), "samples": 0}
    sums, n = sample.cumulative(score), len(sample)
    total = sums[-1]
    weighted = (n + 1) * total - sums.sum()  # sum of i s_(i)
    tops = (1 - sums[n - ceil_percent(n, percent)] / total for percent in SHARES)
    return {"sums": np.array([2 * weighted / (n * total) - (n + 1) / n, *tops, 0.0, 1.0]), "samples": 1}


def tabulate_concentration(measured: pl.DataFrame) -> pl.DataFrame:
    """The mean Gini over samples by task and score, with its interval, and how much lies in the top 1, 5 and 8 %."""
    rows = []
    for (task, score), mean in pool_ratios(measured, "sums", "samples").items():
        row = {"task": task, "score": score, "samples": int(mean.counts[-1]), "skipped": int(mean.counts[-2])}
        row |= describe(mean.values[:, 0], "gini", "low", "high")
        for place, percent in enumerate(SHARES, 1):
            row |= describe(mean.values[:, place], f"top{percent}")
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
    places = np.flatnonzero(sample.tops(score, (1,))[0]) * BINS // len(sample)
    return {"counts": np.bincount(places, minlength=BINS).astype(np.int32), "even": len(places) / BINS}


def tabulate_position(measured: pl.DataFrame) -> pl.DataFrame:
    """Figure 2b: density by bin (1 is uniform) over all top positions of a task, and their number in `tokens`."""
    labels = [{"bin": place, "left": place / BINS, "right": (place + 1) / BINS} for place in range(BINS)]
    return tabulate_ratios(measured, "counts", "even", labels, value="density")


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


COLUMNS: Mapping[str, tuple[str, ...]] = {
    name: tuple(words.split())
    for name, words in {
        "concentration": "task score samples skipped gini low high top1 top5 top8",
        "lorenz": "task score share_of_tokens share_of_score low high",
        "position": "task score bin left right density low high tokens",
        "overlap": "task score top_percent iou low high chance",
        "planning": "task run set score class in_set of_set in_base of_base share_set share_base enrichment low high",
        "failure": "task signal samples auroc low high accuracy majority within within_low within_high "
        "minus_entropy minus_entropy_low minus_entropy_high minus_length minus_length_low minus_length_high",
        "signals": "task doc_id sample score value correct",
        "budget": "task run policy score nominal realized_rate acc acc_low acc_high pass8 pass8_low pass8_high k",
        "rates": "task run doc_id realized_rate tokens",
        "flips": "task run problems rescued harmed p_value null_rescued",
        "cross": "task run direction threshold near_share replaced replaced_share acc acc_host acc_donor changed changed_share",
        "examples": "task run rule doc_id sample position score problem text",
        "ranks": "task run rank takeovers share",
    }.items()
}


@dataclass(frozen=True, slots=True)
class SampleAnalysis:
    """What is measured on one sample by one score (None: left out), and the table of it."""

    measure: Callable[[SampleTokens, str], dict[str, Any] | None]
    tabulate: Callable[[pl.DataFrame], pl.DataFrame]


SCORED: Mapping[str, SampleAnalysis] = {
    "concentration": SampleAnalysis(measure_concentration, tabulate_concentration),
    "lorenz": SampleAnalysis(measure_lorenz, tabulate_lorenz),
    "position": SampleAnalysis(measure_position, tabulate_position),
    "overlap": SampleAnalysis(measure_overlap, tabulate_overlap),
    "planning": SampleAnalysis(planning.measure_peaks, planning.tabulate_planning),
    "failure": SampleAnalysis(outcomes.measure_failure, outcomes.tabulate_failure),
}


NamedTexts = Iterable[tuple[Sequence[Name], SampleTokens]]  # with the tasks' names of each: where two share it, both


def measure_texts(names: Sequence[str], scores: Iterable[str], texts: NamedTexts) -> dict[str, pl.DataFrame]:
    """By analysis a row per name of a text and score: `task, doc_id, sample, score` and what is measured."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for places, sample in texts:
        for name, score in product(names, scores):
            if (measured := SCORED[name].measure(sample, score)) is not None:
                named = (dict(zip(NAME_COLUMNS, place, strict=True)) for place in places)
                rows[name] += [{**place, "score": score, **measured} for place in named]
    return {name: make_frame(of).sort("task", maintain_order=True) for name, of in rows.items() if of}
