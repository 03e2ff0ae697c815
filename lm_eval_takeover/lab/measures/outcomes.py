"""What runs bring: accuracy against realized rate (Figure 5), rates by problem (Figure 7), problems that change sides (Table 14).

In comes one table with a row per sample of all runs: `run, policy, score, nominal, task, doc_id, sample, correct, tokens,
takeovers`. What the tokens of takeovers are, their rank under the host and cross-sampling ('Sparse but Critical'), is measured on
traces: columns `token_id, takeover, score, donor_rank, host_token_id`, integers -1 where the trace has null.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import bdtr

from lm_eval_takeover.lab.measures.pooling import MEAN, tabulate_ratios
from lm_eval_takeover.lab.measures.tokens import SampleTokens
from lm_eval_takeover.results.statistics import expect_flips
from lm_eval_takeover.results.summary import Rates, Summary, average, choose_averaged, summarize_correct

K = 8
RANKS = ("1", "2", "3", "4-10", "11-100", ">100")
_FIRST_RANKS = np.array([1, 2, 3, 4, 11, 101])  # of each bucket


def tabulate_budget(samples: pl.DataFrame) -> pl.DataFrame:
    """Figure 5: realized rate, Acc and Pass@8 of each run by task. `pass8` is Pass@k, k = 8 or the samples that there are.

    A run that lacks a task of the others has no row `mean`: means are over the same tasks, or not beside each other.
    """
    tasks, keys = choose_averaged(samples["task"].unique(maintain_order=True).to_list()), ["policy", "score", "nominal"]
    rows: list[dict[str, Any]] = []
    means: list[dict[str, Any]] = []
    for own, of_run in samples.group_by(["run", *keys], maintain_order=True):
        summaries = {str(task): _summarize(group) for (task,), group in of_run.group_by(["task"], maintain_order=True)}
        if all(task in summaries for task in tasks):
            summaries[MEAN] = average([summaries[task] for task in tasks])
        for task, summary in summaries.items():
            row = {"task": task, **dict(zip(["run", *keys], own, strict=True))}
            row |= {"realized_rate": summary.rates.realized_rate, "k": summary.k}
            row |= summary.acc.describe("acc") | summary.passed.describe("pass8")
            (means if task == MEAN else rows).append(row)
    return pl.DataFrame([*rows, *means], infer_schema_length=None)


def _summarize(samples: pl.DataFrame) -> Summary:
    """One task of one run."""
    problems = samples.group_by("doc_id", maintain_order=True).agg(right=pl.col("correct").sum(), n=pl.len())
    right, counts = problems["right"].to_list(), problems["n"].to_list()
    rates = Rates(realized_rate=samples["takeovers"].to_numpy().sum() / samples["tokens"].to_numpy().sum())
    return summarize_correct(right, counts, min(K, *counts), rates)


def tabulate_rates(samples: pl.DataFrame) -> pl.DataFrame:
    """Figure 7: takeovers over tokens of all samples of each problem."""
    rate, keys = pl.col("takeovers").sum() / pl.col("tokens").sum(), ["task", "run", "doc_id"]
    table = samples.group_by(keys, maintain_order=True).agg(realized_rate=rate, tokens=pl.col("tokens").sum())
    return table.sort(keys, maintain_order=True)


def tabulate_flips(samples: pl.DataFrame, base: str, second: Sequence[str] = ()) -> pl.DataFrame:
    """Table 14: problems that only the run solves (rescued) or only the base run (harmed), by an exact sign test.

    A problem is solved if any of its samples is. Only problems that both runs have count. In `mean` rows counts are sums, as in
    the table's last line; a run that lacks a task of the others has none. `null_rescued` and `null_harmed` are what another seed
    of the base does to it: counted where `second` names such runs (their mean), else expected from how many samples of each
    problem the base run solves (`expect_flips`).
    """
    correct, keys = pl.col("correct"), ["task", "run", "doc_id"]
    solved = samples.group_by(keys, maintain_order=True).agg(solved=correct.any(), share=correct.mean(), n=pl.len())
    before = solved.filter(pl.col("run") == base).drop("run").rename({"solved": "before"})
    both = solved.filter(pl.col("run") != base).drop("share", "n").join(before, on=["task", "doc_id"])
    rescued, harmed = pl.col("solved") & ~pl.col("before"), ~pl.col("solved") & pl.col("before")
    if both.is_empty():
        return both
    rows = []
    for (task, run), group in both.group_by(["task", "run"], maintain_order=True):
        row = {"task": task, "run": run, "problems": len(group)}
        row |= group.select(rescued.sum().alias("rescued"), harmed.sum().alias("harmed")).row(0, named=True)
        others = [other for other in second if other != run]
        its = both.filter(pl.col("task") == task, pl.col("run").is_in(others))
        its = its.join(group.select("doc_id"), on="doc_id", how="semi")
        if len(its) == len(others) * len(group) > 0:
            null = [its.select(rule.sum()).item() / len(others) for rule in (rescued, harmed)]
        else:
            null = [float(x.sum()) for x in expect_flips(group["share"].to_numpy(), int(group["n"].to_numpy().min()))]
            others = []
        rows.append(row | {"null_rescued": null[0], "null_harmed": null[1], "null": ", ".join(others) or "expected"})
    table = pl.DataFrame(rows)
    averaged = choose_averaged(table["task"].unique(maintain_order=True).to_list())
    inside = table.filter(pl.col("task").is_in(averaged)).filter(pl.len().over("run") == len(averaged))
    kinds = pl.col("null").unique(maintain_order=True).str.join("; ")
    sums = inside.group_by("run", maintain_order=True).agg(pl.exclude("task", "null").sum(), kinds)
    table = pl.concat([table, sums.with_columns(task=pl.lit(MEAN)).select(table.columns)])
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
    table = tabulate_ratios(measured, "counts", "all", labels, value="share", count="above", keys=["run"])
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
    joined = table.join(accuracies, on=["task", "run"], how="left", maintain_order="left")
    return joined.select(pl.exclude("changed", "changed_share"), "changed", "changed_share")
