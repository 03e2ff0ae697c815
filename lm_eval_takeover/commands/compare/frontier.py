"""The frontier of a comparison: what each method brings at each cost, as tables in files, and their picture.

RUN_DIR/frontier.csv, .json        a line per row, rate and task, and for their average
RUN_DIR/frontier_area.csv, .json   a line per method, and per method that it is compared with
RUN_DIR/frontier.svg               the picture
"""

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lm_eval_takeover.commands._output import WRITERS, Table
from lm_eval_takeover.commands.compare.picture import COSTS, draw_frontier
from lm_eval_takeover.commands.compare.rows import PlannedRow
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.frontier import Area, Curve, compare_areas
from lm_eval_takeover.results.runs import MATHEMATICAL, Run, TaskResult, common_ids
from lm_eval_takeover.results.statistics import Interval, average_interval
from lm_eval_takeover.storage.whole_files import write_text

COLUMNS = (
    *("row", "method", "rate", *COSTS.values(), "task"),
    *("acc", "acc_low", "acc_high", "pass8", "pass8_low", "pass8_high"),
)
AREA_COLUMNS = (
    *("method", "area", "low", "high", "versus", "difference", "difference_low", "difference_high"),
    *("p_holm", "least_cost_90"),
)
_AGAINST = ("random", "entropy", "ce")
_METRICS = ("acc", "pass8")  # Pass@k of the k that the task has, where that is not 8
_ENDS = ("", "_low", "_high")
AVERAGE = "average"


@dataclass(frozen=True)
class Measured:
    """A row, its results by task (of all its calls, where it has one for each task), and its lines of frontier.csv by task."""

    row: PlannedRow
    tasks: Mapping[str, TaskResult]
    lines: Mapping[str, Mapping[str, Any]]


def describe_frontier(runs: Mapping[PlannedRow, Sequence[Run]], run_dir: Path, cost: str) -> list[dict[str, Any]]:
    """Write all files of the frontier. Returns the lines of the areas; none where no method has two rates."""
    shown = list(dict.fromkeys(task for of_row in runs.values() for run in of_row for task in run.tasks))
    averaged = [task for task in MATHEMATICAL if task in shown] or shown
    measured = [_measure(row, of_row, averaged) for row, of_row in runs.items()]
    _write("frontier", COLUMNS, [line for one in measured for line in one.lines.values()], run_dir)
    areas = [_describe_area(area) for area in _measure_areas(measured, averaged, COSTS[cost])]
    _write("frontier_area", AREA_COLUMNS, areas, run_dir)
    try:
        draw_frontier([one.lines[AVERAGE] for one in measured], COSTS[cost], run_dir / "frontier.svg")
    except ArgumentError as error:
        print(f"no picture: {error}", file=sys.stderr)
    families = [one.row.family for one in measured if one.row.rate is not None]
    return areas if len(set(families)) < len(families) else []


def _measure(row: PlannedRow, runs: Sequence[Run], averaged: Sequence[str]) -> Measured:
    tasks = {task: result for run in runs for task, result in run.tasks.items()}
    seconds, problems = [run.seconds for run in runs], sum(result.count for result in tasks.values())
    each = sum(one for one in seconds if one) / problems if None not in seconds and problems else None
    found = {task: _describe_task(row, result, runs[0].parameters, each) for task, result in tasks.items()}
    parts = [found[task] for task in averaged if task in found]
    average: dict[str, Any] = {}
    for name in (*COSTS.values(), *_METRICS):
        values = [part[name] for part in parts]
        average[name] = None if None in values or not values else sum(values) / len(values)
    for name in _METRICS:
        known = [Interval(*(part[f"{name}{end}"] for end in _ENDS)) for part in parts]
        whole = average_interval(known) if average[name] is not None else None
        average |= {f"{name}_low": whole and whole.low, f"{name}_high": whole and whole.high}
    named = {"row": row.label, "method": row.family, "rate": row.rate}
    lines = {
        task: {name: (named | {"task": task} | line)[name] for name in COLUMNS}
        for task, line in {**found, AVERAGE: average}.items()
    }
    return Measured(row, tasks, lines)


def _describe_task(
    row: PlannedRow, result: TaskResult, parameters: Mapping[str, int], seconds: float | None
) -> dict[str, Any]:
    counts, tokens = result.counts, result.counts.tokens
    passes: dict[str, float] = {"base": counts.base_passes or 0, "guide": counts.guide_passes or 0}
    donor = (row.method.policy.donor if row.method else None) or "guide"
    weights = sum(passes[role] * count for role, count in parameters.items() if role in passes)
    line: dict[str, Any] = {
        "realized_rate": counts.realized_rate,
        "donor_passes_per_token": passes[donor] / tokens if tokens else None,
        "weights_per_token": weights / tokens if tokens and weights else None,
        "seconds_per_problem": seconds,
    }
    for name, metric in (("acc", "acc"), ("pass8", f"pass@{result.k}")):
        found = result.measure(metric)
        line |= {
            name: result.means.get(metric),
            f"{name}_low": found and found.low,
            f"{name}_high": found and found.high,
        }
    return line


