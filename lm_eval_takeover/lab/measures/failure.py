"""Whether a sample's largest scores predict a wrong answer (Table 2, Figure 4)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lm_eval_takeover.lab.measures.pooling import MEAN, Estimates, Values, draw_weights
from lm_eval_takeover.lab.measures.tokens import ENTROPY, SampleTokens
from lm_eval_takeover.results.summary import choose_averaged

LARGEST = 100
LENGTH = "length"  # a signal of its own: wrong answers may simply be longer
BESIDE = (ENTROPY, LENGTH)  # signals that each other one is compared with
FOLDS = 5
_LARGEST_SIGNAL = 1e30  # in the place of infinity, which a score may be


def measure_failure(sample: SampleTokens, score: str) -> dict[str, Any]:
    """The mean of the 100 largest scores, of all where there are fewer."""
    sums, n = sample.cumulative(score), len(sample)
    count = min(LARGEST, n)
    with np.errstate(invalid="ignore"):
        mean = (sums[-1] - sums[n - count]) / count
    return {"signal_value": float(mean) if np.isfinite(mean) else _LARGEST_SIGNAL, LENGTH: float(n)}


def tabulate_failure(measured: pl.DataFrame) -> pl.DataFrame:
    """Table 2 by task and signal; `measured` has a row per sample with `correct`. Positive is incorrect.

    AUROC has its interval over problems. Accuracy is at a threshold chosen on the other problems (5 folds, `doc_id` modulo 5);
    `majority` always says the larger class. Null where all samples are of one class. `within` is the AUROC over pairs of samples
    of one problem, whose difficulty cannot help; `minus_…` the paired difference from another signal's AUROC.
    """
    counts: dict[tuple[Any, ...], int] = {}
    estimates: dict[tuple[Any, ...], Estimates] = {}
    rows = measured.rename({"score": "signal"})
    lengths = rows.filter(pl.col("signal") == rows["signal"][0])
    lengths = lengths.with_columns(signal=pl.lit(LENGTH), signal_value=pl.col(LENGTH))
    rows = pl.concat([rows, lengths]).sort("task", maintain_order=True)
    for key, group in rows.group_by(["task", "signal"], maintain_order=True):
        counts[key] = len(group)
        estimates[key] = _estimate(group, str(key[0]))
    tasks = choose_averaged(list(dict.fromkeys(str(task) for task, _ in estimates)))
    for signal in dict.fromkeys(signal for _, signal in estimates):
        inside = [(task, signal) for task in tasks if (task, signal) in estimates]
        counts[MEAN, signal] = sum(counts[key] for key in inside)
        estimates[MEAN, signal] = Estimates.average([estimates[key] for key in inside])
    described = []
    for (task, signal), own in estimates.items():
        row = {"task": task, "signal": signal, "samples": counts[task, signal]}
        row |= own.describe(0, "auroc", "low", "high") | own.describe(1, "within", "within_low", "within_high")
        row |= own.describe(2, "accuracy") | own.describe(3, "majority")
        for name in BESIDE:
            minus = own - (estimates.get((task, name), _NOTHING) if name != signal else _NOTHING)
            row |= minus.describe(0, f"minus_{name}", f"minus_{name}_low", f"minus_{name}_high")
        described.append(row)
    return pl.DataFrame(described, infer_schema_length=None)


_NOTHING = Estimates(np.full(4, np.nan), np.full((1, 4), np.nan))


def _estimate(group: pl.DataFrame, task: str) -> Estimates:
    """AUROC, `within`, accuracy and the share of the larger class; only the first two have replicates."""
    problems, values = group["doc_id"].to_numpy(), group["signal_value"].to_numpy()
    incorrect = ~group["correct"].to_numpy()
    accuracy = cross_validated_accuracy(problems, values, incorrect)
    rest = np.array([accuracy, max(incorrect.mean(), 1 - incorrect.mean())])
    pairs = count_pairs(problems, values, incorrect.astype(np.float64))
    replicates = np.pad(pairs.areas(draw_weights(len(pairs.wins), task)), ((0, 0), (0, 2)), constant_values=np.nan)
    return Estimates(np.concatenate([pairs.areas(), rest]), replicates)


@dataclass(frozen=True, slots=True)
class Pairs:
    """What the AUROC of any resample of problems is made of.

    `wins` `[problems, problems]` counts pairs (incorrect sample of the first, correct one of the second) where the first is
    larger, ties a half. `positive` and `negative` `[problems]` count the incorrect and correct samples of each problem.
    """

    wins: Values
    positive: Values
    negative: Values

    def areas(self, weights: Values | None = None) -> Values:
        """AUROC over all pairs, and over pairs of samples of one problem, NaN without such pairs: `[..., 2]`.

        `weights` `[..., problems]` say how often each problem counts; once by default.
        """
        weights = np.ones(len(self.wins)) if weights is None else weights
        pairs = (weights @ self.positive) * (weights @ self.negative)
        inside = weights @ (self.positive * self.negative)
        wins = ((weights @ self.wins) * weights).sum(axis=-1), weights @ np.diag(self.wins)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.stack([wins[0] / pairs, wins[1] / inside], axis=-1)


def count_pairs(problems: NDArray[Any], values: Values, positive: Values) -> Pairs:
    """Pairs of samples by the problems that they are of; `positive` is 1 where a sample is incorrect."""
    names, index = np.unique(problems, return_inverse=True)
    count, negative = len(names), 1 - positive
    wins = np.zeros((count, count))
    # In ascending order searchsorted is several times faster.
    rising = np.argsort(values)
    rising = rising[positive[rising] > 0]
    for problem in range(count):
        others = np.flatnonzero((index == problem) & (negative > 0))
        others = others[np.argsort(values[others])]
        sums = np.concatenate([[0], np.cumsum(negative[others])])
        below, up_to = (sums[np.searchsorted(values[others], values[rising], side)] for side in ("left", "right"))
        wins[:, problem] = np.bincount(index[rising], positive[rising] * (below + up_to) / 2, count)
    return Pairs(wins, *(np.bincount(index, part, count).astype(np.float64) for part in (positive, negative)))


def cross_validated_accuracy(problems: NDArray[Any], values: Values, incorrect: NDArray[np.bool_]) -> float:
    """The share of samples that are called rightly by a threshold chosen on the other folds; NaN with one fold only."""
    folds = problems % FOLDS
    if len(np.unique(folds)) < 2:
        return np.nan
    right = 0
    for fold in np.unique(folds):
        tested = folds == fold
        threshold = choose_threshold(values[~tested], incorrect[~tested])
        right += int(((values[tested] > threshold) == incorrect[tested]).sum())
    return right / len(values)


def choose_threshold(values: Values, incorrect: NDArray[np.bool_]) -> float:
    """Above which a sample is called incorrect with the most right calls: halfway between two values, the highest of several."""
    edges, index = np.unique(-values, return_inverse=True)
    more = np.bincount(index, np.where(incorrect, 1, -1))  # right calls by calling this value incorrect, too
    best = int(np.cumsum([0, *more]).argmax())
    return -float(np.mean([-np.inf, *edges, np.inf][best : best + 2]))
