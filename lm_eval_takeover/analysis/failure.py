"""Whether a sample's largest scores predict a wrong answer (Table 2, Figure 4)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.metrics import roc_curve

from lm_eval_takeover.analysis.pooling import (
    MEAN,
    average_replicates,
    averaged_tasks,
    by_group,
    draw_weights,
    interval,
    mean_of,
)
from lm_eval_takeover.analysis.tokens import ENTROPY, SampleTokens

LARGEST = 100
LENGTH = "length"  # a signal of its own: wrong answers may simply be longer
BESIDE = (ENTROPY, LENGTH)  # signals that each other one is compared with
FOLDS = 5
_LARGEST_SIGNAL = 1e30  # in the place of infinity, which a score may be

Values = NDArray[np.float64]


def measure_failure(sample: SampleTokens, score: str) -> dict[str, Any]:
    """The mean of the 100 largest scores, of all where there are fewer."""
    sums, n = sample.cumulative(score), len(sample)
    count = min(LARGEST, n)
    with np.errstate(invalid="ignore"):
        mean = (sums[-1] - sums[n - count]) / count
    return {"signal_value": float(mean) if np.isfinite(mean) else _LARGEST_SIGNAL, LENGTH: float(n)}


def tabulate_failure(measured: pl.DataFrame) -> pl.DataFrame:
    """Table 2 by task and signal; `measured` has a row per sample with `correct`. Positive is incorrect.

    AUROC with its interval over problems, and the accuracy at a threshold chosen on the other problems (5 folds by `doc_id`
    modulo 5) beside that of always saying the larger class. Null where all samples are of one class. `within` is the AUROC over
    pairs of samples of one problem, whose difficulty cannot help; `minus_…` the paired difference from another signal's AUROC.
    """
    replicates: dict[tuple[str, str], dict[str, Any]] = {}
    measured = add_length(measured.rename({"score": "signal"}))

    def describe(group: pl.DataFrame) -> dict[str, Any]:
        problems, values = group["doc_id"].to_numpy(), group["signal_value"].to_numpy()
        incorrect = ~group["correct"].to_numpy()
        task, signal = group["task"][0], group["signal"][0]
        auroc = within = None
        replicates[task, signal] = {"auroc": None, "within": None}
        if 0 < incorrect.sum() < len(incorrect):
            pairs = count_pairs(problems, values, incorrect)
            auroc, within = pairs.auroc(), pairs.within()
            replicates[task, signal] = bootstrap_auroc(pairs, task)
        found = {"samples": len(group), "auroc": auroc, "within": within}
        found["accuracy"] = cross_validated_accuracy(problems, values, incorrect)
        return found | {"majority": float(max(incorrect.mean(), 1 - incorrect.mean()))}

    table = by_group(measured, ["task", "signal"], describe)
    rows = {(row["task"], row["signal"]): row for row in table.to_dicts()}
    tasks = averaged_tasks(table["task"].unique(maintain_order=True).to_list())
    for signal in table["signal"].unique(maintain_order=True):
        inside = [rows[task, signal] for task in tasks if (task, signal) in rows]
        parts = [replicates[row["task"], signal] for row in inside]
        replicates[MEAN, signal] = {name: average_replicates([part[name] for part in parts]) for name in parts[0]}
        mean = {name: mean_of([row[name] for row in inside]) for name in ("auroc", "within", "accuracy", "majority")}
        rows[MEAN, signal] = {"task": MEAN, "signal": signal, "samples": sum(row["samples"] for row in inside)} | mean
    for (task, signal), row in rows.items():
        own = replicates[task, signal]
        row["low"], row["high"] = interval(own["auroc"])
        row["within_low"], row["within_high"] = interval(own["within"])
        for other in BESIDE:
            row |= _compare(other, row, own, rows.get((task, other)), replicates.get((task, other)))
    return pl.DataFrame(list(rows.values()), infer_schema_length=None)


def add_length(measured: pl.DataFrame) -> pl.DataFrame:
    """The rows, and those of the signal `length`."""
    first = measured.filter(pl.col("signal") == measured["signal"][0])
    rows = first.with_columns(signal=pl.lit(LENGTH), signal_value=pl.col(LENGTH))
    return pl.concat([measured, rows]).sort("task", maintain_order=True)


def _compare(
    name: str, row: dict[str, Any], own: dict[str, Any], other: dict[str, Any] | None, its: dict[str, Any] | None
) -> dict[str, float | None]:
    """How much higher an AUROC is than another signal's on the same problems."""
    value, replicates = None, None
    if other and its and row["signal"] != name and row["auroc"] is not None and other["auroc"] is not None:
        value = row["auroc"] - other["auroc"]
        replicates = None if own["auroc"] is None or its["auroc"] is None else own["auroc"] - its["auroc"]
    low, high = interval(replicates)
    return {f"minus_{name}": value, f"minus_{name}_low": low, f"minus_{name}_high": high}


