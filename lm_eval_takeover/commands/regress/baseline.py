"""A baseline: what one run, or several of other seeds, scored on each problem, with all that texts depend on, as small JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np

from lm_eval_takeover import __version__
from lm_eval_takeover.commands._output import write_file
from lm_eval_takeover.errors import ArgumentError, ResultsError
from lm_eval_takeover.results.fields import read_document
from lm_eval_takeover.results.files import Run, read_runs
from lm_eval_takeover.results.problems import ACC, COSTS, Problems, ReadOptions, fill_pass_at_k, read_costs
from lm_eval_takeover.results.settings import Settings, list_differences
from lm_eval_takeover.results.statistics import Values, as_values
from lm_eval_takeover.runs.layout import find_run_dirs
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.schema import Between, check

WRITER = "`lm-eval-takeover regress RESULTS --baseline FILE --update`"
_ID = 16  # digits of a problem's digest that are kept
_DERIVED = "pass@"  # Pass@k comes from the correct samples
_Counts = list[Annotated[float, Between(0, 2**53)]]  # of a metric with grades between 0 and 1 they are not whole


@dataclass(frozen=True)
class TaskRuns:
    """One task of the baseline, or of the run that is compared with it. All `runs` have one order of problems.

    Their values are means over samples: of metrics, and of what `results.problems` counts if there was a run_dir. `anchors` are
    the runs of base and reference for Recovery; only a baseline has them. `no_costs`: why the costs are not known.
    """

    runs: tuple[Problems, ...]
    settings: Settings
    anchors: Mapping[str, Problems] = field(default_factory=dict)
    no_costs: str = "the baseline was written without them"

    @cached_property
    def problems(self) -> Problems:
        """The mean over runs by problem."""
        first, *others = self.runs
        metrics = [metric for metric in first.values if all(metric in other.values for other in others)]
        return replace(first, values={m: np.mean([run.values[m] for run in self.runs], axis=0) for m in metrics})

    def ordered_as(self, ids: tuple[str, ...]) -> Self:
        """The task with only the problems of these ids, in this order."""
        anchors = {role: run.ordered_as(ids) for role, run in self.anchors.items()}
        return replace(self, runs=tuple(run.ordered_as(ids) for run in self.runs), anchors=anchors)


@dataclass(frozen=True)
class SeedRuns:
    """A run, or a baseline."""

    model: str
    settings: Settings
    versions: dict[str, Any]
    tasks: dict[str, TaskRuns]
    label: str = ""  # what the run is called
    notes: tuple[str, ...] = ()  # which of its results files count

    @property
    def seeds(self) -> int:
        """How many runs a task has."""
        return max(len(side.runs) for side in self.tasks.values())


def read_single_run(results: Path, reading: ReadOptions = ReadOptions()) -> SeedRuns:
    """The one run of a results folder, with its samples. Raises ResultsError, ArgumentError."""
    runs, notes = read_runs([results], reading)
    if len(runs) == 1:
        single = _read_run(runs[0])
        return replace(single, notes=(*notes, *single.notes))
    reasons = notes
    if runs:
        _refuse_rows([results])
        sources = ", ".join(f"'{run.source}'" for run in runs)
        differences = "; ".join(list_differences(runs[0].settings, runs[1].settings)) or "the seed"
        reasons = [f"give one of {sources}; they differ in {differences}"]
    raise ArgumentError("; ".join([f"'{results}' holds {len(runs)} runs, expected one", *reasons]))


def _refuse_rows(results: Sequence[Path]) -> None:
    """Raise ArgumentError that names the rows of `compare`, each of which is a run, if a folder holds such rows."""
    folders = find_run_dirs(results[0]) if len(results) == 1 else []
    if len(folders) > 1:
        names = ", ".join(f"'{folder.parent}'" for folder in folders)
        raise ArgumentError(f"'{results[0]}' holds the rows of compare, and regress takes one of them: give {names}")


def read_seeds(results: Sequence[Path], reading: ReadOptions = ReadOptions()) -> SeedRuns:
    """Runs of these folders as one, where they differ in nothing but the seed. Raises ResultsError, ArgumentError."""
    runs, notes = read_runs(results, reading)
    if not runs:
        raise ArgumentError("; ".join([f"'{results[0]}' holds no run", *notes]))
    first, *others = map(_read_run, runs)
    for source, other in zip((run.source for run in runs[1:]), others, strict=True):
        if lines := list_other_settings(first, other):
            _refuse_rows(results)
            raise ArgumentError(
                f"'{source}' is not another seed of '{runs[0].source}': {'; '.join(lines)}; a baseline holds runs that "
                "differ in the seed alone"
            )
    tasks = {}
    for task, side in first.tasks.items():  # in its order of problems; runs with the same texts count once
        by_texts: dict[str, Problems] = {}
        for run in (each.tasks[task].runs[0] for each in (first, *others)):
            by_texts.setdefault(run.texts, run.ordered_as(side.problems.ids))
        tasks[task] = replace(side, runs=tuple(by_texts.values()))
    return replace(first, tasks=tasks, notes=(*notes, *(note for each in (first, *others) for note in each.notes)))


def list_other_settings(old: SeedRuns, new: SeedRuns, allowed: Sequence[str] = ()) -> list[str]:
    """A line for each setting that differs, beside those allowed, and for each task without the same problems."""
    lines = list_differences(old.settings, new.settings, allowed)
    for task in sorted(old.tasks.keys() | new.tasks.keys()):
        before, now = old.tasks.get(task), new.tasks.get(task)
        if before is None or now is None or set(before.problems.ids) != set(now.problems.ids):
            lines.append(f"{task}: other problems")
        else:
            lines += [f"{task} {line}" for line in list_differences(before.settings, now.settings, allowed)]
            prompts = [dict(zip(side.problems.ids, side.problems.prompts, strict=False)) for side in (before, now)]
            if all(prompts) and prompts[0] != prompts[1] and before.settings == now.settings and "prompts" not in allowed:
                lines.append(f"{task} prompts: others, though all settings are the same; other examples?")
    return list(dict.fromkeys(lines))


def _read_run(run: Run) -> SeedRuns:
    tasks = {task: _read_task(run, task) for task in sorted(run.tasks)}
    ran = {task: side.no_costs for task, side in tasks.items() if run.tasks[task].run_dir is not None and side.no_costs}
    notes = [f"{task}: tokens and takeovers by problem are not known: {why}" for task, why in ran.items()]
    notes += [f"{task}: acc is its {result.accuracy}" for task, result in run.tasks.items() if result.accuracy != ACC]
    return SeedRuns(run.model, run.settings, run.versions, tasks, label=run.label, notes=tuple(notes))


def _read_task(run: Run, task: str) -> TaskRuns:
    result = run.tasks[task]
    if result.problems is None:
        raise ResultsError(
            f"'{run.source}' has no samples_{task}_*.jsonl beside it; an interval is over problems, so run with --log_samples"
        )
    costs, no_costs = dict[str, Values](), "the run had no run_dir"
    if result.run_dir is not None:
        totals = {name: getattr(result.counts, name) for name in ("tokens", "takeovers", "guide_passes")}
        costs, no_costs = read_costs(Path(result.run_dir), task, result.identity, totals, result.problems)
    ids, values = tuple(name[:_ID] for name in result.problems.ids), costs | result.problems.values
    prompts = tuple(name[:_ID] for name in result.problems.prompts)
    seed = run.seed if run.takeover and isinstance(run.seed, int) else None
    problems = replace(result.problems, ids=ids, values=values, prompts=prompts, identity=result.identity, seed=seed)
    return TaskRuns((problems,), result.settings, no_costs=no_costs)


def add_anchors(measured: SeedRuns, base: Path, reference: Path) -> SeedRuns:
    """Add the runs of base and reference, for checks of Recovery. Raises ResultsError for other problems."""
    runs = {"base": (base, read_single_run(base)), "reference": (reference, read_single_run(reference))}
    sides = {}
    for task, side in measured.tasks.items():
        anchors = {}
        for role, (path, run) in runs.items():
            own = run.tasks[task].problems if task in run.tasks else None
            if own is None or set(own.ids) != set(side.problems.ids) or own.samples != side.problems.samples:
                raise ResultsError(f"'{path}' has not the problems and samples of {task} that the new baseline has")
            anchors[role] = own.ordered_as(side.problems.ids)
        sides[task] = replace(side, anchors=anchors)
    return replace(measured, tasks=sides)


# The file. Counts are sums over the samples of each problem.


@dataclass(frozen=True)
class _BaselineRun:
    identity: str | None
    texts: str
    counts: dict[str, _Counts]
    seed: int | None = None


@dataclass(frozen=True)
class _StoredTask:
    settings: dict[str, Any]
    samples: Annotated[int, Between(1, 4096)]
    ids: list[str]
    prompts: list[str]
    runs: list[_BaselineRun]
    anchors: dict[str, _Counts] | None


@dataclass(frozen=True)
class _Stored:
    written_by: str
    label: str
    model: str
    settings: dict[str, Any]
    versions: dict[str, Any]
    tasks: dict[str, _StoredTask]
    checksum: str
    schema: Literal[2] = 2


def write_baseline(path: Path, measured: SeedRuns) -> None:
    """Write the file whole. Raises ArgumentError."""
    content = {
        "schema": _Stored.schema,
        "written_by": f"lm-eval-takeover {__version__}",
        "label": measured.label,
        "model": measured.model,
        "settings": measured.settings,
        "versions": measured.versions,
        "tasks": {task: _pack(side) for task, side in measured.tasks.items()},
    }
    content = json.loads(json.dumps(content, default=str)) | {"checksum": ""}
    write_file("baseline", path, json.dumps(content | {"checksum": digest_of(content)}) + "\n")


def _pack(side: TaskRuns) -> dict[str, Any]:
    def count(values: Mapping[str, Values]) -> dict[str, list[float]]:
        counts = {name: np.round(each * side.problems.samples, 9).tolist() for name, each in values.items()}
        return {name: [int(x) if x.is_integer() else x for x in each] for name, each in counts.items()}

    def pack_run(run: Problems) -> dict[str, Any]:
        values = {name: each for name, each in run.values.items() if not name.startswith(_DERIVED)}
        return {"identity": run.identity, "texts": run.texts, "counts": count(values), "seed": run.seed}

    return {
        "settings": side.settings,
        "samples": side.problems.samples,
        "ids": list(side.problems.ids),
        "prompts": list(side.problems.prompts),
        "runs": list(map(pack_run, side.runs)),
        "anchors": count({role: run.values[ACC] for role, run in side.anchors.items()}) or None,
    }


def read_baseline(path: Path) -> SeedRuns:
    """A baseline that `write_baseline` wrote. Raises ResultsError with file and field."""
    if not path.exists():
        raise ResultsError(f"--baseline '{path}' does not exist; write it from a good run with --update")
    document = read_document(path, WRITER)
    document.require("schema", Literal[2])
    content = {name: document.get(name) for name in document}
    if digest_of(content | {"checksum": ""}) != document.require("checksum", str):
        document.fail("checksum", f"does not agree with the content: the file was edited or cut; write it again with {WRITER}")
    try:
        stored: _Stored = check(content, _Stored)
        tasks = {task: _unpack(side) for task, side in stored.tasks.items()}
    except ValueError as error:
        raise ResultsError(f"'{path}': {error}; write it again with {WRITER}") from None
    return SeedRuns(stored.model, stored.settings, stored.versions, tasks, stored.label)


def _unpack(side: _StoredTask) -> TaskRuns:
    """Raises ValueError for counts that do not fit the problems and samples."""

    def divide(counts: Mapping[str, Sequence[float]]) -> dict[str, Values]:
        values = {name: as_values(each) / side.samples for name, each in counts.items()}
        for name, each in values.items():
            if len(each) != len(side.ids):
                raise ValueError(f"field {name!r} has {len(each)} problems, 'ids' has {len(side.ids)}")
            if name not in COSTS and (each > 1).any():
                raise ValueError(f"field {name!r} holds more than {side.samples} samples")
        return values

    if not side.runs or any(ACC not in run.counts for run in side.runs):
        raise ValueError("field 'runs' is empty, or one of them has no 'counts.acc'")
    ids, prompts = tuple(side.ids), tuple(side.prompts)
    runs = []
    for run in side.runs:
        values = fill_pass_at_k(divide(run.counts), side.samples)
        problems = Problems(ids, side.samples, values, prompts=prompts, texts=run.texts)
        runs.append(replace(problems, identity=run.identity, seed=run.seed))
    anchors = {role: Problems(ids, side.samples, {ACC: shares}) for role, shares in divide(side.anchors or {}).items()}
    return TaskRuns(tuple(runs), side.settings, anchors)
