"""Whether a sample's largest scores predict a wrong answer (Table 2, Figure 4)."""

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve

from lm_eval_takeover.analysis.pooling import (
    MEAN,
    average_replicates,
    averaged_tasks,
    by_group,
    draw_weights,
    interval,
    mean_of,
)
from lm_eval_takeover.analysis.tokens import SampleTokens

LARGEST = 100
FOLDS = 5
_LARGEST_SIGNAL = 1e30  # in the place of infinity, which a score may be

Values = NDArray[np.float64]


def measure_failure(sample: SampleTokens, score: str) -> dict[str, Any]:
    """The mean of the 100 largest scores, of all where there are fewer."""
    sums, n = sample.cumulative(score), len(sample)
    count = min(LARGEST, n)
    with np.errstate(invalid="ignore"):
        mean = (sums[-1] - sums[n - count]) / count
    return {"signal_value": float(mean) if np.isfinite(mean) else _LARGEST_SIGNAL}


def tabulate_failure(measured: pl.DataFrame) -> pl.DataFrame:
    """Table 2 by task and signal; `measured` has a row per sample with `correct`. Positive is incorrect.

    AUROC with its interval over problems, and the accuracy at a threshold chosen on the other problems (5 folds by `doc_id`
    modulo 5) beside that of always saying the larger class. Null where all samples are of one class.
    """
    replicates: dict[tuple[str, str], Any] = {}

    def describe(group: pl.DataFrame) -> dict[str, Any]:
        problems, values = group["doc_id"].to_numpy(), group["signal_value"].to_numpy()
        incorrect = ~group["correct"].to_numpy()
        auroc, key = None, (group["task"][0], group["signal"][0])
        replicates[key] = None
        if 0 < incorrect.sum() < len(incorrect):
            auroc = float(roc_auc_score(incorrect, values))
            replicates[key] = bootstrap_auroc(problems, values, incorrect, key[0])
        low, high = interval(replicates[key])
        found = {"samples": len(group), "auroc": auroc, "low": low, "high": high}
        found["accuracy"] = cross_validated_accuracy(problems, values, incorrect)
        return found | {"majority": float(max(incorrect.mean(), 1 - incorrect.mean()))}

    table = by_group(measured.rename({"score": "signal"}), ["task", "signal"], describe)
    rows = table.to_dicts()
    tasks = averaged_tasks(table["task"].unique(maintain_order=True).to_list())
    for signal in table["signal"].unique(maintain_order=True):
        inside = [row for row in rows if row["signal"] == signal and row["task"] in tasks]
        low, high = interval(average_replicates([replicates[row["task"], signal] for row in inside]))
        mean = {name: mean_of([row[name] for row in inside]) for name in ("auroc", "accuracy", "majority")}
        samples = sum(row["samples"] for row in inside)
        rows.append({"task": MEAN, "signal": signal, "samples": samples, "low": low, "high": high} | mean)
    return pl.DataFrame(rows, infer_schema_length=None)


def count_pairs(problems: NDArray[Any], values: Values, incorrect: NDArray[np.bool_]) -> tuple[Values, Values, Values]:
    """What the AUROC of any resample of problems is made of.

    `[problems, problems]` pairs (incorrect sample of the first, correct one of the second) with the larger value on the first,
    ties a half; and how many incorrect and correct samples each problem has.
    """
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
    return wins, positive, negative


def bootstrap_auroc(problems: NDArray[Any], values: Values, incorrect: NDArray[np.bool_], name: str) -> Values | None:
    """AUROC over resampled problems, NaN where a resample has one class only; None for a single problem."""
    wins, positives, negatives = count_pairs(problems, values, incorrect)
    if len(wins) < 2:
        return None
    weights = draw_weights(len(wins), name)
    pairs = (weights @ positives) * (weights @ negatives)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(pairs > 0, ((weights @ wins) * weights).sum(axis=1) / pairs, np.nan))


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
