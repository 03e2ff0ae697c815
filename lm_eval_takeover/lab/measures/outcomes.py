"""What runs bring: accuracy against realized rate (Figure 5), rates by problem (Figure 7), problems that change sides (Table 14).

In come runs as results, or a table with a row per sample of all runs: `run, task, doc_id, sample, correct, tokens, takeovers`.
What the tokens of takeovers are, their rank under the host and cross-sampling ('Sparse but Critical'), is measured on
traces: columns `token_id, takeover, score, donor_rank, host_token_id`, integers -1 where the trace has null. And whether a
sample's largest scores predict a wrong answer (Table 2, Figure 4).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import bdtr

from lm_eval_takeover.lab.measures.pooling import MEAN, Estimated, describe, draw_weights, estimate_tasks, tabulate_ratios
from lm_eval_takeover.lab.sample_tokens import SampleTokens
from lm_eval_takeover.results.files import Run
from lm_eval_takeover.results.statistics import Values
from lm_eval_takeover.results.summary import average, choose_averaged, find_nominal_rate, summarize_tasks
from lm_eval_takeover.runs.evidence import ENTROPY

RANKS = ("1", "2", "3", "4-10", "11-100", ">100")
_FIRST_RANKS = np.array([1, 2, 3, 4, 11, 101])  # of each bucket


def tabulate_budget(runs: Mapping[str, Run]) -> pl.DataFrame:
    """Figure 5: realized rate, Acc and Pass@8 of each run by task. `pass8` is Pass@k, k = 8 or the samples that there are."""
    tasks = choose_averaged([task for run in runs.values() for task in run.tasks])
    rows = []
    for name, run in runs.items():
        facts = {"run": name, "policy": run.takeover.get("policy"), "score": run.takeover.get("score")}
        facts["nominal"] = find_nominal_rate(run.takeover)
        summaries = summarize_tasks(run)
        if all(task in summaries for task in tasks):  # else its mean is over other tasks than those beside it
            summaries[MEAN] = average([summaries[task] for task in tasks])
        for task, summary in summaries.items():
            row = {"task": task, **facts, "realized_rate": summary.rates.realized_rate, "k": summary.k}
            rows.append(row | summary.acc.describe("acc") | summary.passed.describe("pass8"))
    return pl.DataFrame(rows, infer_schema_length=None).sort(pl.col("task") == MEAN, maintain_order=True)


def tabulate_rates(samples: pl.DataFrame) -> pl.DataFrame:
    """Figure 7: takeovers over tokens of all samples of each problem."""
    rate, keys = pl.col("takeovers").sum() / pl.col("tokens").sum(), ["task", "run", "doc_id"]
    table = samples.group_by(keys, maintain_order=True).agg(realized_rate=rate, tokens=pl.col("tokens").sum())
    return table.sort(keys, maintain_order=True)


def tabulate_flips(samples: pl.DataFrame, base: str) -> pl.DataFrame:
    """Table 14: problems that only the run solves (rescued) or only the base run (harmed), by an exact sign test.

    A problem is solved if any of its samples is. Only samples that both runs have count. In `mean` rows counts are sums, as in
    the table's last line; a run that lacks a task of the others has none. `null_rescued` is what chance rescues, and harms, where
    the run is as good as the base: the mean over all exchanges of the two rows' verdicts on a sample. They may share random
    numbers, so the two verdicts on a sample stay together. Where both solve one, no exchange leaves a row without; where they
    differ on `c` samples and solve none together, all `c` fall to the run in one of `2^c` exchanges.
    """
    correct, problem, sample = pl.col("correct"), ["task", "run", "doc_id"], ["task", "doc_id", "sample"]
    before = samples.filter(pl.col("run") == base).select(*sample, before="correct")
    both = samples.filter(pl.col("run") != base).join(before, on=sample, maintain_order="left_right")
    differ = (correct != pl.col("before")).sum()
    by_chance = pl.when((correct & pl.col("before")).any() | (differ == 0)).then(0.0).otherwise(0.5**differ)
    found = both.group_by(problem, maintain_order=True).agg(correct.any(), pl.col("before").any(), null_rescued=by_chance)
    counts = {"rescued": (correct & ~pl.col("before")).sum(), "harmed": (~correct & pl.col("before")).sum()}
    sums = found.group_by("task", "run", maintain_order=True)
    table = sums.agg(problems=pl.len().cast(pl.Int64), **counts, null_rescued=pl.col("null_rescued").sum())
    averaged = choose_averaged(table["task"].unique(maintain_order=True).to_list())
    inside = table.filter(pl.col("task").is_in(averaged)).filter(pl.len().over("run") == len(averaged))
    means = inside.group_by("run", maintain_order=True).agg(pl.exclude("task").sum()).with_columns(task=pl.lit(MEAN))
    table = pl.concat([table, means.select(table.columns)])
    up, down = table["rescued"].to_numpy(), table["harmed"].to_numpy()
    p_values = np.minimum(2 * bdtr(np.minimum(up, down), up + down, 0.5), 1)
    return table.with_columns(p_value=pl.Series(p_values, dtype=pl.Float64))


def measure_ranks(sample: SampleTokens) -> dict[str, Any]:
    """Takeovers by the rank under the host of the donor's token, where it is not the token that the host draws there."""
    ranks = sample.columns["donor_rank"][find_changed(sample)]
    counts = np.bincount(np.searchsorted(_FIRST_RANKS, ranks[ranks >= 1], "right") - 1, minlength=len(RANKS))
    return {"counts": counts, "all": counts.sum()}


