"""From rows per sample to rows per task: intervals by bootstrap over problems, and the row `mean` over tasks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lm_eval_takeover.results.runs import MATHEMATICAL

MEAN = "mean"
RESAMPLES = 2000
_TAIL = 0.025  # on either side: 95 %

Replicates = NDArray[np.float64]  # one value per resample


def averaged_tasks(tasks: Sequence[str]) -> list[str]:
    """The tasks that `mean` is over: the mathematical takeover tasks that are there; all tasks where none is."""
    mathematical = [task for task in tasks if task in MATHEMATICAL]
    return mathematical or list(tasks)


def draw_weights(problems: int, name: str) -> NDArray[np.float64]:
    """How often each problem is in each resample: `[RESAMPLES, problems]`. The same for one name, others are independent."""
    return _draw_weights(problems, name, RESAMPLES)


@lru_cache(maxsize=8)
def _draw_weights(problems: int, name: str, resamples: int) -> NDArray[np.float64]:
    seed = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
    return np.random.default_rng(seed).multinomial(problems, np.full(problems, 1 / problems), resamples).astype(float)


def bootstrap_mean(problems: NDArray[Any], values: NDArray[np.float64], name: str) -> Replicates | None:
    """The mean of samples' values over resampled problems, whose samples stay together; None for a single problem."""
    _, index = np.unique(problems, return_inverse=True)
    count = int(index.max()) + 1 if len(index) else 0
    if count < 2:
        return None
    weights = draw_weights(count, name)
    sums, sizes = np.bincount(index, values, count), np.bincount(index, minlength=count)
    return np.asarray((weights @ sums) / (weights @ sizes))


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of sums over samples, `[k]`: its value, the sum below, and its replicates `[RESAMPLES, k]` over problems."""

    value: Replicates
    of: NDArray[np.int64]
    replicates: Replicates | None

    def describe(self, place: int, name: str, low: str, high: str) -> dict[str, float | None]:
        """One of them with its interval; null where it is no number."""
        bounds = interval(None if self.replicates is None else self.replicates[:, place])
        value = float(self.value[place])
        return {name: None if np.isnan(value) else value} | dict(zip((low, high), bounds, strict=True))


def pool_ratios(
    measured: pl.DataFrame, keys: Sequence[str], above: str, below: str
) -> Iterator[tuple[tuple[Any, ...], Ratio]]:
    """The ratio of two columns, numbers or arrays, by task and `keys`; of `mean` the unweighted mean over tasks."""
    found: dict[tuple[Any, ...], Ratio] = {}
    for (task, *rest), group in measured.group_by(["task", *keys], maintain_order=True):
        names, index = np.unique(group["doc_id"].to_numpy(), return_inverse=True)
        sums = [sum_by(group[column].to_numpy(), index, len(names)) for column in (above, below)]
        replicates = None
        with np.errstate(invalid="ignore", divide="ignore"):
            if len(names) > 1:
                weights = draw_weights(len(names), str(task))
                replicates = (weights @ sums[0]) / (weights @ sums[1])
            value, of = sums[0].sum(axis=0) / sums[1].sum(axis=0), sums[1].sum(axis=0).astype(np.int64)
        found[task, *rest] = Ratio(value, np.broadcast_to(of, value.shape), replicates)
    tasks = averaged_tasks(list(dict.fromkeys(str(key[0]) for key in found)))
    for key in dict.fromkeys(key[1:] for key in found):
        inside = [found[task, *key] for task in tasks if (task, *key) in found]
        if inside:
            value, of = np.mean([one.value for one in inside], axis=0), np.sum([one.of for one in inside], axis=0)
            found[MEAN, *key] = Ratio(value, of, average_replicates([one.replicates for one in inside]))
    yield from found.items()


def sum_by(values: NDArray[Any], index: NDArray[Any], count: int) -> NDArray[np.float64]:
    """Sums of rows by problem: `[problems, k]`, of single numbers `[problems, 1]`."""
    rows = values.reshape(len(values), -1).astype(np.float64)
    return np.stack([np.bincount(index, column, count) for column in rows.T], axis=1)


def interval(replicates: Replicates | None) -> tuple[float | None, float | None]:
    """The 95 % percentile interval; of replicates that are no number none counts."""
    if replicates is None or np.isnan(replicates).all():
        return None, None
    low, high = np.nanquantile(replicates, [_TAIL, 1 - _TAIL])
    return float(low), float(high)


def average_replicates(parts: Sequence[Replicates | None]) -> Replicates | None:
    """Of an unweighted mean over tasks, whose problems are independent; None where a task has none."""
    known = [part for part in parts if part is not None]
    return np.mean(known, axis=0) if known and len(known) == len(parts) else None


def mean_of(values: Sequence[float | None]) -> float | None:
    """The unweighted mean; None where a task has no value."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def add_mean_rows(
    table: pl.DataFrame, keys: Sequence[str], shares: Sequence[str], counts: Sequence[str]
) -> pl.DataFrame:
    """The table with rows `task` = `mean`: means of `shares` (null where a task has none), sums of `counts`, by `keys`."""
    if table.is_empty():
        return table
    tasks = averaged_tasks(table["task"].unique(maintain_order=True).to_list())
    inside = table.filter(pl.col("task").is_in(tasks))
    whole = [pl.when(pl.col(name).null_count() == 0).then(pl.col(name).mean()).alias(name) for name in shares]
    means = inside.group_by(keys, maintain_order=True).agg(*whole, *(pl.col(name).sum() for name in counts))
    means = means.with_columns(pl.lit(MEAN).alias("task"))
    return pl.concat([table, means.select(table.columns).cast(table.schema)])


def by_group(
    frame: pl.DataFrame, keys: Sequence[str], tabulate: Callable[[pl.DataFrame], dict[str, Any]]
) -> pl.DataFrame:
    """One row per group: its keys, and what `tabulate` says of its rows."""
    rows = [
        dict(zip(keys, key, strict=True)) | tabulate(group) for key, group in frame.group_by(keys, maintain_order=True)
    ]
    return pl.DataFrame(rows, infer_schema_length=None)
