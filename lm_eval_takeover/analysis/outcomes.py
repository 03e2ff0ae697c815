"""What runs bring: accuracy against realized rate (Figure 5), rates by problem (Figure 7), problems that change sides (Table 14).

In comes one table with a row per sample of all runs: `run, policy, score, nominal, task, doc_id, sample, correct, tokens,
takeovers`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import binomtest

from lm_eval_takeover.analysis.pooling import (
    MEAN,
    add_mean_rows,
    average_replicates,
    averaged_tasks,
    bootstrap_mean,
    by_group,
    interval,
    mean_of,
)
from lm_eval_takeover.tasks.metrics import pass_at_k

K = 8


def tabulate_budget(samples: pl.DataFrame) -> pl.DataFrame:
    """Figure 5: realized rate, Acc and Pass@8 of each run by task. Pass@8 is null where a problem has fewer than 8 samples."""
    replicates: dict[tuple[str, str], tuple[Any, Any]] = {}

    def describe(group: pl.DataFrame) -> dict[str, Any]:
        task, run = group["task"][0], group["run"][0]
        problems = group.group_by("doc_id", maintain_order=True).agg(
            pl.col("correct").mean().alias("acc"), pl.col("correct").sum().alias("right"), pl.len().alias("n")
        )
        ids, acc = problems["doc_id"].to_numpy(), problems["acc"].to_numpy()
        solved = None
        if int(problems["n"].to_numpy().min()) >= K:
            solved = np.array([pass_at_k(n, right, K) for right, n in problems.select("right", "n").iter_rows()])
        reps = bootstrap_mean(ids, acc, task), None if solved is None else bootstrap_mean(ids, solved, task)
        replicates[task, run] = reps
        found: dict[str, Any] = {"realized_rate": _realized_rate(group), "acc": float(acc.mean())}
        found |= _name_bounds("acc", reps[0]) | {"pass8": None if solved is None else float(solved.mean())}
        return found | _name_bounds("pass8", reps[1])

    keys = ["task", "run", "policy", "score", "nominal"]
    table = by_group(samples, keys, describe)
    rows = table.to_dicts()
    tasks = averaged_tasks(table["task"].unique(maintain_order=True).to_list())
    for run in table["run"].unique(maintain_order=True):
        inside = [row for row in rows if row["run"] == run and row["task"] in tasks]
        mean = {"task": MEAN} | {name: inside[0][name] for name in keys[1:]} if inside else {}
        for place, name in enumerate(("acc", "pass8")):
            parts = [replicates[row["task"], run][place] for row in inside]
            mean |= _name_bounds(name, average_replicates(parts))
        if inside:
            rows.append(
                mean | {name: mean_of([row[name] for row in inside]) for name in ("realized_rate", "acc", "pass8")}
            )
    return pl.DataFrame(rows, infer_schema_length=None)


def _name_bounds(name: str, replicates: Any) -> dict[str, float | None]:
    return dict(zip((f"{name}_low", f"{name}_high"), interval(replicates), strict=True))


def _realized_rate(group: pl.DataFrame) -> float:
    return float(group.select(pl.col("takeovers").sum() / pl.col("tokens").sum()).item())


def tabulate_rates(samples: pl.DataFrame) -> pl.DataFrame:
    """Figure 7: takeovers over tokens of all samples of each problem."""
    return (
        samples.group_by("task", "run", "doc_id", maintain_order=True)
        .agg((pl.col("takeovers").sum() / pl.col("tokens").sum()).alias("realized_rate"), pl.col("tokens").sum())
        .sort("task", "run", "doc_id", maintain_order=True)
    )


def tabulate_flips(samples: pl.DataFrame, base: str) -> pl.DataFrame:
    """Table 14: problems that only the run solves (rescued) or only the base run (harmed), by an exact sign test.

    A problem is solved if any of its samples is. Only problems that both runs have count. In `mean` rows counts are sums, as in
    the table's last line.
    """
    solved = samples.group_by("task", "run", "doc_id", maintain_order=True).agg(pl.col("correct").any().alias("solved"))
    before = solved.filter(pl.col("run") == base).drop("run").rename({"solved": "before"})
    both = solved.filter(pl.col("run") != base).join(before, on=["task", "doc_id"])
    counted = both.group_by("task", "run", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("problems"),
        (pl.col("solved") & ~pl.col("before")).sum().cast(pl.Int64).alias("rescued"),
        (~pl.col("solved") & pl.col("before")).sum().cast(pl.Int64).alias("harmed"),
    )
    table = add_mean_rows(counted, ["run"], [], ["problems", "rescued", "harmed"])
    p_values = [sign_test(rescued, harmed) for rescued, harmed in table.select("rescued", "harmed").iter_rows()]
    return table.with_columns(pl.Series("p_value", p_values, dtype=pl.Float64))


def sign_test(rescued: int, harmed: int) -> float:
    """Two-sided and exact; 1 where nothing changed."""
    changed = rescued + harmed
    return float(binomtest(rescued, changed, 0.5).pvalue) if changed else 1.0


def list_changed(samples: pl.DataFrame, base: str, run: str) -> dict[str, Sequence[tuple[str, int]]]:
    """The problems behind one row of `flips`: `rescued` and `harmed` as (task, doc_id)."""
    solved = samples.group_by("task", "run", "doc_id").agg(pl.col("correct").any().alias("solved"))
    before = solved.filter(pl.col("run") == base).select("task", "doc_id", pl.col("solved").alias("before"))
    both = solved.filter(pl.col("run") == run).join(before, on=["task", "doc_id"]).sort("task", "doc_id")
    changed = {"rescued": pl.col("solved") & ~pl.col("before"), "harmed": ~pl.col("solved") & pl.col("before")}
    return {name: both.filter(rule).select("task", "doc_id").rows() for name, rule in changed.items()}
