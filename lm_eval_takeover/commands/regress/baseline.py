"""A baseline: what one run, or several of other seeds, scored on each problem, with all that texts depend on, as small JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lm_eval_takeover import __version__
from lm_eval_takeover.errors import ArgumentError, ResultsError
from lm_eval_takeover.results.costs import Costs
from lm_eval_takeover.results.fields import Fields, read_document
from lm_eval_takeover.results.problems import ACC, Problems, derive_pass_at_k, list_metrics
from lm_eval_takeover.results.runs import Run, read_runs
from lm_eval_takeover.results.settings import Settings, list_differences
from lm_eval_takeover.results.statistics import Values
from lm_eval_takeover.runs.layout import find_run_dirs
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.whole_files import write_text
from lm_eval_takeover.tasks.metrics import list_ks

SCHEMA = 2
WRITER = "`lm-eval-takeover regress RESULTS --baseline FILE --update`"
_MOST_SAMPLES = 4096  # of a problem
_LARGEST = 2.0**53  # tokens and passes of a problem
_ID = 16  # digits of a problem's digest that are kept
_DERIVED = "pass@"  # Pass@k comes from the correct samples
_COSTS = ("tokens", "takeovers", "guide_passes", "truncated")


@dataclass(frozen=True)
class Anchors:
    """What Recovery is measured between: shares of correct samples by problem, in the order of the side's problems."""

    base: Values
    reference: Values

    def values(self, metric: str, samples: int) -> tuple[Values, Values]:
        """`(base, reference)` by problem under `acc` or `pass@k`."""
        return tuple(
            derive_pass_at_k(shares, samples, int(metric.removeprefix(_DERIVED))) if metric != ACC else shares
            for shares in (self.base, self.reference)
        )  # type: ignore[return-value]


@dataclass(frozen=True)
class TaskRun:
    """One task of one run."""

    problems: Problems
    costs: Costs | None = None


@dataclass(frozen=True)
class TaskRuns:
    """One task of the baseline, or of the run that is compared with it. All `runs` have one order of problems."""

    runs: tuple[TaskRun, ...]
    settings: Settings
    anchors: Anchors | None = None  # of a baseline alone

    @cached_property
    def problems(self) -> Problems:
        """The mean over runs by problem."""
        first, *others = (run.problems for run in self.runs)
        metrics = [metric for metric in first.values if all(metric in other.values for other in others)]
        values = {m: np.mean([run.problems.values[m] for run in self.runs], axis=0) for m in metrics}
        return replace(first, values=values)

    @cached_property
    def costs(self) -> Costs | None:
        """The mean over runs by problem; None where a run has none."""
        found = [run.costs for run in self.runs if run.costs is not None]
        if len(found) < len(self.runs):
            return None
        return Costs(*(np.mean([getattr(costs, name) for costs in found], axis=0) for name in _COSTS))


@dataclass(frozen=True)
class SeedRuns:
    """A run, or a baseline."""

    model: str
    settings: Settings
    versions: dict[str, Any]
    tasks: dict[str, TaskRuns]
    digest: str = ""  # of a baseline: its file's checksum
    label: str = ""  # what the run is called
    notes: tuple[str, ...] = ()  # on which of its results files count

    @property
    def seeds(self) -> int:
        """How many runs a task has."""
        return max(len(side.runs) for side in self.tasks.values())


def read_single_run(results: Path) -> SeedRuns:
    """The one run of a results folder, with its samples. Raises ResultsError, ArgumentError."""
    runs, notes = read_runs([results])
    if len(runs) != 1:
        sources = ", ".join(f"'{run.source}'" for run in runs) or "none"
        if rows := _name_rows(results):
            raise ArgumentError(rows)
        way_out = "; give one of these files" if runs else ""
        raise ArgumentError(
            f"'{results}' holds {len(runs)} runs, expected one: {sources}{_explain(runs, notes)}{way_out}"
        )
    return replace(_measure_run(runs[0]), notes=tuple(notes))


def _name_rows(results: Path) -> str:
    """What `compare` left in a folder, if it is one: its rows, each of which is a run."""
    if len(found := find_run_dirs(results)) < 2:
        return ""
    names = ", ".join(f"'{folder.parent}'" for folder in found)
    return f"'{results}' holds the rows of compare, and a baseline is one of them: give {names}"


