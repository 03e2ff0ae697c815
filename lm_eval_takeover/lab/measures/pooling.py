"""From rows per sample to rows per task: intervals by bootstrap over problems, and the row `mean` over tasks.

Estimates are arrays `[1 + RESAMPLES, k]`: values of the problems as they are, then the same of each resample. So the error of a
difference, a ratio or a mean of them is that of each row. They are NaN where there is none, as resamples of a single problem.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from lm_eval_takeover.results.statistics import Values
from lm_eval_takeover.results.summary import choose_averaged

MEAN = "mean"
RESAMPLES = 2000
_TAIL = 0.025  # on either side: 95 %

Keys = Sequence[str]
_SCORE = ("score",)


@lru_cache(maxsize=8)
def draw_weights(problems: int, name: str) -> Values:
    """How often each problem is there, and in each resample, the same for one name: `[1 + RESAMPLES, problems]`."""
    weights = np.full((1 + RESAMPLES, problems), np.nan)
    weights[0] = 1
    if problems > 1:
        seed = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
        weights[1:] = np.random.default_rng(seed).multinomial(problems, np.full(problems, 1 / problems), RESAMPLES)
    return weights


class Estimated(NamedTuple):
    """Estimates of a task, and the counts `[n]` that are behind them."""

    values: Values
    counts: Values


def describe(estimates: Values, name: str, low: str | None = None, high: str | None = None) -> dict[str, Any]:
    """The value of `[1 + RESAMPLES]`, with its interval if `low` and `high` are names; null where it is no number."""
    value = float(estimates[0])
    ends = zip((low, high), interval(estimates[1:]), strict=True)
    return {name: None if np.isnan(value) else value} | {end: bound for end, bound in ends if end is not None}


def divide(above: Values, below: Values) -> Values:
    """NaN where `below` is not above 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(below > 0, above / below, np.nan)


def sum_samples(measured: pl.DataFrame, *columns: str) -> list[Values]:
    """Sums of columns, numbers or arrays, over all samples. Problems are drawn within their task, for all columns the same."""
    sums: list[Any] = [0.0] * len(columns)
    for (task,), group in measured.group_by(["task"], maintain_order=True):
        names, index = np.unique(group["doc_id"].to_numpy(), return_inverse=True)
        weights = draw_weights(len(names), str(task))
        for place, name in enumerate(columns):
            rows = group[name].to_numpy().reshape(len(group), -1)
            sums[place] += weights @ np.stack([np.bincount(index, column, len(names)) for column in rows.T], axis=1)
    return sums


def estimate_tasks(
    measured: pl.DataFrame, keys: Keys, estimate: Callable[[pl.DataFrame], Estimated]
) -> dict[tuple[Any, ...], Estimated]:
    """By task and `keys`; of `mean` the unweighted mean over tasks, whose problems are independent."""
    found = {key: estimate(group) for key, group in measured.group_by(["task", *keys], maintain_order=True)}
    tasks = choose_averaged(list(dict.fromkeys(str(key[0]) for key in found)))
    for key in dict.fromkeys(key[1:] for key in found):
        parts = [found[task, *key] for task in tasks if (task, *key) in found]
        if parts:
            values, counts = zip(*parts, strict=True)
            found[MEAN, *key] = Estimated(np.mean(values, axis=0), np.sum(counts, axis=0))
    return found


def pool_ratios(measured: pl.DataFrame, above: str, below: str, keys: Keys = _SCORE) -> dict[tuple[Any, ...], Estimated]:
    """The ratio of two columns, by task and `keys`. Its counts are the sums of the first column."""

    def estimate(group: pl.DataFrame) -> Estimated:
        sums = sum_samples(group, above, below)
        return Estimated(divide(*sums), sums[0][0])

    return estimate_tasks(measured, keys, estimate)


def tabulate_ratios(
    measured: pl.DataFrame, above: str, below: str, labels: Sequence[Mapping[str, Any]], value: str, keys: Keys = _SCORE
) -> pl.DataFrame:
    """A row by task, `keys` and label: the ratio of two columns as `value, low, high`, and the sum of the first as `tokens`."""
    rows = [
        dict(zip(("task", *keys), key, strict=True))
        | {**label, "tokens": round(float(ratio.counts[place]))}
        | describe(ratio.values[:, place], value, "low", "high")
        for key, ratio in pool_ratios(measured, above, below, keys).items()
        for place, label in enumerate(labels)
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


def interval(replicates: Values) -> tuple[float | None, float | None]:
    """The 95 % percentile interval, over the replicates that are numbers; null where none is, or where all are equal."""
    if np.isnan(replicates).all():
        return None, None
    low, high = np.nanquantile(replicates, [_TAIL, 1 - _TAIL])
    # Equal ones say nothing of other problems: an AUROC of 1 of two problems is 1 in every resample.
    return (float(low), float(high)) if low < high else (None, None)


def make_frame(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows as a table; arrays of numbers become a column of arrays."""
    columns: dict[str, Any] = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        columns[name] = np.stack(values) if isinstance(first, np.ndarray) else values
    return pl.DataFrame(columns)
