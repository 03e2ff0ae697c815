"""What the tokens of takeovers are: their rank under the host, and cross-sampling ('Sparse but Critical').

A sample here is a trace: columns `token_id, takeover, score, donor_rank, host_token_id`, integers -1 where the trace has null.
"""

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lm_eval_takeover.lab.analysis.pooling import MEAN, tabulate_ratios
from lm_eval_takeover.lab.analysis.tokens import SampleTokens

RANKS = ("1", "2", "3", "4-10", "11-100", ">100")
_FIRST_RANKS = np.array([1, 2, 3, 4, 11, 101])  # of each bucket


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