def _explain(runs: Sequence[Run], notes: Sequence[str]) -> str:
    """Why there is no run, or what tells apart the first two of several."""
    if len(runs) > 1:
        return f"; they differ in {'; '.join(list_differences(runs[0].settings, runs[1].settings)) or 'the seed'}"
    return "".join(f"; {note}" for note in notes)


def read_seeds(results: Sequence[Path]) -> SeedRuns:
    """Runs of these folders as one, where they differ in nothing but the seed. Raises ResultsError, ArgumentError."""
    runs, notes = read_runs(results)
    if not runs:
        raise ArgumentError(f"'{results[0]}' holds no run{_explain(runs, notes)}")
    first, *others = map(_measure_run, runs)
    for run, other in zip(runs[1:], others, strict=True):
        lines = list_differences(first.settings, other.settings)
        for task in sorted(first.tasks.keys() | other.tasks.keys()):
            ours, theirs = first.tasks.get(task), other.tasks.get(task)
            if ours is None or theirs is None or set(ours.problems.ids) != set(theirs.problems.ids):
                lines.append(f"{task}: other problems")
            else:
                lines += list_differences(ours.settings, theirs.settings)
        if lines and len(results) == 1 and (rows := _name_rows(results[0])):
            raise ArgumentError(rows)
        if lines:
            raise ArgumentError(
                f"'{run.source}' is not another seed of '{runs[0].source}': {'; '.join(dict.fromkeys(lines))}; a baseline holds "
                "runs that differ in the seed alone"
            )
    tasks = {task: _join_sides([measured.tasks[task] for measured in (first, *others)]) for task in first.tasks}
    return replace(first, tasks=tasks, notes=tuple(notes))


def _join_sides(sides: Sequence[TaskRuns]) -> TaskRuns:
    """The runs of all, in the first one's order of problems; runs with the same texts once."""
    ids = sides[0].problems.ids
    runs: dict[str, TaskRun] = {}
    for side in sides:
        (run,) = side.runs
        places = {name: place for place, name in enumerate(run.problems.ids)}
        order = np.array([places[name] for name in ids], dtype=int)
        costs = Costs(*(getattr(run.costs, name)[order] for name in _COSTS)) if run.costs else None
        runs.setdefault(run.problems.texts, TaskRun(run.problems.ordered_as(ids), costs))
    return replace(sides[0], runs=tuple(runs.values()))


def _measure_run(run: Run) -> SeedRuns:
    sides = {task: _read_side(run, task) for task in sorted(run.tasks)}
    return SeedRuns(run.model, run.settings, run.versions, sides, label=str(run.takeover.get("label") or run.model))


def _read_side(run: Run, task: str) -> TaskRuns:
    result = run.tasks[task]
    if result.problems is None:
        raise ResultsError(
            f"'{run.source}' has no samples_{task}_*.jsonl beside it; an interval is over problems, so run with --log_samples"
        )
    problems = result.problems
    short = Problems(
        tuple(name[:_ID] for name in problems.ids), problems.samples, problems.values, problems.doc_ids, problems.texts
    )
    return TaskRuns((TaskRun(short, result.read_costs()),), result.settings)


def add_anchors(measured: SeedRuns, base: Path, reference: Path) -> SeedRuns:
    """The same with the base's and the reference's run, for checks of Recovery. Raises ResultsError for other problems."""
    runs = [read_single_run(base), read_single_run(reference)]
    sides = {}
    for task, side in measured.tasks.items():
        shares = []
        for path, run in zip((base, reference), runs, strict=True):
            found = run.tasks[task].problems if task in run.tasks else None
            if found is None or set(found.ids) != set(side.problems.ids) or found.samples != side.problems.samples:
                raise ResultsError(f"'{path}' has not the problems and samples of {task} that the new baseline has")
            shares.append(found.ordered_as(side.problems.ids).values["acc"])
        sides[task] = replace(side, anchors=Anchors(*shares))
    return replace(measured, tasks=sides)


def write_baseline(path: Path, measured: SeedRuns) -> None:
    """Write the file whole."""
    content = {
        "schema": SCHEMA,
        "written_by": f"lm-eval-takeover {__version__}",
        "label": measured.label,
        "model": measured.model,
        "settings": measured.settings,
        "versions": measured.versions,
        "tasks": {task: _pack(side) for task, side in measured.tasks.items()},
    }
    content = json.loads(json.dumps(content, default=str)) | {"checksum": ""}
    content["checksum"] = digest_of(content)
    write_text(path, json.dumps(content) + "\n")


