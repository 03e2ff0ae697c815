"""A figure of each analysis."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl

from lm_eval_takeover.lab.measures.catalogue import SHARES
from lm_eval_takeover.lab.measures.planning import CLASSES
from lm_eval_takeover.lab.measures.pooling import MEAN
from lm_eval_takeover.results.summary import name_passed

Axes = Any
Frame = pl.DataFrame
Names = Sequence[str]
Level = float | None
SIZE = (4.0, 2.9)  # inches: texts stay readable where a phone shows the figure
_COLOURS = ("#2f81f7", "#d1495b")
# Of a row by the first part of its name, the same in every figure; others take the further ones in turn.
_OF_ROWS = {
    "base": "#8b949e",
    "guide": "#2da44e",
    "random": "#d9822b",
    "early": "#a371f7",
    "guided": "#2f81f7",
    "ce": "#2f81f7",
}
_FURTHER = ("#d1495b", "#1b9aaa", "#8d6a9f", "#b58900", "#5c6b8a")
_INK = "#333333"
_TASK = ("task",)
_DOTS = {"marker": "o", "markersize": 3}
_DIAGONAL = {"color": "#888888", "linestyle": ":", "linewidth": 1}


def draw(name: str, table: Frame, figure: Any) -> None:
    """Draw this analysis into a matplotlib Figure of `SIZE`."""
    if name == "signals":  # those of the paper's figure
        table = table.filter(pl.col("score").is_in(["ce", "entropy"]))
    if "task" in table.columns and name != "effects":
        # The rows `mean` where they are of several tasks, else those of tasks: one figure is to be read at a glance.
        of_tasks, means = table.filter(pl.col("task") != MEAN), table.filter(pl.col("task") == MEAN)
        table = of_tasks if means.is_empty() or of_tasks["task"].n_unique() == 1 else means
        if len(tasks := table["task"].unique()) == 1:  # said once, above
            figure.suptitle("mean over tasks" if tasks[0] == MEAN else tasks[0], x=0.01, ha="left", fontsize=9)
            table = table.with_columns(task=pl.lit(None, pl.String))
    if name in _PANELS:
        _draw_panels(figure, table, DRAWN[name])
    else:
        DRAWN[name](figure.subplots(), table)
    _put_legend(figure)


def _draw_panels(figure: Any, table: Frame, draw_one: Callable[[Axes, pl.DataFrame], None]) -> None:
    """One panel for each score, two in a row, with one scale."""
    groups = [(str(key), group) for (key,), group in table.group_by(["score"], maintain_order=True)]
    lines = (len(groups) + 1) // 2
    figure.set_figheight(0.8 + 1.4 * lines)
    grid = figure.subplots(lines, min(2, len(groups)), sharex=True, sharey=True, squeeze=False)
    for axes, (value, group) in zip(grid.flat, groups, strict=False):
        draw_one(axes, group)
        axes.set_title(value, loc="left", fontsize=9)
        figure.supxlabel(axes.get_xlabel(), fontsize=9)
        figure.supylabel(axes.get_ylabel(), fontsize=9)
        axes.set(xlabel="", ylabel="")
        axes.autoscale(axis="y")  # over all panels
        if axes.dataLim.y0 >= 0:
            axes.set_ylim(bottom=0)
    axes.set_ylim(top=1.03 * axes.get_ylim()[1])
    for axes in list(grid.flat)[len(groups) :]:
        axes.set_axis_off()


def colour_rows(names: Iterable[str]) -> dict[str, str]:
    known = {name: _OF_ROWS.get(re.split(r"[@:-]", name)[0]) for name in dict.fromkeys(names)}
    others = [name for name, colour in known.items() if colour is None]
    return {name: colour or _FURTHER[others.index(name) % len(_FURTHER)] for name, colour in known.items()}


def _percent(axis: Any) -> None:
    axis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")


def _put_legend(figure: Any) -> None:
    """Below the figure, where it hides nothing; the label that panels share stands above it."""
    lines = {name: line for axes in figure.axes for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    if lines:
        columns = max(1, min(len(lines), 54 // (max(map(len, lines)) + 6)))
        legend = figure.legend(lines.values(), lines, loc="outside lower center", ncols=columns, frameon=False)
        if shared := figure.get_supxlabel():
            legend.set_title(shared)
            figure.supxlabel("")


def _lines(
    axes: Axes, table: Frame, x: str, y: str, labels: Names, by: Names = _TASK, level: Level = None, **style: Any
) -> None:
    """A line for each combination of `by`, with its band where there is one; `level` is a line to compare with."""
    style, step = style or _DOTS, {"step": "post"} if "drawstyle" in style else {}
    colours = colour_rows(table["run"]) if "run" in by else {}
    for key, group in table.group_by(by, maintain_order=True):
        colour = colours[group["run"][0]] if colours else None
        (line,) = axes.plot(group[x], group[y], label=_join(key), color=colour, **style)
        if "low" in group.columns:
            bounds = (group[end].cast(pl.Float64).to_numpy() for end in (x, "low", "high"))
            axes.fill_between(*bounds, color=line.get_color(), alpha=0.2, linewidth=0, **step)
    if level is not None:
        axes.axhline(level, **_DIAGONAL)
    axes.set(xlabel=labels[0], ylabel=labels[1])


def _bars(axes: Axes, table: Frame, by: Names, y: str, label: str, level: Level = None, limits: Any = (0, 1)) -> None:
    """A horizontal bar for each row, with its interval; the first row on top."""
    axes.barh(range(len(table)), [value or 0.0 for value in table[y]], color=_COLOURS[0], height=0.6)
    _intervals(axes, table, range(len(table)))
    _name_bars(axes, [_join(row) for row in table.select(by).iter_rows()])
    if level is not None:
        axes.axvline(level, **_DIAGONAL)
    if limits is not None:
        axes.set_xlim(*limits)
    axes.set(xlabel=label)


def _intervals(axes: Axes, table: Frame, heights: Iterable[float]) -> None:
    for height, low, high in zip(heights, table["low"], table["high"], strict=True):
        if low is not None:
            axes.plot([low, high], [height, height], color=_INK, linewidth=1)


def _name_bars(axes: Axes, names: Sequence[str], height: float = 0.24) -> None:
    """The first one on top; `height` inches each."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.figure.set_figheight(max(2.0, 1.0 + height * len(names)))


