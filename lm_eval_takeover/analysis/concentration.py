"""How unevenly scores are spread over the tokens of a sample: Lorenz curve and Gini coefficient (section 4.1, appendix B.1)."""

from typing import Any

import numpy as np
import polars as pl

from lm_eval_takeover.analysis.pooling import (
    MEAN,
    average_replicates,
    averaged_tasks,
    bootstrap_mean,
    by_group,
    interval,
    mean_of,
)
from lm_eval_takeover.analysis.tokens import SampleTokens, ceil_percent

SHARES = (1, 5, 8)  # percent of a sample's tokens
GRID = 100  # steps of the Lorenz curve


def measure_concentration(sample: SampleTokens, score: str) -> dict[str, Any]:
    """Equation (9), `G = 2 sum(i s_(i)) / (n sum s) - (n + 1) / n`, and the mass of the largest scores; null without mass."""
    names = ["gini", *(f"top{percent}" for percent in SHARES)]
    if not sample.has_mass(score):
        return dict.fromkeys(names)
    sums, n = sample.cumulative(score), len(sample)
    total = sums[-1]
    weighted = (n + 1) * total - sums.sum()  # sum of i s_(i)
    tops = (1 - sums[n - ceil_percent(n, percent)] / total for percent in SHARES)
    return dict(zip(names, (2 * weighted / (n * total) - (n + 1) / n, *tops), strict=True))


def tabulate_concentration(measured: pl.DataFrame) -> pl.DataFrame:
    """The mean Gini over samples by task and score, with its interval, and how much lies in the top 1, 5 and 8 %."""
    replicates: dict[tuple[str, str], Any] = {}
    shares = [f"top{percent}" for percent in SHARES]

    def describe(group: pl.DataFrame) -> dict[str, Any]:
        task, score = group["task"][0], group["score"][0]
        known = group.drop_nulls("gini")
        gini = known["gini"].to_numpy()
        replicates[task, score] = bootstrap_mean(known["doc_id"].to_numpy(), gini, task)
        low, high = interval(replicates[task, score])
        means = {name: known[name].mean() for name in ["gini", *shares]}
        counts = {"samples": len(known), "skipped": len(group) - len(known)}
        return counts | {"gini": means.pop("gini"), "low": low, "high": high} | means

    table = by_group(measured, ["task", "score"], describe)
    rows = table.to_dicts()
    tasks = averaged_tasks(table["task"].unique(maintain_order=True).to_list())
    for score in table["score"].unique(maintain_order=True):
        inside = [row for row in rows if row["score"] == score and row["task"] in tasks]
        low, high = interval(average_replicates([replicates[row["task"], score] for row in inside]))
        mean = {"task": MEAN, "score": score, "low": low, "high": high}
        mean |= {name: sum(row[name] for row in inside) for name in ("samples", "skipped")}
        rows.append(mean | {name: mean_of([row[name] for row in inside]) for name in ("gini", *shares)})
    return pl.DataFrame(rows, infer_schema_length=None)


def measure_lorenz(sample: SampleTokens, score: str) -> dict[str, Any] | None:
    """Equation (7) at 0, 0.01 … 1 of the tokens, linear between; None without mass."""
    if not sample.has_mass(score):
        return None
    sums = sample.cumulative(score)
    places = np.arange(GRID + 1) * (len(sample) / GRID)
    return {"curve": (np.interp(places, np.arange(len(sums)), sums) / sums[-1]).astype(np.float32)}


def tabulate_lorenz(measured: pl.DataFrame) -> pl.DataFrame:
    """Figure 2a: the mean curve over samples by task and score."""
    parts = []
    for (task, score), group in measured.group_by(["task", "score"], maintain_order=True):
        mean = group["curve"].to_numpy().mean(axis=0, dtype=np.float64)
        curve = {"share_of_tokens": np.arange(GRID + 1) / GRID, "share_of_score": mean}
        parts.append(pl.DataFrame({"task": [task] * (GRID + 1), "score": [score] * (GRID + 1), **curve}))
    return pl.concat(parts)