def _pack(side: TaskRuns) -> dict[str, Any]:
    return {
        "settings": side.settings,
        "samples": side.problems.samples,
        "ids": list(side.problems.ids),
        "runs": [_pack_run(run) for run in side.runs],
        "anchors": _pack_anchors(side),
    }


def _pack_run(run: TaskRun) -> dict[str, Any]:
    problems = run.problems
    counts = {
        metric: np.rint(values * problems.samples).astype(int).tolist()
        for metric, values in problems.values.items()
        if not metric.startswith(_DERIVED)
    }
    costs = {name: getattr(run.costs, name).astype(int).tolist() for name in _COSTS} if run.costs else None
    return {"texts": problems.texts, "counts": counts, "costs": costs}


def _pack_anchors(side: TaskRuns) -> dict[str, list[int]] | None:
    if side.anchors is None:
        return None
    pair = {"base": side.anchors.base, "reference": side.anchors.reference}
    return {name: np.rint(shares * side.problems.samples).astype(int).tolist() for name, shares in pair.items()}


def read_baseline(path: Path) -> SeedRuns:
    """A baseline that `write_baseline` wrote. Raises ResultsError with file and field."""
    if not path.exists():
        raise ResultsError(f"--baseline '{path}' does not exist; write it from a good run with --update")
    document = read_document(path, WRITER)
    schema = document.require("schema", int)
    if schema != SCHEMA:
        document.fail("schema", f"is {schema}, expected {SCHEMA}; write it again with {WRITER}")
    content = {name: document.get(name) for name in document}
    if digest_of(content | {"checksum": ""}) != document.require("checksum", str):
        document.fail(
            "checksum", f"does not agree with the content: the file was edited or cut; write it again with {WRITER}"
        )
    tasks = document.inside("tasks")
    return SeedRuns(
        document.require("model", str),
        document.require("settings", dict),
        document.require("versions", dict),
        {task: _unpack(tasks.inside(task)) for task in tasks},
        document.require("checksum", str),
    )


def _unpack(task: Fields) -> TaskRuns:
    samples, ids = task.require("samples", int), tuple(task.require("ids", list))
    if not 1 <= samples <= _MOST_SAMPLES:
        task.fail("samples", f"is {samples}, expected a number from 1 to {_MOST_SAMPLES}")
    if not all(isinstance(name, str) for name in ids):
        task.fail("ids", "holds what is no text")
    runs = tuple(
        _unpack_run(Fields(task.place, run, f"{task.name}.runs"), ids, samples) for run in task.require("runs", list)
    )
    return TaskRuns(runs, task.require("settings", dict), _unpack_anchors(task, len(ids), samples))


def _unpack_run(run: Fields, ids: tuple[str, ...], samples: int) -> TaskRun:
    counts = run.inside("counts")
    values = {metric: counts.numbers(metric, samples) / samples for metric in counts}
    if ACC not in values:
        counts.fail(ACC, "is missing")
    for metric, shares in values.items():
        if len(shares) != len(ids):
            counts.fail(metric, f"has {len(shares)} problems, 'ids' has {len(ids)}")
    inner = run.inside_or_empty("costs")
    costs = Costs(*(inner.numbers(name, _LARGEST) for name in _COSTS)) if run.get("costs") is not None else None
    for name in _COSTS if costs is not None else ():
        if len(getattr(costs, name)) != len(ids):
            inner.fail(name, f"has {len(getattr(costs, name))} problems, 'ids' has {len(ids)}")
    values |= {f"{_DERIVED}{k}": derive_pass_at_k(values[ACC], samples, k) for k in list_ks(samples)}
    ordered = {metric: values[metric] for metric in list_metrics(values)}
    return TaskRun(Problems(ids, samples, ordered, texts=run.require("texts", str)), costs)


def _unpack_anchors(task: Fields, count: int, samples: int) -> Anchors | None:
    if task.get("anchors") is None:
        return None
    inner = task.inside("anchors")
    shares = []
    for name in ("base", "reference"):
        shares.append(inner.numbers(name, samples) / samples)
        if len(shares[-1]) != count:
            inner.fail(name, f"has {len(shares[-1])} problems, 'ids' has {count}")
    return Anchors(*shares)