def _join(key: Any) -> str:
    return ", ".join(str(part) for part in key if part is not None)


def _draw_lorenz(axes: Axes, table: Frame) -> None:
    labels = (f"share of tokens, smallest scores first (line: the largest {SHARES[-1]} %)", "share of score")
    _lines(axes, table, x="share_of_tokens", y="share_of_score", labels=labels, marker="")
    axes.plot([0, 1], [0, 1], **_DIAGONAL)
    axes.axvline(1 - SHARES[-1] / 100, **_DIAGONAL)


def _draw_overlap(axes: Axes, table: Frame) -> None:
    labels = ("top p % of the tokens (dotted: chance)", "IoU with the top by entropy")
    _lines(axes, table, x="top_percent", y="iou", labels=labels)
    chance = table.unique("top_percent", maintain_order=True)
    axes.plot(chance["top_percent"], chance["chance"], **_DIAGONAL)
    axes.set_ylim(0, 1.02)


def _draw_planning(axes: Axes, table: Frame) -> None:
    keys = ["task", "run", "set", "score"]
    places = {key: place for place, key in enumerate(table.select(keys).unique(maintain_order=True).rows())}
    for number, name in enumerate(CLASSES):
        rows = table.filter(pl.col("class") == name)
        heights = [places[key] + (number - 0.5) * 0.36 for key in rows.select(keys).iter_rows()]
        values = rows["enrichment"].fill_null(0)
        axes.barh(heights, values, color=_COLOURS[number], height=0.34, label=f"{name} tokens")
        _intervals(axes, rows, heights)
    sets = {"peaks": "peaks of {score}", "takeovers": "takeovers of {run}"}
    names = [_join((task, sets[kind].format(score=score, run=run))) for task, run, kind, score in places]
    _name_bars(axes, names, 0.34)
    axes.axvline(1, **_DIAGONAL)
    axes.set(xlabel="enrichment over all tokens of the base")


def _draw_accuracies(axes: Axes, table: Frame, x: str, by: Names, label: str) -> None:
    """A point for each row, with its interval where there is one, and a hollow one of its Pass@k.

    A model alone that writes all tokens would stretch the axis: lines of its height stand for it.
    """
    colours = colour_rows(table["run"])
    for row in table.iter_rows(named=True):
        name, colour = _join(row[name] for name in by), colours[row["run"]]
        passed = math.nan if row.get("pass8") is None else row["pass8"]  # tasks of several k have none together
        if x == "realized_rate" and row[x] == 1:
            axes.axhline(row["acc"], label=f"{name} (100 %)", color=colour, linewidth=1)
            axes.axhline(passed, linestyle=":", color=colour, linewidth=1)
            continue
        axes.plot(row[x], row["acc"], "o", label=name, color=colour)
        if "acc_low" in row:
            axes.plot([row[x]] * 2, [row["acc_low"], row["acc_high"]], color=colour, linewidth=1)
            axes.plot(row[x], passed, "D", color=colour, markerfacecolor="#ffffff", markersize=4)
    axes.set_ylim(0, 1.03)
    _percent(axes.xaxis)
    _percent(axes.yaxis)
    ks = table["k"].drop_nulls() if "pass8" in table.columns else ()
    axes.set(xlabel=label, ylabel=f"Acc, {name_passed(ks)} (hollow)" if len(ks) else "Acc")