def _measure_areas(measured: Sequence[Measured], averaged: Sequence[str], cost: str) -> list[Area]:
    """Nothing where the host alone is no row, or a row has other problems."""
    alone = {one.row.name: one for one in measured if one.row.name in ("base", "guide")}
    points: dict[str, list[Measured]] = {}
    for one in measured:
        at = one.lines[AVERAGE]
        if one.row.method is not None and at["realized_rate"] and at[cost] is not None:
            points.setdefault(one.row.family, []).append(one)
    policies = [one.row.method.policy for one in measured if one.row.method is not None]
    if not points or not policies or policies[0].host not in alone:
        return []
    known = [*alone.values(), *(one for found in points.values() for one in found)]
    if any(task not in one.tasks or one.tasks[task].problems is None for one in known for task in averaged):
        return []
    ids = {task: common_ids([one.tasks[task].problems for one in known]) for task in averaged}  # type: ignore[misc]
    if None in ids.values():
        return []
    start, donor = alone[str(policies[0].host)], alone.get(str(policies[0].donor))

    def gain(one: Measured, task: str) -> Any:
        own, host = (
            which.tasks[task].problems.ordered_as(ids[task]).values["acc"]  # type: ignore[union-attr, arg-type]
            for which in (one, start)
        )
        return own - host

    curves = {}
    for method, found in points.items():
        found.sort(key=lambda one: one.lines[AVERAGE]["realized_rate"])
        if (most := found[-1].row.covers) and most > found[-1].lines[AVERAGE]["realized_rate"]:
            end = {
                **found[-1].lines[AVERAGE],
                "realized_rate": most,
            }  # where more may be spent, the method stays where it is
            found.append(replace(found[-1], lines={AVERAGE: end}))
        rates, costs = ([one.lines[AVERAGE][name] for one in found] for name in ("realized_rate", cost))
        gains = [np.stack([gain(one, task) for one in found]) for task in averaged]
        samples = [start.tasks[task].samples or 1 for task in averaged]
        curves[method] = Curve(np.array(rates), gains, samples, np.array([start.lines[AVERAGE][cost] or 0.0, *costs]))
    whole = float(np.mean([gain(donor, task).mean() for task in averaged])) if donor else None
    return compare_areas(curves, _AGAINST, whole)


def _describe_area(area: Area) -> dict[str, Any]:
    own, against = area.area.interval(), area.difference.interval() if area.difference else None
    values = [area.method, own.value, own.low, own.high, area.versus]
    values += [against.value, against.low, against.high] if against else [None] * 3
    return dict(zip(AREA_COLUMNS, [*values, area.p_holm, area.least_cost], strict=True))


def _write(name: str, columns: Sequence[str], lines: Sequence[Mapping[str, Any]], run_dir: Path) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_text(run_dir / f"{name}.csv", text.getvalue())
    write_text(run_dir / f"{name}.json", json.dumps(list(lines), indent=1) + "\n")


def write_areas(areas: Sequence[Mapping[str, Any]], format_name: str, cost: str) -> str:
    """The areas as a table for a terminal, Markdown or LaTeX, in percentage points."""

    def show(area: Mapping[str, Any], name: str, low: str, high: str) -> str:
        points = [100 * area[one] for one in (name, low, high) if area[one] is not None]
        return "{:+.1f} ({:+.1f} to {:+.1f})".format(*points) if points else ""

    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    own, difference = ("area", "low", "high"), tuple(f"difference{end}" for end in _ENDS)
    lines = []
    for area in areas:
        shown = [area["method"], show(area, *own), area["versus"] or "", show(area, *difference)]
        lines.append([*shown, number(area["p_holm"], ".3g"), number(area["least_cost_90"], ".4g")])
    columns = ["Method", "Area", "Against", "Difference", "p (Holm)", "90% at"]
    notes = [
        "Area: the mean gain over the host, in percentage points, over rates from 0 to the largest one that all methods have, at "
        "most 10 %; a method that can write no more keeps its last gain. "
        f"90% at: the least cost ({COSTS[cost]}) with 90 % of the donor's gain. Intervals are 95 %, over problems."
    ]
    return WRITERS[format_name](Table(columns, lines, notes))