def find_changed(sample: SampleTokens) -> NDArray[np.bool_]:
    """Takeovers whose token is not the one that the host draws there `[tokens]`; where the host was not asked none is known."""
    host = sample.columns["host_token_id"]
    return np.asarray(sample.columns["takeover"] & (host >= 0) & (host != sample.columns["token_id"]))


def tabulate_ranks(measured: pl.DataFrame) -> pl.DataFrame:
    """Takeovers and their share by bucket of ranks, pooled over the samples of a task; nothing of a run that has none."""
    labels = [{"rank": rank} for rank in RANKS]
    table = tabulate_ratios(measured, "counts", "all", labels, value="share", keys=["run"])
    return table.filter(pl.col("task") != MEAN, pl.col("share").is_not_null()).rename({"tokens": "takeovers"})


def measure_cross(sample: SampleTokens, near: float) -> dict[str, Any]:
    """Positions whose js lies below `near`, takeovers, those that changed the token, and all positions."""
    score = sample.columns["score"]
    return {
        "near": int(np.count_nonzero(score < near)),
        "replaced": int(np.count_nonzero(sample.columns["takeover"])),
        "changed": int(np.count_nonzero(find_changed(sample))),
        "known": bool((sample.columns["host_token_id"] >= 0).any()),
        "tokens": len(sample),
    }


def tabulate_cross(measured: pl.DataFrame, accuracies: pl.DataFrame, near: float) -> pl.DataFrame:
    """Cross-sampling by task and run: how much is near, how much is replaced, and what that does to Acc.

    `measured` has `task, run, direction` beside the counts of its samples; `accuracies` `task, run, acc, acc_host, acc_donor`,
    the last two null where the run of that model alone was not given.
    """
    changed, tokens = pl.when(pl.col("known").any()), pl.col("tokens").sum()
    counts = {"replaced": pl.col("replaced").sum(), "changed": changed.then(pl.col("changed").sum())}
    shares = {f"{name}_share": count / tokens for name, count in counts.items()}
    table = measured.group_by("task", "run", "direction", maintain_order=True).agg(
        threshold=pl.lit(near), near_share=pl.col("near").sum() / tokens, **counts, **shares
    )
    return table.join(accuracies, on=["task", "run"], how="left", maintain_order="left")


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
    rows = measured.rename({"score": "signal"})
    lengths = rows.filter(pl.col("signal") == rows["signal"][0])
    lengths = lengths.with_columns(signal=pl.lit(LENGTH), signal_value=pl.col(LENGTH))
    estimates = estimate_tasks(pl.concat([rows, lengths]).sort("task", maintain_order=True), ["signal"], _estimate)
    described = []
    for (task, signal), (own, counts) in estimates.items():
        row = {"task": task, "signal": signal, "samples": int(counts[0])}
        row |= describe(own[:, 0], "auroc", "low", "high") | describe(own[:, 1], "within", "within_low", "within_high")
        row |= describe(own[:, 2], "accuracy") | describe(own[:, 3], "majority")
        for name in BESIDE:
            other = estimates.get((task, name)) if name != signal else None
            minus = own[:, 0] - (other.values[:, 0] if other else np.nan)
            row |= describe(minus, f"minus_{name}", f"minus_{name}_low", f"minus_{name}_high")
        described.append(row)
    return pl.DataFrame(described, infer_schema_length=None)


def _estimate(group: pl.DataFrame) -> Estimated:
    """AUROC, `within`, accuracy and the share of the larger class; only the first two have resamples."""
    problems, values = group["doc_id"].to_numpy(), group["signal_value"].to_numpy()
    incorrect = ~group["correct"].to_numpy()
    weights = draw_weights(len(np.unique(problems)), group["task"][0])
    areas = measure_areas(problems, values, incorrect.astype(np.float64), weights)
    estimates = np.pad(areas, ((0, 0), (0, 2)), constant_values=np.nan)
    share = incorrect.mean()
    estimates[0, 2:] = cross_validated_accuracy(problems, values, incorrect), max(share, 1 - share)
    return Estimated(estimates, np.array([len(group)]))


def measure_areas(problems: NDArray[Any], values: Values, positive: Values, weights: Values) -> Values:
    """AUROC over all pairs, and over pairs of samples of one problem, NaN without such pairs: `[..., 2]`.

    `positive` is 1 where a sample is incorrect. `weights` `[..., problems]` say how often each problem counts.
    """
    names, index = np.unique(problems, return_inverse=True)
    count, negative = len(names), 1 - positive
    # `[problems, problems]`: pairs (incorrect sample of the first, correct one of the second) where the first wins, ties a half.
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
    incorrect, correct = (np.bincount(index, part, count) for part in (positive, negative))
    pairs = (weights @ incorrect) * (weights @ correct), weights @ (incorrect * correct)
    won = ((weights @ wins) * weights).sum(axis=-1), weights @ np.diag(wins)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.stack([won[0] / pairs[0], won[1] / pairs[1]], axis=-1)


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