@dataclass(frozen=True, slots=True)
class Pairs:
    """What the AUROC of any resample of problems is made of.

    `wins` `[problems, problems]`: pairs (incorrect sample of the first, correct one of the second) with the larger value on the
    first, ties a half; `positive` and `negative` `[problems]`: how many incorrect and correct samples each problem has.
    """

    wins: Values
    positive: Values
    negative: Values

    def auroc(self) -> float:
        return float(self.wins.sum() / (self.positive.sum() * self.negative.sum()))

    def within(self) -> float | None:
        """Of pairs of samples of one problem; None where no problem has both kinds."""
        pairs = float(self.positive @ self.negative)
        return float(np.trace(self.wins)) / pairs if pairs else None


def count_pairs(problems: NDArray[Any], values: Values, incorrect: NDArray[np.bool_]) -> Pairs:
    """Pairs of samples by the problems that they are of."""
    names, index = np.unique(problems, return_inverse=True)
    count = len(names)
    wins = np.zeros((count, count))
    # In ascending order searchsorted is several times faster.
    rising = np.flatnonzero(incorrect)[np.argsort(values[incorrect])]
    positives, owners = values[rising], index[rising]
    for problem in range(count):
        negatives = np.sort(values[~incorrect & (index == problem)])
        if len(negatives):
            below = np.searchsorted(negatives, positives, "left") + np.searchsorted(negatives, positives, "right")
            wins[:, problem] = np.bincount(owners, below / 2, count)
    positive, negative = (np.bincount(one, minlength=count).astype(float) for one in (owners, index[~incorrect]))
    return Pairs(wins, positive, negative)


def bootstrap_auroc(pairs: Pairs, name: str) -> dict[str, Values | None]:
    """`auroc` and `within` over resampled problems, NaN where a resample has one class only; None for a single problem."""
    if len(pairs.wins) < 2:
        return {"auroc": None, "within": None}
    weights = draw_weights(len(pairs.wins), name)
    count = (weights @ pairs.positive) * (weights @ pairs.negative)
    inside = weights @ (pairs.positive * pairs.negative)
    with np.errstate(invalid="ignore", divide="ignore"):
        auroc = np.where(count > 0, ((weights @ pairs.wins) * weights).sum(axis=1) / count, np.nan)
        within = np.where(inside > 0, (weights @ np.diag(pairs.wins)) / inside, np.nan)
    return {"auroc": np.asarray(auroc), "within": np.asarray(within)}


def cross_validated_accuracy(problems: NDArray[Any], values: Values, incorrect: NDArray[np.bool_]) -> float | None:
    """The share of samples that are called rightly by a threshold chosen on the other folds; None with one fold only."""
    folds = problems % FOLDS
    if len(np.unique(folds)) < 2:
        return None
    right = 0
    for fold in np.unique(folds):
        held = folds == fold
        threshold = choose_threshold(values[~held], incorrect[~held])
        right += int(((values[held] > threshold) == incorrect[held]).sum())
    return right / len(values)


def choose_threshold(values: Values, incorrect: NDArray[np.bool_]) -> float:
    """Above which a sample is called incorrect with the most right calls: halfway between two values, the highest of several."""
    if incorrect.all() or not incorrect.any():
        return -np.inf if incorrect.all() else np.inf
    false, true, edges = roc_curve(incorrect, values, drop_intermediate=False)
    right = true * incorrect.sum() + (1 - false) * (~incorrect).sum()
    best = int(right.argmax())
    if best == 0:
        return np.inf
    return float((edges[best] + edges[best + 1]) / 2) if best + 1 < len(edges) else -np.inf
