"""The frontier of a comparison, in the files that docs/frontier.md describes, and the costs of each row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Any, Self, TypedDict

import numpy as np

from lm_eval_takeover.commands._output import write_csv, write_json
from lm_eval_takeover.commands.compare.picture import COSTS, DRAFTED
from lm_eval_takeover.commands.compare.rows import PlannedRow
from lm_eval_takeover.errors import ResultsError
from lm_eval_takeover.results.fields import read_document, read_rows
from lm_eval_takeover.results.frontier import Area, Curve, Oracle, compare_areas, find_band, find_cap, find_least_costs
from lm_eval_takeover.results.problems import ACC, Problems
from lm_eval_takeover.results.runs import TOTALS, Counts, Run, TaskResult, common_ids
from lm_eval_takeover.results.statistics import Interval, Values, count_observations, within_shares
from lm_eval_takeover.results.summary import Figure, Summary, average, choose_averaged, summarize_tasks
from lm_eval_takeover.storage.schema import Between
from lm_eval_takeover.storage.whole_files import write_text

AREA_COLUMNS = (
    *("axis", "task", "metric", "method", "area", "area_low_step", "area_high_step", "low", "high"),
    *("versus", "difference", "difference_low", "difference_high", "p_holm"),
    *(_LEAST_COSTS := ("least_cost_50", "least_cost_90", "least_cost_90_low", "least_cost_90_high")),
    *("oracle_share", "oracle_share_low", "oracle_share_high"),
)
AREA_AXES = ("share", "changed")  # elsewhere a method may have one cost at all rates
_AGAINST = ("random", "entropy", "ce")
Oracles = dict[str, list[Oracle]]  # by task that of effects as shrunk, and that of effects as measured
Bands = dict[tuple[str, str, str], Interval]
STEEP = 0.2  # of Acc, between two neighbouring rates
AVERAGE = "average"
METRICS = ("acc", "pass8")
ORACLE = "oracle"


class MeasuredEffect(TypedDict):
    """The fields of a row of effects.json that an oracle reads."""

    task: str
    doc_id: int
    inclusion: Annotated[float, Between(1e-12, 1)]
    shrunk: float
    effect: float


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
            costs = {column: self.cost(axis, task) for axis, (column, _) in COSTS.items()} | {"task": task}
            lines.append(named | costs | summary.acc.describe("acc") | summary.passed.describe("pass8"))
        return lines

    def cost(self, axis: str, task: str = AVERAGE) -> float | None:
        """A policy that mixes writes no token alone, so it has no share of written ones."""
        if axis == "share" and self.row.mixes:
            return None
        rate: float | None = getattr(self.summaries[task].rates, COSTS[axis][0])
        return rate


@dataclass(frozen=True)
class Frontier:
    """The lines of frontier.csv and of frontier_area.csv; `why` says why there are none of the latter; who writes by default."""

    lines: list[dict[str, Any]]
    all_areas: list[dict[str, Any]]
    why: str = ""
    host: str = "base"

    @property
    def averages(self) -> list[dict[str, Any]]:
        """The lines that are drawn: averages over tasks."""
        return [line for line in self.lines if line["task"] == AVERAGE]

    @property
    def areas(self) -> list[dict[str, Any]]:
        """The areas that are printed: of Acc in the average over tasks."""
        return [area for area in self.all_areas if (area["task"], area["metric"]) == (AVERAGE, "acc")]

    def write(self, run_dir: Path) -> Self:
        for name, rows in (("frontier", self.lines), ("frontier_area", self.all_areas)):
            write_text(run_dir / f"{name}.csv", write_csv(list(rows[0] if rows else AREA_COLUMNS), rows))
            write_text(run_dir / f"{name}.json", write_json(rows))
        return self


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
        alone = [(0.0, acc[row]) for row in acc if row.name == rows[0].host]
        stem = rows[-1].label.partition("@")[0]
        for (left, before), (right, after) in pairwise([*alone, *((row.rate or 0.0, acc[row]) for row in rows)]):
            if abs(after - before) > STEEP:
                rate = round((left + right) / 2, 4)
                more.append(replace(rows[0], label=f"{stem}@{rate:g}", rate=rate, covers=None))
    return more


def describe_frontier(runs: Mapping[PlannedRow, Sequence[Run]], effects: Path | None = None) -> Frontier:
    """`effects` is what `lm-eval-takeover effects` wrote of one of these rows. Raises ResultsError."""
    points, averaged = measure_points(runs)
    lines = [line for point in points for line in point.describe()]
    oracles = read_oracles(points, averaged, effects) if effects is not None else {}
    areas, why, bands = _measure_areas(points, averaged, oracles)
    for line, metric in product(lines, METRICS):
        line |= Figure.of(bands.get((line["row"], line["task"], metric))).describe(f"{metric}_gain")
    for (task, (oracle, *_)), rate in product(oracles.items(), sorted({p.row.rate for p in points if p.row.rate})):
        named = {"row": f"{ORACLE}@{rate:g}", "method": ORACLE, "rate": rate, "task": task}
        named |= {"realized_rate": rate, "changed_rate": rate, "acc": 1 - oracle.room + oracle.gain(rate)}
        lines.append(dict.fromkeys(lines[0]) | named)
    return Frontier(lines, areas, why, next((point.row.host for point in points if point.row.host), "base"))


def read_oracles(points: Sequence[Point], averaged: Sequence[str], folder: Path) -> Oracles:
    """Raises ResultsError."""
    run = read_document(folder / "effect_examples.json", "`lm-eval-takeover effects`").get("run")
    point = next((point for point in points if point.row.label == run), None)
    host = next((other for other in points if point and other.row.name == point.row.host), None)
    if point is None or host is None:
        raise ResultsError(f"--effects '{folder}' is of the run '{run}'; expected those of a row here, beside its base")
    effects = read_rows(folder / "effects.json", "`lm-eval-takeover effects`", MeasuredEffect)
    oracles = {}
    for task, part in {AVERAGE: averaged, **{task: [task] for task in averaged}}.items():
        pairs = [(each, point.results[each["task"]]) for each in effects if each["task"] in part]
        weights = np.array([1 / each["inclusion"] / len(part) for each, _ in pairs])
        costs = weights / [float(result.counts.tokens or 1) for _, result in pairs]
        weights /= [result.count * (result.samples or 1) for _, result in pairs]
        room = 1 - (host.summaries[task].acc.value or 0.0)
        known = [(name, doc_id) for name in part for doc_id in getattr(host.results[name].problems, "doc_ids", ())]
        places = {problem: place for place, problem in enumerate(known)}
        if strange := {(each["task"], each["doc_id"]) for each, _ in pairs} - places.keys():
            raise ResultsError(f"--effects '{folder}' has an effect on {min(strange)}; expected problems that the rows have")
        at = [places[each["task"], each["doc_id"]] for each, _ in pairs]
        both = [weights * [float(each[name]) for each, _ in pairs] for name in ("shrunk", "effect")]
        oracles[task] = [Oracle.of(costs, gains, room, at) for gains in both]
    return oracles


def _measure_areas(
    points: Sequence[Point], averaged: Sequence[str], oracles: Oracles
) -> tuple[list[dict[str, Any]], str, Bands]:
    """The lines of frontier_area.csv, why there are none, and the bands of frontier.csv by row, task and metric."""
    rated_families = [point.row.family for point in points if point.row.rate is not None]
    if len(set(rated_families)) == len(rated_families):
        return [], "", {}  # no method has two rates
    methods = [point for point in points if point.row.host]
    methods = [point for point in methods if point.row.host == methods[0].row.host]  # others begin at another model
    alone = {point.row.name: point for point in points if point.row.name in ("base", "guide")}
    host, donor = (alone.get(str(name)) for name in (methods[0].row.host, methods[0].row.donor))
    if host is None:
        return [], f"no areas: they are gains over the {methods[0].row.host} alone; add the row of that name", {}
    drafted = [point for point in points if point.row.name == DRAFTED]
    others = [point for point in alone.values() if point is not host]
    problems = _align_problems([host, *others, *methods, *drafted], averaged)  # in the host's order
    if problems is None:
        return [], "no areas: the rows have different problems, or no samples", {}
    families: dict[str, list[Point]] = {}
    for point in methods:
        families.setdefault(point.row.family, []).append(point)
    parts = {AVERAGE: list(range(len(averaged)))}
    parts |= {task: [place] for place, task in enumerate(averaged)} if len(averaged) > 1 else {}
    lines, bands = [], Bands()
    for axis, (task, part), metric in product(COSTS, parts.items(), METRICS):
        ks = {place: host.results[averaged[place]].k for place in part}  # of the Pass@k that tables show
        named = [(place, ACC if metric == "acc" else f"pass@{ks[place]}") for place in part]
        if not all(name in of_row[place].values for of_row in problems.values() for place, name in named):
            continue  # a task without Pass@k

        def gains(points: Sequence[Point], named: list[tuple[int, str]] = named) -> list[Values]:
            """By task `[points, problems]`."""
            own, its = [problems[point.row.label] for point in points], problems[host.row.label]
            return [np.stack([each[i].values[name] - its[i].values[name] for each in own]) for i, name in named]

        samples = [count_observations(name, problems[host.row.label][place].samples) for place, name in named]
        if axis == AREA_AXES[0]:  # bands are of rows, whatever these cost
            names = (task, *(averaged if len(averaged) == 1 else ()))  # a single task is its own average
            for rows in families.values():
                bands_of_rows = zip(rows, find_band(Curve(np.zeros(len(rows)), gains(rows), samples)), strict=True)
                bands |= {(row.row.label, name, metric): within_shares(band) for row, band in bands_of_rows for name in names}
        curves: dict[str, Curve] = {}
        for method, rows in (families | ({} if axis in AREA_AXES else {p.row.family: [p] for p in drafted})).items():
            if known := [point for point in rows if point.cost(axis, task) is not None]:
                curves[method] = _draw_curve(known, gains, samples, axis, task)
        rated = [curves[name] for name in dict.fromkeys(p.row.family for p in methods if p.row.rate) if name in curves]
        areas: list[dict[str, Any]] = [{"method": name} for name in curves]
        most: list[float] = []  # areas of the oracle
        if axis in AREA_AXES and rated:
            cap, wrong = find_cap(rated), [1 - problems[host.row.label][place].values[ACC] for place in part]
            areas = [_describe_area(area) for area in compare_areas(curves, _AGAINST, cap)]
            most = [each.area(cap) for each in oracles.get(task, ())] if metric == "acc" else []
            for line in areas if most and all(most) else ():
                line |= Figure.of(curves[line["method"]].share_of(oracles[task], wrong, cap)).describe("oracle_share")
        start = 0.0 if axis in AREA_AXES else None
        head = {"axis": axis, "task": task, "metric": metric}
        least = {name: find_least_costs(each, gains([donor]), start) for name, each in curves.items()} if donor else {}
        for line in areas:
            lines.append(head | line | dict(zip(_LEAST_COSTS, least.get(line["method"], ()), strict=False)))
        if most:
            steps = {"area": most[0], "area_low_step": most[0], "area_high_step": most[1]}
            lines.append(head | {"method": ORACLE, "oracle_share": 1.0} | steps)
    return [{column: line.get(column) for column in AREA_COLUMNS} for line in lines], "", bands


def _align_problems(points: Sequence[Point], averaged: Sequence[str]) -> dict[str, list[Problems]] | None:
    """By row its problems of each task, in one order for all; None if rows have different ones."""
    aligned: dict[str, list[Problems]] = {point.row.label: [] for point in points}
    for task in averaged:
        known = [each for p in points if task in p.results and (each := p.results[task].problems) is not None]
        ids = common_ids(known) if len(known) == len(points) else None
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
    return Curve(np.array(costs), gains(points), samples)


def _describe_area(area: Area) -> dict[str, Any]:
    own = within_shares(area.area.interval())
    difference = Figure.of(within_shares(area.difference.interval()) if area.difference else None)
    line = {"method": area.method, "versus": area.versus, "area": own.value, "low": own.low, "high": own.high}
    line |= {"area_low_step": area.steps[0], "area_high_step": area.steps[1], "p_holm": area.p_holm}
    return line | difference.describe("difference")
