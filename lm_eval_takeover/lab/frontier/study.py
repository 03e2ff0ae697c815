"""Folders of `compare` as one frontier: the lines of frontier.csv and frontier_area.csv, which docs/lab/frontier.md describes.

Folders must agree in problems, settings of tasks, verifiers and calibration prompts, and all rows of a pair in their seeds. Rows
of several seeds become one row, the mean over them problem by problem; the spread between seeds stands beside it. Start reading
at `describe_frontier`.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any, Self, TypedDict

import numpy as np

from lm_eval_takeover.calibration.files import packaged_calibrations, read_calibration
from lm_eval_takeover.errors import ArgumentError, ResultsError
from lm_eval_takeover.lab.frontier import AREA_AXES, COSTS
from lm_eval_takeover.lab.frontier.curves import LEAST, Curve, Oracle, compare_areas, find_band, find_cap, find_least_costs
from lm_eval_takeover.results.documents import find_differences, read_document, read_rows
from lm_eval_takeover.results.files import Counts, Run, TaskResult
from lm_eval_takeover.results.kept_rows import DRAFTED, ComparedRow, read_kept_rows
from lm_eval_takeover.results.problems import ACC, Problems, align
from lm_eval_takeover.results.statistics import Interval, Values, by_cluster, within_shares
from lm_eval_takeover.results.summary import Figure, Summary, average, choose_averaged, mean_of, summarize_tasks
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.schema import Between

_OF_MODELS = ("chat_template", "end_tokens", "system_instruction", "thinking")  # and may differ


@dataclass(frozen=True)
class ComparedFolder:
    """A folder that `compare` wrote. `pair` names base and guide; `prompts` are digests of the problems of calibrations."""

    folder: Path
    rows: Mapping[ComparedRow, Run]
    pair: str
    prompts: frozenset[str]

    @classmethod
    def read(cls, folder: Path) -> "ComparedFolder":
        """Raises ResultsError, ArgumentError."""
        rows = read_kept_rows(folder)
        runs = list(rows.values())
        pair = [{str(run.settings[role]) for run in runs if run.settings.get(role)} for role in ("base", "guide")]
        names = {name for run in runs if (name := run.takeover.get("calibration"))}
        files = [packaged_calibrations().get(name, folder / f"{name}.json") for name in names]
        prompts = {digest_of(read_calibration(path).prompts["problems"]) for path in files if path.exists()}
        return cls(folder, rows, " + ".join(min(each, default="?") for each in pair), frozenset(prompts))

    @property
    def tasks(self) -> dict[str, TaskResult]:
        return {task: result for run in self.rows.values() for task, result in run.tasks.items()}

    def list_differences(self, other: Self) -> list[str]:
        """Differences that keep two comparisons out of one figure."""
        if self.tasks.keys() != other.tasks.keys():
            return [f"tasks: {', '.join(self.tasks)} -> {', '.join(other.tasks)}"]
        differences = ["calibration prompts"] if self.prompts and other.prompts and self.prompts != other.prompts else []
        for task, first, second in ((task, result, other.tasks[task]) for task, result in self.tasks.items()):
            ids = [set(result.problems.ids) for result in (first, second)]
            differences += [f"problems of {task}"] if ids[0] != ids[1] or not ids[0] else []
            differences += [f"verifier: {first.verifier} -> {second.verifier}"] if first.verifier != second.verifier else []
            differences += find_differences(first.settings, second.settings, (*_OF_MODELS, "limit", "verifier")).values()
        return list(dict.fromkeys(differences))


def check_effects(comparisons: Sequence[ComparedFolder], folder: Path) -> None:
    """Raises ResultsError where `effects` read a run that is in no comparison; rows of others have such labels, too."""
    document = read_document(folder / "effect_examples.json", "`lm-eval-takeover effects`")
    of_rows = {
        (task, result.identity) for each in comparisons for run in each.rows.values() for task, result in run.tasks.items()
    }
    if not document.require("identities", dict[str, str]).items() <= of_rows:
        raise ResultsError(f"--effects '{folder}' is of a run '{document.get('run')}' that is no row here; give its comparison")


def merge_pair(comparisons: Sequence[ComparedFolder], effects: Path | None) -> "Frontier":
    """The frontier of one pair, with the number of seeds of each row and the spread between them. Raises ResultsError."""
    if effects is not None:
        check_effects(comparisons, effects)
    rows: dict[str, ComparedRow] = {}
    runs: dict[str, dict[Any, Run]] = {}  # by label and seed
    for comparison in comparisons:
        for row, run in comparison.rows.items():
            rows.setdefault(row.label, row)
            first = runs.setdefault(row.label, {}).setdefault(run.seed, run)
            before, now = ({task: result.problems.texts for task, result in each.tasks.items()} for each in (first, run))
            if before != now:
                print(f"{row.label} of '{comparison.folder}' has other texts than before; those before count", file=sys.stderr)
    ours = {label: own for label, own in runs.items() if None not in own and all(run.takeover for run in own.values())}
    for label, own in ours.items():  # lm-eval's models have no seeds of their own
        if sorted(own) != (seeds := sorted(next(iter(ours.values())))):
            raise ArgumentError(f"rows differ in seeds: {next(iter(ours))} has {seeds}, {label} has {sorted(own)}")
    frontier = describe_frontier({rows[label]: _average([*own.values()]) for label, own in runs.items()}, effects)
    single = {label: [measure_points({rows[label]: run})[0][0] for run in own.values()] for label, own in runs.items()}
    for line in frontier.lines:
        summaries = [point.summaries[line["task"]] for point in single.get(line["row"], ())]  # an oracle is of no seed
        line["seeds"] = len(summaries)
        for metric, figures in (("acc", [s.acc for s in summaries]), ("pass8", [s.passed for s in summaries])):
            values = [figure.value for figure in figures if figure.value is not None]
            line[f"{metric}_between_seeds"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return frontier


def _average(seeds: Sequence[Run]) -> Run:
    """One run of the means over seeds, problem by problem. Its samples are those of all seeds, its seconds those of one."""
    if len(seeds) == 1:
        return seeds[0]
    tasks, seconds = {}, mean_of([run.seconds for run in seeds])
    for task, first in seeds[0].tasks.items():
        results = [run.tasks[task] for run in seeds if task in run.tasks]
        own = [each.problems.ordered_as(first.problems.ids) for each in results]
        samples, counts = sum(each.samples for each in own), Counts.add([each.counts for each in results])
        values = {name: np.mean([each.values[name] for each in own], axis=0) for name in own[0].values}
        means = {name: float(np.mean([each.means[name] for each in results])) for name in first.means}
        texts = tuple(tuple(chain(*of_seeds)) for of_seeds in zip(*(each.sample_texts for each in own), strict=True))
        problems = replace(own[0], values=values, samples=samples, sample_texts=texts)
        tasks[task] = replace(first, means=means, problems=problems, samples=samples, counts=counts)
    return replace(seeds[0], tasks=tasks, seconds=seconds)


AREA_COLUMNS = (
    *("axis", "task", "metric", "method", "area", "area_low_step", "area_high_step", "low", "high"),
    *("versus", "difference", "difference_low", "difference_high", "p_holm"),
    *LEAST,
    *("oracle_share", "oracle_share_low", "oracle_share_high"),
)
_AGAINST = ("random", "entropy", "ce")
Oracles = dict[str, list[Oracle]]  # by task that of effects as shrunk, and that of effects as measured
AVERAGE = "average"
METRICS = {"acc": "Acc", "pass8": "Pass@k"}  # of the k that a task has
ORACLE = "oracle"


class MeasuredEffect(TypedDict):
    """The fields of a row of effects.json that an oracle reads."""

    task: str
    doc_id: int
    inclusion: Annotated[float, Between(1e-12, 1)]
    shrunk: float
    effect: float


@dataclass(frozen=True, eq=False)
class Point:
    """A row with its results by task, and their summaries, with one of the average."""

    row: ComparedRow
    results: Mapping[str, TaskResult]
    summaries: Mapping[str, Summary]

    def describe(self) -> list[dict[str, Any]]:
        """Its lines of frontier.csv. `pass8` is Pass@k of the k that the task has."""
        named = {"row": self.row.label, "method": self.row.family, "rate": self.row.rate}
        lines = []
        for task, summary in self.summaries.items():
            costs = {column: self.cost(axis, task) for axis, (column, _) in COSTS.items()}
            costs["same_as_guide"] = summary.rates.same_as_guide
            lines.append(
                named | costs | {"task": task, "k": summary.k} | summary.acc.describe("acc") | summary.passed.describe("pass8")
            )
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


def measure_points(runs: Mapping[ComparedRow, Run]) -> tuple[list[Point], list[str]]:
    """The rows with their figures, and the tasks that averages are over."""
    averaged = choose_averaged(dict.fromkeys(task for run in runs.values() for task in run.tasks))
    guide = next((run for row, run in runs.items() if row.name == "guide"), None)
    points = []
    for row, run in runs.items():
        summaries = summarize_tasks(run, guide)
        summaries[AVERAGE] = average([summaries[task] for task in averaged if task in summaries])
        points.append(Point(row, run.tasks, summaries))
    return points, averaged


def describe_frontier(runs: Mapping[ComparedRow, Run], effects: Path | None = None) -> Frontier:
    """`effects` is what `lm-eval-takeover effects` wrote of one of these rows. Raises ResultsError."""
    points, averaged = measure_points(runs)
    lines = [line for point in points for line in point.describe()]
    oracles = read_oracles(points, averaged, effects) if effects is not None else {}
    study = Study.of(points, averaged, oracles)
    areas, bands = ([], {}) if isinstance(study, str) else (study.list_areas(), study.find_bands())
    for line, metric in product(lines, METRICS):
        line |= Figure.of(bands.get((line["row"], line["task"], metric))).describe(f"{metric}_gain")
    for (task, (oracle, *_)), rate in product(oracles.items(), sorted({p.row.rate for p in points if p.row.rate})):
        named = {"row": f"{ORACLE}@{rate:g}", "method": ORACLE, "rate": rate, "task": task}
        named |= {"realized_rate": rate, "changed_rate": rate, "acc": 1 - oracle.room + oracle.gain(rate)}
        lines.append(dict.fromkeys(lines[0]) | named)
    why = study if isinstance(study, str) else ""
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
        known = [(name, doc_id) for name in part for doc_id in host.results[name].problems.doc_ids]
        places = {problem: place for place, problem in enumerate(known)}
        if strange := {(each["task"], each["doc_id"]) for each, _ in pairs} - places.keys():
            raise ResultsError(f"--effects '{folder}' has an effect on {min(strange)}; expected problems that the rows have")
        at = [places[each["task"], each["doc_id"]] for each, _ in pairs]
        both = [weights * [float(each[name]) for each, _ in pairs] for name in ("shrunk", "effect")]
        oracles[task] = [Oracle.of(costs, gains, room, at) for gains in both]
    return oracles


@dataclass(frozen=True)
class Study:
    """Methods that begin at one host, with their problems in the host's order: `problems` by row and by place in `tasks`."""

    host: Point
    donor: Point | None
    families: Mapping[str, Sequence[Point]]  # by method
    drafted: Sequence[Point]
    problems: Mapping[str, Sequence[Problems]]
    tasks: Sequence[str]
    oracles: Oracles

    @classmethod
    def of(cls, points: Sequence[Point], tasks: Sequence[str], oracles: Oracles) -> Self | str:
        """What is compared, or why there is no area."""
        rated = [point.row.family for point in points if point.row.rate is not None]
        if len(set(rated)) == len(rated):
            return "no areas: no method has two rates; give compare --rates, and give both commands again"
        methods = [point for point in points if point.row.host]
        methods = [point for point in methods if point.row.host == methods[0].row.host]  # others begin at another model
        alone = {point.row.name: point for point in points if point.row.name in ("base", "guide")}
        host, donor = (alone.get(str(name)) for name in (methods[0].row.host, methods[0].row.donor))
        if host is None:
            return f"no areas: they are gains over the {methods[0].row.host} alone; add the row of that name"
        drafted = [point for point in points if point.row.name == DRAFTED]
        compared = [host, *(point for point in alone.values() if point is not host), *methods, *drafted]
        aligned = []
        for task in tasks:
            known = [point.results[task].problems for point in compared if task in point.results]
            if len(known) < len(compared) or (sides := align(known)) is None:
                return "no areas: the rows have different problems, or no samples"
            aligned.append(sides)
        problems = dict(zip((point.row.label for point in compared), zip(*aligned, strict=True), strict=True))
        families: dict[str, list[Point]] = {}
        for point in methods:
            families.setdefault(point.row.family, []).append(point)
        return cls(host, donor, families, drafted, problems, tasks, oracles)

    @cached_property
    def sections(self) -> dict[tuple[str, str], list[tuple[int, str]]]:
        """By task, and by metric that all rows have, the places of its tasks, each with the score there: Pass@k of its own k."""
        parts = {AVERAGE: [*enumerate(self.tasks)]}
        parts |= {task: [(place, task)] for place, task in parts[AVERAGE]} if len(self.tasks) > 1 else {}
        known = {}
        for (part, places), metric in product(parts.items(), METRICS):
            scores = [(at, ACC if metric == "acc" else f"pass@{self.host.results[task].k}") for at, task in places]
            if all(name in own[at].values for own in self.problems.values() for at, name in scores):
                known[part, metric] = scores
        return known

    def gains(self, points: Sequence[Point], task: str, metric: str) -> list[Values]:
        """Over the host, by task `[points, clusters of problems]`."""
        own, its = [self.problems[point.row.label] for point in points], self.problems[self.host.row.label]
        return [
            np.stack([by_cluster(each[i].values[name] - its[i].values[name], its[i].clusters) for each in own])
            for i, name in self.sections[task, metric]
        ]

    def find_bands(self) -> dict[tuple[str, str, str], Interval]:
        """The gain of each row, task and metric, with the band that holds all rates of its method."""
        bands = dict[tuple[str, str, str], Interval]()
        for (task, metric), points in product(self.sections, self.families.values()):
            names = (task, *(self.tasks if len(self.tasks) == 1 else ()))  # a single task is its own average
            curve = Curve(np.zeros(len(points)), self.gains(points, task, metric))
            for point, band in zip(points, find_band(curve), strict=True):
                bands |= {(point.row.label, name, metric): within_shares(band) for name in names}
        return bands

    def list_areas(self) -> list[dict[str, Any]]:
        """The lines of frontier_area.csv."""
        lines: list[dict[str, Any]] = []
        for axis, (task, metric) in product(COSTS, self.sections):
            curves, has_area = self.draw_curves(axis, task, metric), axis in AREA_AXES
            own = list(self.measure_areas(curves, task, metric)) if has_area else []
            own = own or [{"method": name} for name in curves]
            least: dict[str, dict[str, float | None]] = {}
            if self.donor is not None:
                gains = self.gains([self.donor], task, metric)
                least = {name: find_least_costs(curve, gains, 0.0 if has_area else None) for name, curve in curves.items()}
            head = {"axis": axis, "task": task, "metric": metric}
            lines += [head | line | least.get(line["method"], {}) for line in own]
        return [{column: line.get(column) for column in AREA_COLUMNS} for line in lines]

    def draw_curves(self, axis: str, task: str, metric: str) -> dict[str, Curve]:
        """By method, of those that have this cost."""
        drafted = {} if axis in AREA_AXES else {point.row.family: [point] for point in self.drafted}
        curves = {}
        for method, points in {**self.families, **drafted}.items():
            costs = {point: cost for point in points if (cost := point.cost(axis, task)) is not None}
            if not costs:
                continue
            known = sorted(costs, key=lambda point: costs[point])
            reached = [costs[point] for point in known]
            if axis in AREA_AXES and (most := known[-1].row.covers) and most > reached[-1]:  # it keeps its last gain
                known, reached = [*known, known[-1]], [*reached, most]
            curves[method] = Curve(np.array(reached), self.gains(known, task, metric))
        return curves

    def measure_areas(self, curves: Mapping[str, Curve], task: str, metric: str) -> Iterator[dict[str, Any]]:
        """The areas of all methods up to the cost that all with a rate reach, and that of the oracle."""
        rated = [curves[name] for name, points in self.families.items() if name in curves and any(p.row.rate for p in points)]
        if not rated:
            return
        cap, oracles = find_cap(rated), self.oracles.get(task, ()) if metric == "acc" else ()
        most = [oracle.area(cap) for oracle in oracles]
        wrong = [1 - self.problems[self.host.row.label][place].values[ACC] for place, _ in self.sections[task, metric]]
        for area in compare_areas(curves, _AGAINST, cap):
            has_share = bool(most) and all(most)
            share = Figure.of(curves[area.method].share_of(oracles, wrong, cap)) if has_share else Figure()
            own = within_shares(area.area.interval())
            difference = Figure.of(within_shares(area.difference.interval()) if area.difference else None)
            line = {"method": area.method, "versus": area.versus, "area": own.value, "low": own.low, "high": own.high}
            line |= {"area_low_step": area.area.steps[0], "area_high_step": area.area.steps[1], "p_holm": area.p_holm}
            yield line | difference.describe("difference") | share.describe("oracle_share")
        if most:
            steps = {"area": most[0], "area_low_step": most[0], "area_high_step": most[1]}
            yield {"method": ORACLE, "oracle_share": 1.0} | steps