def _draw_rates(axes: Axes, table: Frame) -> None:
    mixed = table.filter(pl.col("realized_rate").is_between(0, 1, closed="none").any().over("run"))  # two models write
    colours = colour_rows(table["run"])
    for (run,), group in (table if mixed.is_empty() else mixed).group_by(["run"], maintain_order=True):
        axes.hist(group["realized_rate"], bins=20, histtype="step", label=str(run), color=colours[str(run)])
    _percent(axes.xaxis)
    axes.set(xlabel="realized rate of a problem", ylabel="problems")


def draw_overview(figure: Any, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """A line for each row: its scores as points with their intervals."""
    axes, styles = figure.subplots(), ({"marker": "o"}, {"marker": "D", "markerfacecolor": "#ffffff"})
    colours = colour_rows(rows)
    for place, (name, scores) in enumerate(rows.items()):
        for number, (metric, score) in enumerate(scores.items()):
            if score.interval is not None:
                height, style = place + 0.2 * (2 * number - 1), {"color": colours[name], **styles[number]}
                axes.plot([score.low, score.high], [height] * 2, color=colours[name], linewidth=1.5)
                axes.plot(score.value, height, linestyle="", label=metric if not place else None, **style)
    _name_bars(axes, list(rows), 0.36)
    axes.set_xlim(-0.02, 1.02)
    _percent(axes.xaxis)
    axes.grid(axis="x", color="#888888", alpha=0.3)
    _put_legend(figure)


def draw_places(figure: Any, places: Sequence[float]) -> None:
    """Where in an answer, from 0 to 1, the takeovers stand."""
    axes = figure.subplots()
    axes.hist(places, bins=20, range=(0, 1), color=_COLOURS[0])
    axes.set(xlabel="place in the answer (0: its start, 1: its end)", ylabel="takeovers")


def _draw_flips(axes: Axes, table: Frame) -> None:
    names = [_join(row) for row in table.select("task", "run").iter_rows()]
    axes.barh(range(len(names)), table["rescued"], color=_COLOURS[0], height=0.6, label="rescued")
    axes.barh(range(len(names)), [-harmed for harmed in table["harmed"]], color=_COLOURS[1], height=0.6, label="harmed")
    axes.axvline(0, color=_INK, linewidth=0.8)
    _name_bars(axes, names)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    axes.set(xlabel="problems (harmed to the left)")


def _draw_effects(axes: Axes, table: Frame) -> None:
    edges = [-1.0625 + 0.125 * place for place in range(18)]
    for (kind,), group in table.group_by(["kind"], maintain_order=True):
        share = (1 / group["inclusion"]) / (1 / group["inclusion"]).sum()
        axes.hist(group["effect"], edges, weights=share, histtype="step", label=f"{kind}s ({len(group)})")
    axes.set(xlabel="effect of the donor's token on the share of correct texts", ylabel="share of positions")


def _draw_signals(axes: Axes, table: Frame) -> None:
    low, high = table["value"].min(), table["value"].max()
    for correct, name in ((True, "correct"), (False, "incorrect")):
        values = table.filter(correct=correct)["value"]
        weights = [1 / max(1, len(values))] * len(values)
        axes.hist(values, bins=20, range=(low, high), weights=weights, histtype="step", label=f"{name} samples")
    axes.set(xlabel="mean of the 100 largest scores, in nats", ylabel="share of samples")


_PLACES = ("place in the sample, t / n", "density of the top 1 %")
_RANKS = ("rank of the donor's token under the host", "share of takeovers")
_PANELS = ("lorenz", "position", "overlap", "signals", "effect_by_score")  # with a panel for each score
DRAWN: Mapping[str, Callable[[Axes, pl.DataFrame], None]] = {
    "concentration": partial(_bars, by=["task", "score"], y="gini", label="Gini (0 even, 1 all on one token)"),
    "lorenz": _draw_lorenz,
    "position": partial(_lines, x="left", y="density", labels=_PLACES, level=1, drawstyle="steps-post"),
    "overlap": _draw_overlap,
    "planning": _draw_planning,
    "failure": partial(_bars, by=["task", "signal"], y="auroc", level=0.5, label="AUROC for an incorrect answer"),
    "signals": _draw_signals,
    "budget": partial(_draw_accuracies, x="realized_rate", by=["task", "run"], label="realized rate"),
    "rates": _draw_rates,
    "flips": _draw_flips,
    "cross": partial(
        _draw_accuracies, x="replaced_share", by=["task", "run", "direction"], label="share of tokens from the donor"
    ),
    "ranks": partial(_lines, x="rank", y="share", labels=_RANKS, by=["task", "run"], level=0),
    "effects": _draw_effects,
    "effect_by_score": partial(
        _lines, x="bin", y="effect", by=["kind"], labels=("tenth of the positions", "mean effect"), level=0
    ),
    "effect_summary": partial(
        _bars, by=["task", "kind"], y="effect", level=0, limits=None, label="mean effect on correct texts, 95 %"
    ),
    "effect_auroc": partial(_bars, by=["score", "kind"], y="auroc", level=0.5, label="AUROC for an effect above 25 points"),
}
