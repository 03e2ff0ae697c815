"""From rows per sample to rows per task: intervals by bootstrap over problems, and the row `mean` over tasks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lm_eval_takeover.results.summary import choose_averaged

MEAN = "mean"
RESAMPLES = 2000
_TAIL = 0.025  # on either side: 95 %

Values = NDArray[np.float64]
Keys = Sequence[str]
Key = tuple[Any, ...]
Labels = Sequence[Mapping[str, Any]]
_SCORE = ("score",)


@lru_cache(maxsize=8)
def draw_weights(problems: int, name: str) -> Values:
    """How often each problem is in each resample: `[RESAMPLES, problems]`. The same for one name, others are independent.

    NaN for a single problem, whose resamples say nothing of others.
    """
    if problems < 2:
        return np.full((RESAMPLES, problems), np.nan)
    seed = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
    return np.random.default_rng(seed).multinomial(problems, np.full(problems, 1 / problems), RESAMPLES).astype(float)


@dataclass(frozen=True, slots=True)
class Estimates:
    """Values `[k]` and their replicates `[RESAMPLES, k]`; NaN where there is none, as for a single problem."""

    value: Values
    replicates: Values

    def describe(self, place: int, name: str, low: str | None = None, high: str | None = None) -> dict[str, Any]:
        """The value at `place`, with its interval if `low` and `high` are names; null where it is no number."""
        value = float(self.value[place])
        described = {name: None if np.isnan(value) else value}
        if low is not None and high is not None:
            described |= dict(zip((low, high), interval(self.replicates[:, place]), strict=True))
        return described

    def __sub__(self, other: "Estimates") -> "Estimates":
        """Paired: replicate by replicate."""
        return Estimates(self.value - other.value, self.replicates - other.replicates)

    @staticmethod
    def average(parts: Sequence["Estimates"]) -> "Estimates":
        """The unweighted mean over tasks, whose problems are independent; NaN where a task has none."""
        value = np.mean([part.value for part in parts], axis=0)
        return Estimates(value, np.asarray(sum(part.replicates for part in parts) / len(parts)))


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two sums over samples, each `[k]`."""

    above: Values
    below: Values
    estimates: Estimates


def pool_ratios(measured: pl.DataFrame, above: str, below: str, keys: Keys = _SCORE) -> Iterator[tuple[Key, Ratio]]:
    """The ratio of two columns, numbers or arrays, by task and `keys`; of `mean` the unweighted mean over tasks."""
    ratios: dict[Key, Ratio] = {}
    for (task, *rest), group in measured.group_by(["task", *keys], maintain_order=True):
        names, index = np.unique(group["doc_id"].to_numpy(), return_inverse=True)
        sums = [sum_by(group[column].to_numpy(), index, len(names)) for column in (above, below)]
        with np.errstate(invalid="ignore", divide="ignore"):
            weights = draw_weights(len(names), str(task))
            totals = [part.sum(axis=0) for part in sums]
            estimates = Estimates(totals[0] / totals[1], (weights @ sums[0]) / (weights @ sums[1]))
        ratios[task, *rest] = Ratio(totals[0], np.broadcast_to(totals[1], totals[0].shape), estimates)
    tasks = choose_averaged(list(dict.fromkeys(str(key[0]) for key in ratios)))
    for key in dict.fromkeys(key[1:] for key in ratios):
        inside = [ratios[task, *key] for task in tasks if (task, *key) in ratios]
        if inside:
            above_all, below_all = (np.sum([getattr(r, end) for r in inside], axis=0) for end in ("above", "below"))
            ratios[MEAN, *key] = Ratio(above_all, below_all, Estimates.average([r.estimates for r in inside]))
    yield from ratios.items()


def tabulate_ratios(
    frame: pl.DataFrame, above: str, below: str, labels: Labels, value: str, count: str = "below", keys: Keys = _SCORE
) -> pl.DataFrame:
    """A row by task, `keys` and label: the ratio of two columns as `value, low, high`, and one of its sums as `tokens`."""
    rows = [
        dict(zip(("task", *keys), key, strict=True))
        | {**label, "tokens": round(float(getattr(ratio, count)[place]))}
        | ratio.estimates.describe(place, value, "low", "high")
        for key, ratio in pool_ratios(frame, above, below, keys)
        for place, label in enumerate(labels)
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


def sum_by(values: NDArray[Any], index: NDArray[Any], count: int) -> Values:
    """Sums of rows by problem: `[problems, k]`, of single numbers `[problems, 1]`."""
    rows = values.reshape(len(values), -1).astype(np.float64)
    return np.stack([np.bincount(index, column, count) for column in rows.T], axis=1)


def interval(replicates: Values) -> tuple[float | None, float | None]:
    """The 95 % percentile interval, over the replicates that are numbers; null where none is, or where all are equal.

    Equal ones say nothing of other problems: an AUROC of 1 of two problems is 1 in every resample.
    """
    if np.isnan(replicates).all():
        return None, None
    low, high = np.nanquantile(replicates, [_TAIL, 1 - _TAIL])
    return (float(low), float(high)) if low < high else (None, None)


def make_frame(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows as a table; arrays of numbers become a column of arrays."""
    columns: dict[str, Any] = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        columns[name] = np.stack(values) if isinstance(first, np.ndarray) else values
    return pl.DataFrame(columns)
