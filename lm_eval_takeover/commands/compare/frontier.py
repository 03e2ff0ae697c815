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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lm_eval_takeover.commands._tables import WRITERS, Table
from lm_eval_takeover.commands.compare.picture import draw_frontier
from lm_eval_takeover.commands.compare.rows import Row
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.frontier import Area, Curve, compare_areas
from lm_eval_takeover.results.runs import MATHEMATICAL, Run, TaskResult, common_ids, read_run
from lm_eval_takeover.results.statistics import Interval, average_interval, mean_interval
from lm_eval_takeover.storage.whole_files import write_text

COSTS = {
    "share": "realized_rate",
    "passes": "donor_passes_per_token",
    "weights": "weights_per_token",
    "seconds": "seconds_per_problem",
}
COLUMNS = (
    *("row", "method", "rate", *COSTS.values(), "task"),
    *("acc", "acc_low", "acc_high", "pass8", "pass8_low", "pass8_high"),
)
AREA_COLUMNS = (
    *("method", "area", "low", "high", "versus", "difference", "difference_low", "difference_high"),
    *("p_holm", "least_cost_90"),
)
_AGAINST = ("random", "entropy")
_METRICS = ("acc", "pass8")  # Pass@k of the k that the task has, where that is not 8
AVERAGE = "average"


@dataclass(frozen=True)
class Measured:
    """A row and its results; those of its calls together, where it has a call for each task."""

    row: Row
    runs: Sequence[Run]

    @property
    def tasks(self) -> dict[str, TaskResult]:
        return {task: result for run in self.runs for task, result in run.tasks.items()}

    def describe(self, averaged: Sequence[str]) -> list[dict[str, Any]]:
        """The lines of this row."""
        lines = [self._describe_task(task, result) for task, result in self.tasks.items()]
        parts = [line for line in lines if line["task"] in averaged]
        average: dict[str, Any] = {"task": AVERAGE}
        for name in (*COSTS.values(), *_METRICS):
            values = [line[name] for line in parts]
            average[name] = None if None in values or not values else sum(values) / len(values)
        for name in _METRICS:
            known = [Interval(*(part[f"{name}{end}"] for end in ("", "_low", "_high"))) for part in parts]
            whole = average_interval(known) if average[name] is not None else None
            average |= {f"{name}_low": whole and whole.low, f"{name}_high": whole and whole.high}
        named = {"row": self.row.label, "method": self.row.family, "rate": self.row.rate}
        return [{name: (named | line)[name] for name in COLUMNS} for line in [*lines, average]]

    def _describe_task(self, task: str, result: TaskResult) -> dict[str, Any]:
        counts = result.per_token
        passes: dict[str, float] = {role: counts.get(f"{role}_passes") or 0 for role in ("base", "guide")}
        policy = self.row.method.policy if self.row.method else None
        donor = policy.donor if policy is not None else "guide"
        tokens, parameters = counts.get("tokens"), self.runs[0].parameters
        weights = [passes[role] * count for role, count in parameters.items() if role in passes]
        line: dict[str, Any] = {
            "task": task,
            "realized_rate": counts.get("realized_rate"),
            "donor_passes_per_token": passes[donor or "guide"] / tokens if tokens else None,
            "weights_per_token": sum(weights) / tokens if tokens and weights else None,
            "seconds_per_problem": self._seconds_per_problem,
        }
        for name, metric in (("acc", "acc"), ("pass8", f"pass@{result.k}")):
            values = result.problems.values.get(metric) if result.problems else None
            found = None if values is None else mean_interval(values)
            line |= {
                name: result.means.get(metric),
                f"{name}_low": found and found.low,
                f"{name}_high": found and found.high,
            }
        return line

    @property
    def _seconds_per_problem(self) -> float | None:
        seconds = [run.seconds for run in self.runs]
        problems = sum(result.count for result in self.tasks.values())
        return sum(one for one in seconds if one) / problems if None not in seconds and problems else None


