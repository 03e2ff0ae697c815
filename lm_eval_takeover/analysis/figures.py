"""A figure of each analysis, as SVG: the same bytes for the same table."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from lm_eval_takeover.analysis.pooling import MEAN
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.storage.whole_files import write_whole

Axes = Any
_SETTINGS = {
    "svg.hashsalt": "lm-eval-takeover",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_DIAGONAL = {"color": "#888888", "linestyle": ":", "linewidth": 1}


def draw(name: str, table: pl.DataFrame, path: Path) -> None:
    """The figure of this analysis. Raises ArgumentError where matplotlib is missing, OSError."""
    try:
        import matplotlib
    except ImportError as error:
        raise ArgumentError("figures need matplotlib: pip install '.[analysis]'") from error
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(5.4, 3.4), layout="constrained")
        axes = figure.subplots()
        by_task = "task" in table.columns and name != "effects"
        _DRAWN[name](axes, _name_task(axes, _shown(table)) if by_task else table)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(frameon=False, fontsize=8)
        write_whole(path, lambda stream: figure.savefig(stream, format="svg", metadata={"Date": None}))


def _shown(table: pl.DataFrame) -> pl.DataFrame:
    """The rows `mean` where they are of several tasks, else those of tasks: one figure is to be read at a glance."""
    is_mean = pl.col("task") == MEAN
    tasks, means = table.filter(~is_mean), table.filter(is_mean)
    return tasks if means.is_empty() or tasks["task"].n_unique() == 1 else means


def _name_task(axes: Axes, table: pl.DataFrame) -> pl.DataFrame:
    """What all rows are of is said once, above: one task, or the mean over tasks."""
    tasks = table["task"].unique()
    if len(tasks) != 1:
        return table
    axes.set_title("mean over tasks" if tasks[0] == MEAN else tasks[0], loc="left", fontsize=8)
    return table.with_columns(task=pl.lit(None, pl.String))


def _lines(axes: Axes, table: pl.DataFrame, x: str, y: str, by: list[str], **style: Any) -> None:
    """A line for each combination of `by`, in the order of the table."""
    for key, group in table.group_by(by, maintain_order=True):
        axes.plot(group[x], group[y], label=_join(key), **style)


def _bars(axes: Axes, table: pl.DataFrame, by: list[str], y: str, bounds: tuple[str, str] | None = None) -> None:
    """A horizontal bar for each row, with its interval; the first row on top."""
    names = [_join(row) for row in table.select(by).iter_rows()]
    values = [value or 0.0 for value in table[y]]
    axes.barh(range(len(names)), values, color="#2f81f7", height=0.6)
    for place, row in enumerate(table.iter_rows(named=True)):
        if bounds is not None and row[bounds[0]] is not None:
            axes.plot([row[bounds[0]], row[bounds[1]]], [place, place], color="#333333", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def _join(key: Any) -> str:
    return ", ".join(str(part) for part in key if part is not None)


def _label(axes: Axes, x: str, y: str = "") -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _draw_concentration(axes: Axes, table: pl.DataFrame) -> None:
    _bars(axes, table, ["task", "score"], "gini", ("low", "high"))
    axes.set_xlim(0, 1)
    _label(axes, "Gini coefficient (0 even, 1 all on one token)")


def _draw_lorenz(axes: Axes, table: pl.DataFrame) -> None:
    _lines(axes, table, "share_of_tokens", "share_of_score", ["task", "score"])
    axes.plot([0, 1], [0, 1], **_DIAGONAL)
    _label(axes, "share of tokens, smallest scores first", "share of score")


def _draw_position(axes: Axes, table: pl.DataFrame) -> None:
    _lines(axes, table, "left", "density", ["task", "score"], drawstyle="steps-post")
    axes.axhline(1, **_DIAGONAL)
    axes.set_ylim(bottom=0)
    _label(axes, "place in the sample, t / n", "density of the top 1 %")


def _draw_overlap(axes: Axes, table: pl.DataFrame) -> None:
    _lines(axes, table, "top_percent", "iou", ["task", "score"], marker="o", markersize=3)
    chance = table.unique("top_percent", maintain_order=True)
    axes.plot(chance["top_percent"], chance["chance"], label="chance", **_DIAGONAL)
    axes.set_ylim(0, 1.02)
    _label(axes, "top p % of the tokens", "IoU with the top by entropy")


def _draw_planning(axes: Axes, table: pl.DataFrame) -> None:
    _bars(axes, table, ["task", "run", "set", "score", "class"], "enrichment", ("low", "high"))
    axes.axvline(1, **_DIAGONAL)
    _label(axes, "enrichment (share in set / in base rollouts)")


def _draw_failure(axes: Axes, table: pl.DataFrame) -> None:
    _bars(axes, table, ["task", "signal"], "auroc", ("low", "high"))
    axes.axvline(0.5, **_DIAGONAL)
    axes.set_xlim(0, 1)
    _label(axes, "AUROC of the 100 largest scores' mean for an incorrect answer")


def _draw_budget(axes: Axes, table: pl.DataFrame) -> None:
    for row in table.iter_rows(named=True):
        (point,) = axes.plot(row["realized_rate"], row["acc"], "o", label=_join((row["task"], row["run"])))
        if row["acc_low"] is not None:
            axes.plot(
                [row["realized_rate"]] * 2, [row["acc_low"], row["acc_high"]], color=point.get_color(), linewidth=1
            )
    axes.set_ylim(0, 1.03)
    _label(axes, "realized rate", "Acc")


def _draw_rates(axes: Axes, table: pl.DataFrame) -> None:
    mixed = table.filter(pl.col("realized_rate").is_between(0, 1, closed="none").any().over("run"))  # two models write
    for (run,), group in (table if mixed.is_empty() else mixed).group_by(["run"], maintain_order=True):
        axes.hist(group["realized_rate"], bins=20, histtype="step", label=str(run))
    _label(axes, "realized rate of a problem", "problems")


def _draw_flips(axes: Axes, table: pl.DataFrame) -> None:
    names = [_join(row) for row in table.select("task", "run").iter_rows()]
    axes.barh(range(len(names)), table["rescued"], color="#2f81f7", label="rescued")
    axes.barh(range(len(names)), [-harmed for harmed in table["harmed"]], color="#d1495b", label="harmed")
    axes.axvline(0, color="#333333", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    _label(axes, "problems (harmed to the left)")


def _draw_cross(axes: Axes, table: pl.DataFrame) -> None:
    for row in table.iter_rows(named=True):
        axes.plot(row["replaced_share"], row["acc"], "o", label=_join((row["task"], row["run"], row["direction"])))
    axes.set_ylim(0, 1.03)
    _label(axes, "share of tokens from the donor", "Acc")


def _draw_ranks(axes: Axes, table: pl.DataFrame) -> None:
    _lines(axes, table, "rank", "share", ["task", "run"], marker="o")
    axes.set_ylim(bottom=0)
    _label(axes, "rank of the donor's token under the host", "share of takeovers")


def _draw_effects(axes: Axes, table: pl.DataFrame) -> None:
    edges = [-1.0625 + 0.125 * place for place in range(18)]
    for (kind,), group in table.group_by(["kind"], maintain_order=True):
        share = [1 / len(group)] * len(group)
        axes.hist(group["effect"], edges, weights=share, histtype="step", label=f"{kind}s ({len(group)})")
    _label(axes, "effect of the donor's token on the share of correct texts", "share of positions")


def _draw_effect_by_score(axes: Axes, table: pl.DataFrame) -> None:
    for (score,), group in table.group_by(["score"], maintain_order=True):
        axes.plot(group["bin"] + 1, group["effect"], label=score, marker="o", markersize=3)
    axes.axhline(0, **_DIAGONAL)
    _label(axes, "tenth of the positions, smallest scores first", "mean effect")


def _draw_effect_summary(axes: Axes, table: pl.DataFrame) -> None:
    _bars(axes, table, ["kind"], "effect", ("low", "high"))
    axes.axvline(0, color="#333333", linewidth=0.8)
    _label(axes, "mean effect on the share of correct texts, 95 % over problems")


def _draw_effect_auroc(axes: Axes, table: pl.DataFrame) -> None:
    _bars(axes, table, ["score"], "auroc", ("low", "high"))
    axes.axvline(0.5, **_DIAGONAL)
    axes.set_xlim(0, 1)
    _label(axes, "AUROC for an effect above 25 points")


def _draw_near(axes: Axes, table: pl.DataFrame) -> None:
    _lines(axes, table, "threshold", "share", ["task", "score"], marker="o", markersize=3)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.03)
    _label(axes, "nats", "share of tokens below")


def _draw_choices(axes: Axes, table: pl.DataFrame) -> None:
    shown = table.filter(pl.col("score") == table["score"][0])
    _bars(axes, shown, ["task", "set", "measure"], "value", ("low", "high"))
    axes.set_xlim(0, 1)
    _label(axes, f"share; peaks by {table['score'][0]}")


def _draw_entropies(axes: Axes, table: pl.DataFrame) -> None:
    for name in ("base_entropy", "guide_entropy"):
        for (task,), group in table.group_by(["task"], maintain_order=True):
            axes.plot(group["right"], group[name], marker="o", markersize=3, label=_join((task, name)))
    axes.set_ylim(bottom=0)
    _label(axes, "js up to, in nats", "mean entropy, in nats")


_DRAWN: Mapping[str, Callable[[Axes, pl.DataFrame], None]] = {
    "concentration": _draw_concentration,
    "lorenz": _draw_lorenz,
    "position": _draw_position,
    "overlap": _draw_overlap,
    "planning": _draw_planning,
    "failure": _draw_failure,
    "near": _draw_near,
    "choices": _draw_choices,
    "entropy_by_js": _draw_entropies,
    "budget": _draw_budget,
    "rates": _draw_rates,
    "flips": _draw_flips,
    "cross": _draw_cross,
    "ranks": _draw_ranks,
    "effects": _draw_effects,
    "effect_by_score": _draw_effect_by_score,
    "effect_summary": _draw_effect_summary,
    "effect_auroc": _draw_effect_auroc,
}
