"""The frontier of a comparison: the gain of each method at each cost, in files, and the costs of each row.

RUN_DIR/frontier.csv, .json        a line per row, rate and task, and for their average
RUN_DIR/frontier_area.csv, .json   a line per method, and per method that it is compared with
RUN_DIR/frontier.svg               the picture
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lm_eval_takeover.commands._output import write_csv, write_json
from lm_eval_takeover.commands.compare.picture import COSTS, draw_frontier
from lm_eval_takeover.commands.compare.rows import PlannedRow
from lm_eval_takeover.results.frontier import Area, Curve, compare_areas
from lm_eval_takeover.results.problems import Problems
from lm_eval_takeover.results.runs import TOTALS, Counts, Run, TaskResult, common_ids
from lm_eval_takeover.results.statistics import Values
from lm_eval_takeover.results.summary import Figure, Summary, average, choose_averaged, summarize_tasks
from lm_eval_takeover.storage.whole_files import write_text

AREA_COLUMNS = (
    *("method", "area", "low", "high", "versus", "difference", "difference_low", "difference_high"),
    *("p_holm", "least_cost_90"),
)
_AGAINST = ("random", "entropy", "ce")
AVERAGE = "average"


@dataclass(frozen=True)
class Point:
    """A row with its results by task (of all its calls), and their summaries, with one of the average."""

    row: PlannedRow
    results: Mapping[str, TaskResult]
    summaries: Mapping[str, Summary]

    def describe(self) -> list[dict[str, Any]]:
        """Its lines of frontier.csv. `pass8` is Pass@k of the k that the task has."""
        named = {"row": self.row.label, "method": self.row.family, "rate": self.row.rate}
        lines = []
        for task, summary in self.summaries.items():
            rates = summary.rates.describe()
            costs = {column: rates[column] for column, _ in COSTS.values()}
            lines.append(
                named | costs | {"task": task} | summary.acc.describe("acc") | summary.passed.describe("pass8")
            )
        return lines

    def cost(self, column: str) -> float | None:
        """The average over tasks of a column of costs."""
        return self.summaries[AVERAGE].rates.describe()[column]


def describe_costs(runs: Mapping[PlannedRow, Sequence[Run]]) -> list[dict[str, Any]]:
    """By row, over all its calls: tokens, takeovers and passes, null for other model types, and seconds of generation."""
    costs = []
    for row, of_row in runs.items():
        counts = Counts.add([run.counts for run in of_row])
        spent = [run.seconds for run in of_row if run.seconds is not None]
        seconds = sum(spent) if len(spent) == len(of_row) else None
        costs.append({"row": row.label, **{name: getattr(counts, name) for name in TOTALS}, "seconds": seconds})
    return costs


def describe_frontier(
    runs: Mapping[PlannedRow, Sequence[Run]], run_dir: Path, cost: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Write both tables. Returns the lines of the averages, and those of the areas, if any method has two rates."""
    averaged = choose_averaged(dict.fromkeys(task for of_row in runs.values() for run in of_row for task in run.tasks))
    points = []
    for row, of_row in runs.items():
        summaries = summarize_tasks(of_row)
        summaries[AVERAGE] = average([summaries[task] for task in averaged if task in summaries])
        points.append(Point(row, {task: run.tasks[task] for run in of_row for task in run.tasks}, summaries))
    lines = [line for point in points for line in point.describe()]
    _write_lines("frontier", list(lines[0]), lines, run_dir)
    areas = [_describe_area(area) for area in _measure_areas(points, averaged, COSTS[cost][0])]
    _write_lines("frontier_area", AREA_COLUMNS, areas, run_dir)
    families = [point.row.family for point in points if point.row.rate is not None]
    return [line for line in lines if line["task"] == AVERAGE], areas if len(set(families)) < len(families) else []


def try_to_draw(lines: Sequence[Mapping[str, Any]], cost: str, path: Path) -> None:
    """Draw the averages. An error is one line: all tables are there already."""
    try:
        draw_frontier(lines, cost, path)
    except Exception as error:  # matplotlib may be missing, or fail in its own ways
        print(f"no picture '{path}': {type(error).__name__}: {error}", file=sys.stderr)


def _measure_areas(points: Sequence[Point], averaged: Sequence[str], column: str) -> list[Area]:
    """Empty if the host alone is no row, or the rows have different problems."""
    methods: dict[str, list[Point]] = {}
    for point in points:
        if point.row.method is not None and point.cost("realized_rate") and point.cost(column) is not None:
            methods.setdefault(point.row.family, []).append(point)
    policies = [point.row.method.policy for point in points if point.row.method is not None]
    alone = {point.row.name: point for point in points if point.row.name in ("base", "guide")}
    if not methods or policies[0].host not in alone:
        return []
    problems = _align_problems([*alone.values(), *(point for of in methods.values() for point in of)], averaged)
    if problems is None:
        return []
    host, donor = alone[str(policies[0].host)], alone.get(str(policies[0].donor))

    def gains(point: Point) -> list[Values]:
        pairs = zip(problems[point.row.label], problems[host.row.label], strict=True)
        return [own.values["acc"] - its.values["acc"] for own, its in pairs]

    samples = [each.samples for each in problems[host.row.label]]
    curves = {method: _draw_curve(of, gains, samples, column, host) for method, of in methods.items()}
    whole = float(np.mean([each.mean() for each in gains(donor)])) if donor else None
    return compare_areas(curves, _AGAINST, whole)


def _align_problems(points: Sequence[Point], averaged: Sequence[str]) -> dict[str, list[Problems]] | None:
    """By row its problems of each task, in one order for all; None if rows have different ones."""
    aligned: dict[str, list[Problems]] = {point.row.label: [] for point in points}
    for task in averaged:
        given = [point.results[task].problems if task in point.results else None for point in points]
        known = [problems for problems in given if problems is not None]
        ids = common_ids(known) if len(known) == len(given) else None
        if ids is None:
            return None
        for point, problems in zip(points, known, strict=True):
            aligned[point.row.label].append(problems.ordered_as(ids))
    return aligned


def _draw_curve(points: list[Point], gains: Any, samples: Sequence[int], column: str, host: Point) -> Curve:
    """A method that cannot reach a rate that was asked keeps its last gain and cost up to there."""
    points = sorted(points, key=lambda point: point.cost("realized_rate") or 0.0)
    rates, costs = ([point.cost(name) or 0.0 for point in points] for name in ("realized_rate", column))
    if (most := points[-1].row.covers) and most > rates[-1]:
        points, rates, costs = [*points, points[-1]], [*rates, most], [*costs, costs[-1]]
    by_task = [np.stack(of_task) for of_task in zip(*map(gains, points), strict=True)]
    return Curve(np.array(rates), by_task, samples, np.array([host.cost(column) or 0.0, *costs]))


def _describe_area(area: Area) -> dict[str, Any]:
    own, difference = area.area.interval(), Figure.of(area.difference.interval() if area.difference else None)
    line = {"method": area.method, "area": own.value, "low": own.low, "high": own.high, "versus": area.versus}
    return line | difference.describe("difference") | {"p_holm": area.p_holm, "least_cost_90": area.least_cost}


def _write_lines(name: str, columns: Sequence[str], lines: Sequence[Mapping[str, Any]], run_dir: Path) -> None:
    write_text(run_dir / f"{name}.csv", write_csv(columns, lines))
    write_text(run_dir / f"{name}.json", write_json(list(lines)))
