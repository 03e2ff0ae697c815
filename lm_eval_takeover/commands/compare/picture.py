"""The picture of a frontier: Acc and Pass@8 against a cost, a panel for each method with the others in grey.

Readable on white and on dark pages: no background, and colours of middle lightness. Every point has a title, which a browser
shows under the pointer.
"""

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from lm_eval_takeover.commands._output import draw_svg
from lm_eval_takeover.storage.whole_files import write_text

COSTS = {  # by the name of an axis its column in frontier.csv
    "share": "realized_rate",
    "passes": "donor_passes_per_token",
    "weights": "weights_per_token",
    "seconds": "seconds_per_problem",
}
_AXES = {
    "realized_rate": "share of tokens taken over",
    "donor_passes_per_token": "passes per token of the model that takes over",
    "weights_per_token": "weights read per token",
    "seconds_per_problem": "seconds per problem",
}
_METRICS = {"acc": "Acc", "pass8": "Pass@8"}
_STYLES = {"base": (0, (1, 2)), "guide": (0, (5, 2)), "thinking": (0, (3, 2, 1, 2))}  # of models alone
_INK, _ACCENT = "#7a7d82", "#2f81f7"  # a contrast of 4 on white and on a dark page alike
_WIDTH, _HEIGHT = 5.4, 1.15  # of the picture, which a phone shows whole, and of a panel, in inches
_SETTINGS = {
    **{"savefig.transparent": True, "font.family": "sans-serif", "font.size": 10},
    **{f"{name}color": _INK for name in ("text.", "axes.label", "axes.edge", "xtick.", "ytick.")},
}
_Lines = Sequence[Mapping[str, Any]]


def draw_frontier(lines: _Lines, cost: str, path: Path) -> None:
    """`lines` are those of frontier.csv for one task, `cost` the column of the axis. Raises ArgumentError without matplotlib."""
    methods: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        if line["method"] not in _STYLES and line[cost] is not None:
            methods.setdefault(line["method"], []).append(line)
    for of_method in methods.values():
        of_method.sort(key=lambda line: line[cost])
    methods = methods or {"": []}
    metrics = [name for name in _METRICS if any(line[name] is not None for line in lines)]
    columns = min(3, len(methods))
    rows = -(-len(methods) // columns)
    points: dict[str, str] = {}

    def draw(figure: Any) -> None:
        for block, metric in zip(figure.subfigures(len(metrics), 1, squeeze=False)[:, 0], metrics, strict=True):
            block.suptitle(_METRICS[metric], x=0.01, ha="left", fontsize=11, fontweight="bold")
            grid = block.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
            for place, (axes, method) in enumerate(zip(grid, methods, strict=False)):
                _draw_alone(axes, lines, metric)
                for other in methods.values():
                    _draw_curve(axes, other, cost, metric, color=_INK, linewidth=0.5, alpha=0.6, label="other methods")
                _draw_method(axes, methods[method], cost, metric, points)
                axes.set_title(method, fontsize=10, pad=3)
                axes.tick_params(labelbottom=place >= len(methods) - columns)
                axes.locator_params(nbins=4)
            for axes in grid[len(methods) :]:
                axes.set_visible(False)
            block.supxlabel(_AXES[cost], fontsize=10)
        handles = dict(zip(*reversed(figure.axes[0].get_legend_handles_labels()), strict=True))
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=4, frameon=False)

    def put_title(group: re.Match[str]) -> str:
        return f"{group[0]}<title>{escape(points[group[1]])}</title>"

    text = draw_svg(draw, (_WIDTH, 0.4 + len(metrics) * (0.55 + _HEIGHT * max(rows, 2))), _SETTINGS)
    write_text(path, re.sub(r'<g id="(point-\d+)">', put_title, text))


def _draw_alone(axes: Any, lines: _Lines, metric: str) -> None:
    """A level line for each model alone."""
    for line in lines:
        if (name := line["method"]) in _STYLES and line[metric] is not None:
            axes.axhline(line[metric], color=_INK, linewidth=1.2, linestyle=_STYLES[name], label=f"{name} alone")
    axes.set_ylim(0, 1.04)


def _draw_curve(axes: Any, lines: _Lines, cost: str, metric: str, **style: Any) -> None:
    axes.plot([line[cost] for line in lines], [line[metric] for line in lines], **style)


def _draw_method(axes: Any, lines: _Lines, cost: str, metric: str, points: dict[str, str]) -> None:
    """A band, a curve, and a point for each row, whose title `points` gets."""
    known = [line for line in lines if line[metric] is not None]
    _draw_curve(axes, known, cost, metric, color=_ACCENT, linewidth=1.6)
    bounds = [[line[f"{metric}_{end}"] for line in known] for end in ("low", "high")]
    if known and None not in bounds[0]:
        axes.fill_between([line[cost] for line in known], *bounds, color=_ACCENT, alpha=0.25, linewidth=0)
    for line in known:
        point, where = f"point-{len(points)}", f"{cost.replace('_', ' ')} {line[cost]:.3g}"
        points[point] = f"{line['row']}: {_METRICS[metric]} {line[metric]:.1%} at {where}"
        axes.plot([line[cost]], [line[metric]], "o", color=_ACCENT, markersize=4, gid=point)
    if cost != "weights_per_token":
        axes.set_xlim(0, 1.05 * axes.dataLim.x1)  # a margin, also where all points have nearly one cost
