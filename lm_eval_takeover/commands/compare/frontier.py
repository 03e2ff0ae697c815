"""The frontier of a comparison: the gain of each method at each cost, in files, and the costs of each row.

RUN_DIR/frontier.csv, .json        a line per row, rate and task, and for their average
RUN_DIR/frontier_area.csv, .json   a line per axis, task, metric and method, and per method that it is compared with
RUN_DIR/frontier.svg               the picture
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from lm_eval_takeover.commands._output import write_csv, write_json
from lm_eval_takeover.commands.compare.picture import COSTS, draw_frontier
from lm_eval_takeover.commands.compare.rows import PlannedRow
from lm_eval_takeover.results.frontier import (
    Area,
    Curve,
    LeastCost,
    compare_areas,
    find_band,
    find_cap,
    find_least_costs,
)
from lm_eval_takeover.results.problems import ACC, Problems
from lm_eval_takeover.results.runs import TOTALS, Counts, Run, TaskResult, common_ids
from lm_eval_takeover.results.statistics import Interval, Values, count_observations
from lm_eval_takeover.results.summary import Figure, Summary, average, choose_averaged, summarize_tasks
from lm_eval_takeover.storage.whole_files import write_text

AREA_COLUMNS = (
    *("axis", "task", "metric", "method", "area", "area_low_step", "area_high_step", "low", "high"),
    *("versus", "difference", "difference_low", "difference_high", "p_holm"),
    *("least_cost_50", "least_cost_90", "least_cost_90_low", "least_cost_90_high"),
)
AREA_AXES = ("share", "changed")  # elsewhere a method may have one cost at all rates
_AGAINST = ("random", "entropy", "ce")
Bands = dict[tuple[str, str, str], Interval]
STEEP = 0.2  # of Acc, between two neighbouring rates
AVERAGE = "average"
METRICS = ("acc", "pass8")


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
            costs = {column: self.cost(axis, task) for axis, (column, _) in COSTS.items()}
            lines.append(
                named | costs | {"task": task} | summary.acc.describe("acc") | summary.passed.describe("pass8")
            )
        return lines

    def cost(self, axis: str, task: str = AVERAGE) -> float | None:
        """A policy that mixes writes no token alone, so it has no share of written ones."""
        if axis == "share" and self.row.method is not None and self.row.method.policy.mixes:
            return None
        rate: float | None = getattr(self.summaries[task].rates, COSTS[axis][0])
        return rate


@dataclass(frozen=True)
class Frontier:
    """What is drawn and printed: `averages` are lines of frontier.csv, `areas` those of frontier_area.csv.

    `areas` are of Acc in the average over tasks. `why` says why there are none.
    """

    averages: Sequence[Mapping[str, Any]]
    areas: Sequence[Mapping[str, Any]]
    why: str = ""


def describe_costs(runs: Mapping[PlannedRow, Sequence[Run]]) -> list[dict[str, Any]]:
    """By row, over all its calls: tokens, takeovers and passes, null for other model types, and seconds of generation."""
    costs = []
    for row, of_row in runs.items():
        counts = Counts.add([run.counts for run in of_row])
        spent = [run.seconds for run in of_row if run.seconds is not None]
        seconds = sum(spent) if len(spent) == len(of_row) else None
        costs.append({"row": row.label, **{name: getattr(counts, name) for name in TOTALS}, "seconds": seconds})
    return costs


def measure_points(runs: Mapping[PlannedRow, Sequence[Run]]) -> tuple[list[Point], list[str]]:
    """The rows with their figures, and the tasks that averages are over."""
    averaged = choose_averaged(dict.fromkeys(task for of_row in runs.values() for run in of_row for task in run.tasks))
    points = []
    for row, of_row in runs.items():
        summaries = summarize_tasks(of_row)
        summaries[AVERAGE] = average([summaries[task] for task in averaged if task in summaries])
        points.append(Point(row, {task: run.tasks[task] for run in of_row for task in run.tasks}, summaries))
    return points, averaged


def refine_rows(runs: Mapping[PlannedRow, Sequence[Run]]) -> list[PlannedRow]:
    """More rows of each method, halfway between two rates, or 0 and the least one, whose Acc differs by more than 20 points."""
    points, _ = measure_points(runs)
    acc = {point.row: point.summaries[AVERAGE].acc.value or 0.0 for point in points}
    more = []
    for family in dict.fromkeys(row.family for row in acc if row.rate):
        rows = sorted((row for row in acc if row.family == family and row.rate), key=lambda row: row.rate or 0.0)
        assert rows[0].method is not None
        alone = [(0.0, acc[row]) for row in acc if row.name == rows[0].method.policy.host]
        stem = rows[-1].label.partition("@")[0]
        for (left, before), (right, after) in pairwise([*alone, *((row.rate or 0.0, acc[row]) for row in rows)]):
            if abs(after - before) > STEEP:
                rate = round((left + right) / 2, 4)
                more.append(replace(rows[0], label=f"{stem}@{rate:g}", rate=rate, covers=None))
    return more


def describe_frontier(runs: Mapping[PlannedRow, Sequence[Run]], run_dir: Path) -> Frontier:
    """Write both tables."""
    points, averaged = measure_points(runs)
    lines = [line for point in points for line in point.describe()]
    families = [point.row.family for point in points if point.row.rate is not None]
    areas, why, bands = _measure_areas(points, averaged) if len(set(families)) < len(families) else ([], "", {})
    for line, metric in product(lines, METRICS):
        line |= Figure.of(bands.get((line["row"], line["task"], metric))).describe(f"{metric}_gain")
    _write_lines("frontier", list(lines[0]), lines, run_dir)
    _write_lines("frontier_area", AREA_COLUMNS, areas, run_dir)
    shown = [area for area in areas if (area["task"], area["metric"]) == (AVERAGE, "acc")]
    return Frontier([line for line in lines if line["task"] == AVERAGE], shown, why)


def try_to_draw(lines: Sequence[Mapping[str, Any]], cost: str, path: Path) -> None:
    """Draw the averages. An error is one line: all tables are there already."""
    try:
        draw_frontier(lines, cost, path)
    except Exception as error:  # matplotlib may be missing, or fail in its own ways
        print(f"no picture '{path}': {type(error).__name__}: {error}", file=sys.stderr)


def _measure_areas(points: Sequence[Point], averaged: Sequence[str]) -> tuple[list[dict[str, Any]], str, Bands]:
    """The lines of frontier_area.csv, why there are none, and the bands of frontier.csv by row, task and metric."""
    methods = [point for point in points if point.row.method is not None]
    policy = methods[0].row.method.policy  # type: ignore[union-attr]
    alone = {point.row.name: point for point in points if point.row.name in ("base", "guide")}
    host, donor = alone.get(str(policy.host)), alone.get(str(policy.donor))
    if host is None:
        return [], f"no areas: they are gains over the {policy.host} alone; add the row {policy.host}", {}
    problems = _align_problems([*alone.values(), *methods], averaged)
    if problems is None:
        return [], "no areas: the rows have different problems, or no samples", {}
    families = {
        point.row.family: [each for each in methods if each.row.family == point.row.family] for point in methods
    }
    parts = {AVERAGE: list(range(len(averaged)))}
    parts |= {task: [place] for place, task in enumerate(averaged)} if len(averaged) > 1 else {}
    lines, bands = [], Bands()
    for axis, (task, part), metric in product(COSTS, parts.items(), METRICS):
        named = [(place, _name_metric(host.results[averaged[place]], metric)) for place in part]
        if not all(name in of_row[place].values for of_row in problems.values() for place, name in named):
            continue  # a task without Pass@k

        def gains(point: Point, named: list[tuple[int, str]] = named) -> list[Values]:
            own, its = problems[point.row.label], problems[host.row.label]
            return [own[place].values[name] - its[place].values[name] for place, name in named]

        samples = [count_observations(name, problems[host.row.label][place].samples) for place, name in named]
        if axis == AREA_AXES[0]:  # bands are of rows, whatever these cost
            for rows in families.values():
                bands |= _find_bands(rows, gains, samples, (task, *(averaged if len(averaged) == 1 else ())), metric)
        curves: dict[str, Curve] = {}
        for method, rows in families.items():
            known = [point for point in rows if point.cost(axis, task) is not None]
            if known:
                curves[method] = _draw_curve(known, gains, samples, axis, task)
        rated = [curves[name] for name in dict.fromkeys(p.row.family for p in methods if p.row.rate) if name in curves]
        areas: Iterable[Area | str] = curves
        if axis in AREA_AXES and rated:
            areas = compare_areas(curves, _AGAINST, find_cap(rated))
        start = 0.0 if axis in AREA_AXES else None
        least = {name: find_least_costs(curve, gains(donor), start) for name, curve in curves.items()} if donor else {}
        for area in areas:
            name = area if isinstance(area, str) else area.method
            head = {"axis": axis, "task": task, "metric": metric, "method": name}
            lines.append(head | _describe_area(area, least.get(name)))
    return [{column: line.get(column) for column in AREA_COLUMNS} for line in lines], "", bands


def _name_metric(result: TaskResult, metric: str) -> str:
    """`acc`, and for `pass8` the Pass@k that tables show."""
    return ACC if metric == "acc" else f"pass@{result.k}"


def _find_bands(rows: list[Point], gains: Any, samples: Sequence[int], tasks: Sequence[str], metric: str) -> Bands:
    """Of one method, under each of these names of a task: a single task is its own average."""
    whole = [np.stack(of_task) for of_task in zip(*map(gains, rows), strict=True)]
    found = find_band(Curve(np.zeros(len(rows)), whole, samples))
    return {(row.row.label, task, metric): band for row, band in zip(rows, found, strict=True) for task in tasks}


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


def _draw_curve(points: list[Point], gains: Any, samples: Sequence[int], axis: str, task: str) -> Curve:
    """A method that cannot reach a rate that was asked keeps its last gain up to there."""
    points = sorted(points, key=lambda point: point.cost(axis, task) or 0.0)
    costs = [point.cost(axis, task) or 0.0 for point in points]
    if axis in AREA_AXES and (most := points[-1].row.covers) and most > costs[-1]:
        points, costs = [*points, points[-1]], [*costs, most]
    return Curve(np.array(costs), [np.stack(of_task) for of_task in zip(*map(gains, points), strict=True)], samples)


def _describe_area(area: Area | str, least: LeastCost | None) -> dict[str, Any]:
    line: dict[str, Any] = {}
    if isinstance(area, Area):
        own, difference = area.area.interval(), Figure.of(area.difference.interval() if area.difference else None)
        line = {"area": own.value, "low": own.low, "high": own.high, "versus": area.versus, "p_holm": area.p_holm}
        line |= dict(zip(("area_low_step", "area_high_step"), area.steps, strict=True)) | difference.describe(
            "difference"
        )
    if least is not None:
        line |= {"least_cost_50": least.half, "least_cost_90": least.most}
        line |= {"least_cost_90_low": least.low, "least_cost_90_high": least.high}
    return line


def _write_lines(name: str, columns: Sequence[str], lines: Sequence[Mapping[str, Any]], run_dir: Path) -> None:
    write_text(run_dir / f"{name}.csv", write_csv(columns, lines))
    write_text(run_dir / f"{name}.json", write_json(list(lines)))
