"""The tables of a frontier: areas and least costs by method."""

from collections.abc import Mapping
from typing import Any

from lm_eval_takeover.commands._output import WRITERS, Table, show_p_value
from lm_eval_takeover.commands.compare.rows import DRAFTED, name_roles
from lm_eval_takeover.lab.frontier.axes import AREA_AXES, COSTS
from lm_eval_takeover.lab.frontier.study import Frontier


def write_frontier(frontier: Frontier, axis: str, format_name: str) -> str:
    """Areas and least costs on one axis each, which their titles name; empty if there is nothing to show."""
    areas = frontier.areas
    if not areas:
        return f"{frontier.why}\n" if frontier.why else ""
    write, mark = WRITERS[format_name], "% " if format_name == "latex" else ""
    over = axis if axis in AREA_AXES else AREA_AXES[0]
    lines, has_oracle = [], any(area["oracle_share"] is not None for area in areas)
    for area in areas:
        if area["axis"] == over:
            own = [_show_points(area, "area"), _show_points(area, "area_low_step", "area_high_step")]
            against = [area["versus"] or "", _show_points(area, "difference"), show_p_value(area["p_holm"])]
            shares = [_show_points(area, "oracle_share", form=".0f")] * has_oracle
            lines.append([area["method"], *own, *against, *shares])
    notes = [
        f"Area: the mean gain over the {frontier.host} alone, in percentage points, over costs from 0 to the largest that all "
        "methods reach, at most 10 %. Steps: the area if each gain comes at the end, or at the start, of its stretch between "
        "measured costs. Intervals are 95 %, over problems, and include this error; more --rates make it smaller."
    ]
    columns = ["Method", "Area", "Steps", "Against", "Difference", "p (Holm)", *["Of oracle, %"] * has_oracle]
    if has_oracle:
        notes.append(
            "Oracle: the takeovers of largest effect first, if effects of single takeovers add up; as shrunk, and as measured. "
            "Of oracle: the share of the first, with an interval that has the share of both."
        )
    titles = {name: name_roles(title, frontier.host) for name, (_, title) in COSTS.items()}
    shown = f"{mark}Areas by {titles[over]}\n{write(Table(columns, lines, notes))}"
    least = "asked" if axis == "share" else axis
    form = ".3g" if least in ("passes", "weights", "seconds") else ".1%"
    lines = []
    for area in {area["method"]: area for area in areas if area["axis"] == least}.values():
        half, most, low, high = (_show(area[f"least_cost_{goal}"], form) for goal in ("50", "90", "90_low", "90_high"))
        lines.append([area["method"], half, most, f"{low} to {high or 'not reached'}" if low else ""])
    gain = name_roles("50 and 90 % of the gain of the guide alone", frontier.host)
    notes = [f"The least cost at which a method has {gain}; empty if it never has."]
    if any(line[0].startswith(DRAFTED) for line in lines):
        notes.append("drafted: the guide writes its own text with drafts of the base. A method that costs more saves nothing.")
    return f"{shown}\n{mark}Least {titles[least]}\n{write(Table(['Method', '50 % at', '90 % at', '95 %'], lines, notes))}"


def _show(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _show_points(area: Mapping[str, Any], name: str, to: str = "", form: str = "+.1f") -> str:
    """In percentage points: a figure with its interval, or from one figure to another."""
    if area[name] is None:
        return ""
    ends = [to] if to else ["low", "high"] if name == "area" else [f"{name}_low", f"{name}_high"]
    value, *shown = (_show(None if area[each] is None else 100 * area[each], form) for each in (name, *ends))
    return f"{value} to {shown[0]}" if to else value + (f" ({shown[0]} to {shown[1]})" if shown[0] else "")
