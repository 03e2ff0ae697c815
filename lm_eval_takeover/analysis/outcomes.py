"""What runs bring: accuracy against realized rate (Figure 5), rates by problem (Figure 7), problems that change sides (Table 14).

In comes one table with a row per sample of all runs: `run, policy, score, nominal, task, doc_id, sample, correct, tokens,
takeovers`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import binomtest

from lm_eval_takeover.analysis.pooling import (
    MEAN,
    add_mean_rows,
    averaged_tasks,
    by_group,
    mean_of,
)
from lm_eval_takeover.results.chances import expect_flips
from lm_eval_takeover.results.statistics import Interval, average_interval, mean_interval
from lm_eval_takeover.tasks.metrics import pass_at_k

K = 8


def tabulate_budget(samples: pl.DataFrame) -> pl.DataFrame:
    """Figure 5: realized rate, Acc and Pass@8 of each run by task. `pass8` is Pass@k, k = 8 or the samples that there are.

    A run that lacks a task of the others has no row `mean`: means are over the same tasks, or not beside each other.
    """
    intervals: dict[tuple[str, str], dict[str, Interval | None]] = {}

    def describe(group: pl.DataFrame) -> dict[str, Any]:
        task, run = group["task"][0], group["run"][0]
        problems = group.group_by("doc_id", maintain_order=True).agg(
            pl.col("correct").mean().alias("acc"), pl.col("correct").sum().alias("right"), pl.len().alias("n")
        )
        found: dict[str, Interval | None] = {"acc": mean_interval(problems["acc"].to_numpy())}
        k = min(K, int(problems["n"].to_numpy().min()))
        solved = [pass_at_k(n, right, k) for right, n in problems.select("right", "n").iter_rows()]
        found["pass8"] = mean_interval(np.array(solved, dtype=np.float64))
        intervals[task, run] = found
        return {"realized_rate": _realized_rate(group)} | _describe(found) | {"k": k}

    keys = ["task", "run", "policy", "score", "nominal"]
    table = by_group(samples, keys, describe)
    rows = table.to_dicts()
    tasks = averaged_tasks(table["task"].unique(maintain_order=True).to_list())
    for run in table["run"].unique(maintain_order=True):
        inside = [row for row in rows if row["run"] == run and row["task"] in tasks]
        if len(inside) < len(tasks):
            continue
        ks = {row["k"] for row in inside}
        means: dict[str, Interval | None] = {}
        for name in ("acc", "pass8"):
            parts = [part for row in inside if (part := intervals[row["task"], run][name]) is not None]
            whole = len(parts) == len(inside) and (name == "acc" or len(ks) == 1)
            means[name] = average_interval(parts) if whole else None
        rate = {"realized_rate": mean_of([row["realized_rate"] for row in inside])}
        own = {name: inside[0][name] for name in keys[1:]}
        rows.append({"task": MEAN} | own | rate | _describe(means) | {"k": ks.pop() if len(ks) == 1 else None})
    return pl.DataFrame(rows, infer_schema_length=None)


def _describe(found: Mapping[str, Interval | None]) -> dict[str, float | None]:
    """Values with their bounds, null where there is none."""
    described: dict[str, float | None] = {}
    for name, part in found.items():
        bounds = (None, None, None) if part is None else (part.value, part.low, part.high)
        described |= dict(zip((name, f"{name}_low", f"{name}_high"), bounds, strict=True))
    return described


def _realized_rate(group: pl.DataFrame) -> float:
    return float(group.select(pl.col("takeovers").sum() / pl.col("tokens").sum()).item())


def tabulate_rates(samples: pl.DataFrame) -> pl.DataFrame:
    """Figure 7: takeovers over tokens of all samples of each problem."""
    return (
        samples.group_by("task", "run", "doc_id", maintain_order=True)
        .agg((pl.col("takeovers").sum() / pl.col("tokens").sum()).alias("realized_rate"), pl.col("tokens").sum())
        .sort("task", "run", "doc_id", maintain_order=True)
    )


def tabulate_flips(samples: pl.DataFrame, base: str, second: Sequence[str] = ()) -> pl.DataFrame:
    """Table 14: problems that only the run solves (rescued) or only the base run (harmed), by an exact sign test.

    A problem is solved if any of its samples is. Only problems that both runs have count. In `mean` rows counts are sums, as in
    the table's last line. `null_rescued` and `null_harmed` are what another seed of the base does to it: counted where `second`
    names such runs (their mean), else expected from how many samples of each problem the base run solves (`expect_flips`).
    """
    solved = samples.group_by("task", "run", "doc_id", maintain_order=True).agg(
        pl.col("correct").any().alias("solved"), pl.col("correct").mean().alias("share"), pl.len().alias("n")
    )
    before = solved.filter(pl.col("run") == base).drop("run").rename({"solved": "before"})
    both = solved.filter(pl.col("run") != base).drop("share", "n").join(before, on=["task", "doc_id"])
    rescued, harmed = pl.col("solved") & ~pl.col("before"), ~pl.col("solved") & pl.col("before")

    def describe(group: pl.DataFrame) -> dict[str, Any]:
        counts = group.select(rescued.sum().alias("rescued"), harmed.sum().alias("harmed")).row(0, named=True)
        others = [run for run in second if run != group["run"][0]]
        its = both.filter(pl.col("task") == group["task"][0], pl.col("run").is_in(others))
        its = its.join(group.select("doc_id"), on="doc_id", how="semi")
        if len(its) == len(others) * len(group) > 0:
            null = [its.select(rule.sum()).item() / len(others) for rule in (rescued, harmed)]
        else:
            null = [float(x.sum()) for x in expect_flips(group["share"].to_numpy(), int(group["n"].to_numpy().min()))]
            others = []
        named = {"null_rescued": null[0], "null_harmed": null[1], "null": ", ".join(others) or "expected"}
        return {"problems": len(group), **counts, **named}

    if both.is_empty():
        return both
    counted = by_group(both, ["task", "run"], describe)
    table = add_mean_rows(
        counted, ["run", "null"], [], ["problems", "rescued", "harmed", "null_rescued", "null_harmed"]
    )
    p_values = [sign_test(rescued, harmed) for rescued, harmed in table.select("rescued", "harmed").iter_rows()]
    return table.with_columns(pl.Series("p_value", p_values, dtype=pl.Float64))


def sign_test(rescued: int, harmed: int) -> float:
    """Two-sided and exact; 1 where nothing changed."""
    changed = rescued + harmed
    return float(binomtest(rescued, changed, 0.5).pvalue) if changed else 1.0