def describe_frontier(results: Mapping[Row, Sequence[Path]], run_dir: Path, cost: str) -> list[dict[str, Any]]:
    """Write all files of the frontier. Returns the lines of the areas; none where no method has two rates."""
    measured = [Measured(row, [read_run(path) for path in paths]) for row, paths in results.items()]
    shown = list(dict.fromkeys(task for one in measured for task in one.tasks))
    averaged = [task for task in MATHEMATICAL if task in shown] or shown
    lines = [line for one in measured for line in one.describe(averaged)]
    _write("frontier", COLUMNS, lines, run_dir)
    areas = [_describe_area(area) for area in _measure_areas(measured, averaged, cost)]
    _write("frontier_area", AREA_COLUMNS, areas, run_dir)
    try:
        draw_frontier([line for line in lines if line["task"] == AVERAGE], COSTS[cost], run_dir / "frontier.svg")
    except ArgumentError as error:
        print(f"no picture: {error}", file=sys.stderr)
    families = [one.row.family for one in measured if one.row.rate is not None]
    return areas if len(set(families)) < len(families) else []


def _measure_areas(measured: Sequence[Measured], averaged: Sequence[str], cost: str) -> list[Area]:
    """Nothing where the host alone is no row, or a row has other problems."""
    points: dict[str, list[tuple[float, float, Measured]]] = {}
    ends: dict[str, tuple[float, Measured]] = {}
    for one in measured:
        line = one.describe(averaged)[-1]
        at = line[COSTS[cost]]
        if one.row.name in ("base", "guide"):
            ends[one.row.name] = (at or 0.0), one
        elif one.row.method is not None and line["realized_rate"] and at is not None:
            points.setdefault(one.row.family, []).append((line["realized_rate"], at, one))
    methods = [one.row.method for one in measured if one.row.method is not None]
    if not points or not methods:
        return []
    host, donor = methods[0].policy.host, methods[0].policy.donor
    if host not in ends:
        return []
    known = [one for found in points.values() for *_, one in found] + [one for _, one in ends.values()]
    ids = {}
    for task in averaged:
        problems = [one.tasks[task].problems for one in known if task in one.tasks]
        common = common_ids([p for p in problems if p]) if len(problems) == len(known) and all(problems) else None
        if common is None:
            return []
        ids[task] = common

    def acc(one: Measured, task: str) -> Any:
        return one.tasks[task].problems.ordered_as(ids[task]).values["acc"]  # type: ignore[union-attr]

    start, alone = ends[host]
    curves = {}
    for method, found in points.items():
        found.sort(key=lambda point: point[0])
        gains = [np.stack([acc(one, task) - acc(alone, task) for *_, one in found]) for task in averaged]
        rates, costs = np.array([rate for rate, *_ in found]), np.array([start, *(at for _, at, _ in found)])
        samples = [alone.tasks[task].samples or 1 for task in averaged]
        curves[method] = Curve(rates, gains, samples, costs)
    other = ends[donor][1] if donor in ends else None
    gain = np.mean([(acc(other, task) - acc(alone, task)).mean() for task in averaged]) if other else None
    return compare_areas(curves, _AGAINST, None if gain is None else float(gain))


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

    def show(value: float | None, low: float | None, high: float | None) -> str:
        return "" if value is None else f"{100 * value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"  # type: ignore[operator]

    lines = [
        [
            area["method"],
            show(*(area[name] for name in ("area", "low", "high"))),
            area["versus"] or "",
            show(*(area[f"difference{end}"] for end in ("", "_low", "_high"))),
            "" if area["p_holm"] is None else f"{area['p_holm']:.3g}",
            "" if area["least_cost_90"] is None else f"{area['least_cost_90']:.4g}",
        ]
        for area in areas
    ]
    columns = ["Method", "Area", "Against", "Difference", "p (Holm)", "90% at"]
    notes = [
        "Area: the mean gain over the host, in percentage points, over rates from 0 to the largest one that all methods reach, "
        f"at most 10 %. 90% at: the least cost ({COSTS[cost]}) with 90 % of the donor's gain. Intervals are 95 %, over problems."
    ]
    return WRITERS[format_name](Table(columns, lines, notes))
