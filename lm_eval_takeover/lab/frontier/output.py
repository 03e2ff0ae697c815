"""The tables of a frontier, areas and least costs by method, and its picture: Acc and Pass@k against a cost.

The four best methods share a panel of the picture; small panels show each method. A method's band is that of its gains, which
holds all its rates at once, set upon the host's figure; the row's own interval where there is none. Readable on white and dark
pages and on a phone: no background, middle lightness. Every point has a title, which a browser shows under the pointer.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from html import escape
from itertools import product
from typing import Any

from lm_eval_takeover.commands._output import WRITERS, Table, name_roles, show_figure, show_p, show_span, write_study, writing
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.lab.extra import draw_svg
from lm_eval_takeover.lab.frontier import AREA_AXES, COSTS
from lm_eval_takeover.lab.frontier.curves import LEAST
from lm_eval_takeover.lab.frontier.study import AREA_COLUMNS, METRICS, ComparedFolder, Frontier, merge_pair
from lm_eval_takeover.results.kept_rows import DRAFTED
from lm_eval_takeover.results.summary import name_passed

_STYLES = {"base": (0, (1, 2)), "guide": (0, (5, 2)), "thinking": (0, (3, 2, 1, 2))}  # of models alone
_INK, _COLOURS = "#7a7d82", ("#2f81f7", "#d9730d", "#2da44e", "#b55fe6")  # a contrast of 3 on white and on a dark page
_WIDTH, _COLUMNS = 5.4, 3  # inches, which a phone shows whole, and small panels beside each other
_SETTINGS = {
    **{"savefig.transparent": True, "font.family": "sans-serif", "font.size": 10},
    **{f"{name}color": _INK for name in ("text.", "axes.label", "axes.edge", "xtick.", "ytick.")},
}
_Lines = Sequence[Mapping[str, Any]]


def make_frontier(options: argparse.Namespace) -> int:
    """Write and print the frontier of all folders; returns the exit status. Raises ArgumentError for what differs."""
    comparisons, whole = [ComparedFolder.read(folder) for folder in options.runs], Frontier([], [])
    for other in comparisons[1:]:
        if differences := comparisons[0].list_differences(other):
            folders = f"'{comparisons[0].folder}' and '{other.folder}'"
            raise ArgumentError(f"{folders} differ in {'; '.join(differences)}; give folders that agree")
    pairs = list(dict.fromkeys(comparison.pair for comparison in comparisons))
    if options.effects is not None and len(pairs) > 1:
        raise ArgumentError(f"--effects '{options.effects}' is of one pair, and the folders are of {len(pairs)}")
    for pair in pairs:
        frontier = merge_pair([comparison for comparison in comparisons if comparison.pair == pair], options.effects)
        named = {}
        if len(pairs) > 1:
            short = " + ".join(name.partition("@")[0].rstrip("/").rpartition("/")[2] for name in pair.split(" + "))
            named = {"pair": pair if short in {line["pair"] for line in whole.lines} else short}
            print(named["pair"])
        whole.lines.extend(line | named for line in frontier.lines)
        whole.all_areas.extend(area | named for area in frontier.all_areas)
        print(write_frontier(frontier, options.cost, options.format))
    picture = draw_frontier(whole.averages, options.cost, frontier.host)
    with writing("out", options.out):
        write_study(options.out, "frontier", list(whole.lines[0]), whole.lines, picture)
        columns = list(whole.all_areas[0] if whole.all_areas else AREA_COLUMNS)
        write_study(options.out, "frontier_area", columns, whole.all_areas, None)
    print(f"{len(comparisons)} comparison{'s' if len(comparisons) > 1 else ''} -> {options.out}")
    return 0


def write_frontier(frontier: Frontier, axis: str, format_name: str) -> str:
    """Areas and least costs on one axis each, which their titles name, or why there are none."""
    areas = frontier.areas
    if not areas:
        return f"{frontier.why}\n"
    write, mark = WRITERS[format_name], "% " if format_name == "latex" else ""
    over = axis if axis in AREA_AXES else AREA_AXES[0]
    lines, has_oracle = [], any(area["oracle_share"] is not None for area in areas)
    for area in sorted(areas, key=lambda area: -(area["area"] or 0)):
        if area["axis"] == over:
            own = show_figure(area["area"], "+.1f", 100, area["low"], area["high"])
            steps = show_span(area["area_low_step"], area["area_high_step"], "+.1f", 100)
            bounds = area["difference_low"], area["difference_high"]
            against = [show_figure(area["difference"], "+.1f", 100, *bounds), show_p(area["p_holm"])]
            bounds = area["oracle_share_low"], area["oracle_share_high"]
            share = [show_figure(area["oracle_share"], ".0f", 100, *bounds)] * has_oracle
            lines.append([area["method"], area["versus"] or "", own, steps, *against, *share])
    notes = [
        "The best method is the first. "
        f"Area: the mean gain over the {frontier.host} alone, in percentage points, over costs from 0 to the largest that all "
        "methods reach, at most 10 %. Steps: the area if each gain comes at the end, or at the start, of its stretch between "
        "measured costs. Intervals are 95 %, over problems, and include this error; more --rates make it smaller."
    ]
    columns = ["Method", "Against", "Area", "Steps", "Difference", "p (Holm)", *["Of oracle, %"] * has_oracle]
    if has_oracle:
        notes.append(
            "Oracle: the takeovers of largest effect first, if effects of single takeovers add up; as shrunk, and as measured. "
            "Of oracle: the share of the first, with an interval that has the share of both."
        )
    titles = {name: name_roles(title, frontier.host) for name, (_, title) in COSTS.items()}
    shown = f"{mark}Areas by {titles[over]}\n{write(Table(columns, lines, notes, names=1 + any(line[1] for line in lines)))}"
    least = "asked" if axis == "share" else axis
    form = ".3g" if least in ("passes", "weights", "seconds") else ".1%"
    lines = []
    for area in {area["method"]: area for area in areas if area["axis"] == least}.values():
        half, most, low, high = (show_figure(area[name], form) for name in LEAST)
        lines.append([area["method"], half, most, f"{low} to {high or 'not reached'}" if low else ""])
    gain = name_roles("50 and 90 % of the gain of the guide alone", frontier.host)
    notes = [f"The best price is the lowest one. The least cost at which a method has {gain}; empty if it never has."]
    if any(line[0].startswith(DRAFTED) for line in lines):
        notes.append("drafted: the guide writes its own text with drafts of the base. A method that costs more saves nothing.")
    return f"{shown}\n{mark}Least {titles[least]}\n{write(Table(['Method', '50 % at', '90 % at', '95 %'], lines, notes))}"


def draw_frontier(lines: _Lines, axis: str, host: str = "base") -> str:
    """The picture as SVG. `lines` are those of frontier.csv for one task, of one pair or several."""
    column, title = COSTS[axis]
    metrics = [name for name in METRICS if any(line[name] is not None for line in lines)]
    methods = _group_methods(lines if metrics else (), column)
    means = {name: sum(line[metrics[0]] or 0.0 for line in points) / len(points) for name, points in methods.items()}
    colours = dict(zip(sorted(means, key=lambda name: -means[name]), _COLOURS, strict=False))
    pairs, points = dict.fromkeys(line.get("pair") for line in lines), dict[str, str]()
    rows = -(-len(methods) // _COLUMNS) if len(methods) > len(_COLOURS) else 0
    parts = list(product(pairs, metrics))
    names = {name: _name_metric(name, lines) for name in metrics}

    def draw(figure: Any) -> None:
        for block, (pair, metric) in zip(figure.subfigures(len(parts), 1, squeeze=False)[:, 0], parts, strict=True):
            heading = f"{names[metric]}, {pair}" if pair else names[metric]
            block.suptitle(heading, x=0.01, ha="left", fontsize=11, fontweight="bold")
            own = [line for line in lines if line.get("pair") == pair and line[metric] is not None]
            _draw_panels(block, own, colours, column, metric, points)
            block.supxlabel(name_roles(title, host), fontsize=10)

    text = draw_svg(draw, (_WIDTH, (3.3 + 1.15 * rows) * len(parts)), _SETTINGS)
    return re.sub(r'<g id="(point-\d+)">', lambda at: f"{at[0]}<title>{escape(points[at[1]])}</title>", text)


def _name_metric(metric: str, lines: _Lines) -> str:
    """With the k of Pass@k, where all lines have one."""
    return METRICS[metric].replace("Pass@k", name_passed(line["k"] for line in lines if line.get("k")))


def _group_methods(lines: _Lines, column: str) -> dict[str, list[Mapping[str, Any]]]:
    """By method its lines that have this cost, along it; models alone are no methods."""
    methods: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        if line[column] is not None and line["method"] not in _STYLES and not line["method"].startswith(DRAFTED):
            methods.setdefault(line["method"], []).append(line)
    return {name: sorted(points, key=lambda line: line[column]) for name, points in methods.items()}


def _draw_panels(
    block: Any, lines: _Lines, colours: Mapping[str, str], column: str, metric: str, points: dict[str, str]
) -> None:
    """A panel of the methods that have a colour; if others are left, a small panel below it for each method."""
    methods = _group_methods(lines, column)
    places = [*methods, *["."] * (-len(methods) % _COLUMNS)] if len(methods) > len(colours) else []
    panels = [["best"] * _COLUMNS] + [places[at : at + _COLUMNS] for at in range(0, len(places), _COLUMNS)]
    axes = block.subplot_mosaic(panels, height_ratios=[2.4] + [1] * (len(panels) - 1), sharex=True, sharey=True)
    for panel, line in product(axes.values(), lines if column.partition("_per_")[1] else ()):
        if line["method"].startswith(DRAFTED):  # what lies to the right of it saves nothing
            panel.plot(line[column], line[metric], "D", color=_INK, markersize=5, label=line["row"])
            panel.axvline(line[column], color=_INK, linewidth=0.8)
    for name, colour in ((name, colour) for name, colour in colours.items() if name in methods):
        _draw_method(axes["best"], methods[name], column, metric, colour, points)
    for panel in axes.values():
        for line in lines:
            if line["method"] in _STYLES:
                style = {"linestyle": _STYLES[line["method"]], "label": line["row"]}
                panel.axhline(line[metric], color=_INK, linewidth=1.2, **style)
    axes["best"].legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    axes["best"].set_ylim(0, 1.04)
    if column != "weights_per_token":  # a method of one rate does not stretch the axis, if others have several
        widest = max(methods.values(), key=lambda own: (len(own) > 1, own[-1][column]), default=[{column: 0.0}])[-1][column]
        axes["best"].set_xlim(0, 1.05 * max(widest, 1e-9))
    axes["best"].tick_params(labelbottom=True)
    for name in methods if places else ():
        for other in methods.values():
            costs = [line[column] for line in other]
            axes[name].plot(costs, [line[metric] for line in other], color=_INK, linewidth=0.5, alpha=0.6)
        _draw_method(axes[name], methods[name], column, metric, colours.get(name, _INK), points)
        axes[name].set_title(name, fontsize=10, pad=3)
        axes[name].locator_params(nbins=4)


def _draw_method(axes: Any, lines: _Lines, column: str, metric: str, colour: str, points: dict[str, str]) -> None:
    """A band, a curve, and a point for each row, whose title `points` gets."""
    costs = [line[column] for line in lines]
    style = {"color": colour, "linewidth": 1.6}
    axes.plot(costs, [line[metric] for line in lines], **style, marker="o", markersize=5, label=lines[0]["method"])
    banded = [line for line in lines if line[f"{metric}_low"] is not None]
    bounds = [[_find_bound(line, metric, end) for line in banded] for end in ("low", "high")]
    if len(lines) == 1:  # a band would have no width
        axes.vlines([line[column] for line in banded], *bounds, **style)
    axes.fill_between([line[column] for line in banded], *bounds, color=colour, alpha=0.18, linewidth=0)
    for line in lines:
        point, where = f"point-{len(points)}", f"{column.replace('_', ' ')} {line[column]:.3g}"
        points[point] = f"{line['row']}: {_name_metric(metric, [line])} {line[metric]:.1%} at {where}"
        axes.plot([line[column]], [line[metric]], "o", color=colour, markersize=5, gid=point)


def _find_bound(line: Mapping[str, Any], metric: str, end: str) -> float:
    bound = line.get(f"{metric}_gain_{end}")
    moved = line[f"{metric}_{end}"] if bound is None else line[metric] - line[f"{metric}_gain"] + bound
    return min(max(float(moved), 0.0), 1.0)
