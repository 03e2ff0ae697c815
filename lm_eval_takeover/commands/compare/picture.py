"""The picture of a frontier: Acc and Pass@8 against what the donor costs, a curve for each method.

Readable on white and on dark pages alike: no background, and colours of middle lightness. Every point has a title, which browsers
show when the pointer rests on it.
"""

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.storage.whole_files import write_text

_AXES = {
    "realized_rate": "share of the tokens that the donor wrote",
    "donor_passes_per_token": "passes of the donor per token",
    "weights_per_token": "weights read per token",
    "seconds_per_problem": "seconds per problem",
}
_METRICS = {"acc": "Acc", "pass8": "Pass@8"}
_INK = "#7a7d82"  # a contrast of 4 on white and on a dark page alike
_COLOURS = (
    "#2f81f7",
    "#d1495b",
    "#2a9d5c",
    "#b7791f",
    "#8957e5",
    "#0e8a93",
    "#c2558f",
    "#7c8b2a",
    "#a0522d",
    "#5b7083",
)
_SETTINGS = {
    **{"svg.fonttype": "none", "svg.hashsalt": "frontier", "font.family": "sans-serif", "font.size": 10},
    **{f"{name}color": _INK for name in ("text.", "axes.label", "axes.edge", "xtick.", "ytick.")},
    **{"axes.spines.top": False, "axes.spines.right": False},
}


def draw_frontier(lines: Sequence[Mapping[str, Any]], cost: str, path: Path) -> None:
    """`lines` are those of frontier.csv for one task, `cost` the column of the axis. Raises ArgumentError without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise ArgumentError("figures need matplotlib: pip install 'lm-eval-takeover[analysis]'") from error
    from matplotlib.figure import Figure

    points: dict[str, str] = {}
    with matplotlib.rc_context(_SETTINGS):
        panels = [name for name in _METRICS if any(line[name] is not None for line in lines)]
        # One panel above the other, so that labels stay readable on a phone.
        figure = Figure(figsize=(5.4, 1.2 + 3.2 * len(panels)), layout="constrained")
        for axes, metric in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
            _draw_panel(axes, lines, cost, metric, points)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})

    def put_title(found: re.Match[str]) -> str:
        return f"{found[0]}<title>{escape(points[found[1]])}</title>"

    text = re.sub(r'<g id="(point-\d+)">', put_title, stream.getvalue())
    write_text(path, "\n".join(line.rstrip() for line in text.splitlines()) + "\n")


def _draw_panel(axes: Any, lines: Sequence[Mapping[str, Any]], cost: str, metric: str, points: dict[str, str]) -> None:
    """A band and a curve for each method, from the host's own point on; a level line for each model alone."""
    methods: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        methods.setdefault(line["method"], []).append(line)
    alone = {name: methods.pop(name)[0] for name in ("base", "guide", "thinking") if name in methods}
    for (name, line), style in zip(alone.items(), ((0, (1, 2)), (0, (5, 2)), (0, (3, 2, 1, 2))), strict=False):
        if line[metric] is not None:
            axes.axhline(line[metric], color=_INK, linewidth=1.2, linestyle=style, label=f"{name} alone")
    for place, (method, found) in enumerate(methods.items()):
        colour, dashes = _COLOURS[place % len(_COLOURS)], "-" if place < len(_COLOURS) else "--"
        known = [line for line in found if line[cost] is not None and line[metric] is not None]
        known.sort(key=lambda line: line[cost])
        x, y = [line[cost] for line in known], [line[metric] for line in known]
        axes.plot(x, y, dashes, color=colour, linewidth=1.6, label=method)
        bounds = [[line[f"{metric}_{end}"] for line in known] for end in ("low", "high")]
        if known and None not in bounds[0]:
            axes.fill_between(x, *bounds, color=colour, alpha=0.13, linewidth=0)
        for line in known:
            point = f"point-{len(points)}"
            points[point] = (
                f"{line['row']}: {_METRICS[metric]} {line[metric]:.1%} at {cost.replace('_', ' ')} {line[cost]:.3g}"
            )
            axes.plot([line[cost]], [line[metric]], "o", color=colour, markersize=5, gid=point)
    axes.set_xlabel(_AXES[cost])
    axes.set_title(_METRICS[metric], loc="left", fontsize=10)
    axes.set_ylim(0, 1.02)
    if cost != "weights_per_token":
        axes.set_xlim(left=0)
