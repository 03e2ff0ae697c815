"""The tables of a comparison below its leaderboard: costs by row, and areas by method."""

from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval_takeover.commands._output import WRITERS, Table, show_p_value
from lm_eval_takeover.commands.compare.picture import COSTS
from lm_eval_takeover.results.runs import TOTALS


def write_costs(costs: Sequence[Mapping[str, Any]], format_name: str) -> str:
    """The lines of `describe_costs` as a table for a terminal, Markdown or LaTeX."""
    lines = [[row["row"], *(_show(row[name], ",.0f") for name in (*TOTALS, "seconds"))] for row in costs]
    notes = [
        "A pass is one forward call for one sample, without prefill. Seconds are those of generation, over all attempts."
    ]
    if any(row["seconds"] is None for row in costs):
        notes.append("No seconds: this model type does not report those of its generation.")
    columns = ["Row", *(name.capitalize().replace("_", " ") for name in (*TOTALS, "seconds"))]
    return WRITERS[format_name](Table(columns, lines, notes))


def write_areas(areas: Sequence[Mapping[str, Any]], format_name: str, cost: str) -> str:
    """The lines of frontier_area.csv as a table, in percentage points."""
    lines = []
    for area in areas:
        shown = [area["method"], _show_points(area, "area", ""), area["versus"] or ""]
        shown += [_show_points(area, "difference", "difference_"), show_p_value(area["p_holm"])]
        lines.append([*shown, _show(area["least_cost_90"], ".4g")])
    notes = [
        "Area: the mean gain over the host, in percentage points, over rates from 0 to the largest rate that all methods reach, "
        f"at most 10 %. 90% at: the least cost ({COSTS[cost][1]}) with 90 % of the donor's gain. Intervals: 95 %, over problems."
    ]
    columns = ["Method", "Area", "Against", "Difference", "p (Holm)", "90% at"]
    return WRITERS[format_name](Table(columns, lines, notes))


def _show(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _show_points(area: Mapping[str, Any], name: str, prefix: str) -> str:
    points = [100 * area[key] for key in (name, f"{prefix}low", f"{prefix}high") if area[key] is not None]
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(*points) if points else ""
