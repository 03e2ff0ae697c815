"""A baseline: what a run scored on each problem, with all that texts depend on, as small JSON."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np

from lm_eval_takeover import __version__
from lm_eval_takeover.commands._output import write_file
from lm_eval_takeover.errors import ArgumentError, ResultsError
from lm_eval_takeover.results.documents import Settings, list_differences, read_document
from lm_eval_takeover.results.files import Run, read_runs
from lm_eval_takeover.results.problems import ACC, Problems, ReadOptions, fill_pass_at_k
from lm_eval_takeover.results.statistics import Values, as_values, join_clusters
from lm_eval_takeover.results.stored import COSTS, read_costs
from lm_eval_takeover.runs.layout import find_run_dirs
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.schema import Between, check

WRITER = "`lm-eval-takeover regress RESULTS --baseline FILE --update`"
_ID = 16  # digits of a problem's digest that are kept
_DERIVED = "pass@"  # Pass@k comes from the correct samples
_Counts = list[Annotated[float, Between(0, 2**53)]]  # of a metric with grades between 0 and 1 they are not whole


@dataclass(frozen=True)
class TaskScores:
    """One task of a run, or of a baseline. `no_costs`: why what its problems cost is not known.

    Values are means over samples: of metrics, and of what `results.problems` counts if there was a run_dir.
    """

    problems: Problems
    settings: Settings
    no_costs: str = "the baseline was written without them"

    def ordered_as(self, ids: tuple[str, ...]) -> Self:
        return replace(self, problems=self.problems.ordered_as(ids))


@dataclass(frozen=True)
class Scores:
    """A run, or a baseline."""

    model: str
    settings: Settings
    versions: dict[str, Any]
    tasks: dict[str, TaskScores]
    label: str = ""  # what the run is called
    notes: tuple[str, ...] = ()  # which of its results files count


def read_single_run(results: Path, reading: ReadOptions = ReadOptions()) -> Scores:
    """The one run of a results folder, with its samples. Raises ResultsError, ArgumentError."""
    runs, notes = read_runs([results], reading)
    if len(runs) == 1:
        run = runs[0]
        costs = read_costs(run.tasks.values())
        tasks = {task: _read_task(run, task, *costs[task]) for task in sorted(run.tasks)}
        ran = {task: side.no_costs for task, side in tasks.items() if run.tasks[task].run_dir is not None and side.no_costs}
        notes += [f"{task}: tokens and takeovers by problem are not known: {why}" for task, why in ran.items()]
        notes += [f"{task}: acc is its {result.accuracy}" for task, result in run.tasks.items() if result.accuracy != ACC]
        return Scores(run.model, run.settings, run.versions, tasks, run.label, tuple(notes))
    reasons = notes
    if runs:
        folders = find_run_dirs(results)
        if len(folders) > 1:
            names = ", ".join(f"'{folder.parent}'" for folder in folders)
            raise ArgumentError(f"'{results}' holds the rows of compare, and regress takes one of them: give {names}")
        sources = ", ".join(f"'{run.source}'" for run in runs)
        differences = "; ".join(list_differences(runs[0].settings, runs[1].settings)) or "the seed"
        reasons = [f"give one of {sources}; they differ in {differences}"]
    raise ArgumentError("; ".join([f"'{results}' holds {len(runs)} runs, expected one", *reasons]))


def _read_task(run: Run, task: str, costs: dict[str, Values], no_costs: str) -> TaskScores:
    result = run.tasks[task]
    if result.problems is None:
        raise ResultsError(
            f"'{run.source}' has no samples_{task}_*.jsonl beside it; an interval is over problems, so run with --log_samples"
        )
    ids, values = tuple(name[:_ID] for name in result.problems.ids), costs | result.problems.values
    prompts = tuple(name[:_ID] for name in result.problems.prompts)
    seed = run.seed if run.takeover and isinstance(run.seed, int) else None
    problems = replace(result.problems, ids=ids, values=values, prompts=prompts, identity=result.identity, seed=seed)
    return TaskScores(problems, result.settings, no_costs)


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
    runs: list[_BaselineRun]  # one
    anchors: None = None  # of earlier versions


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


def write_baseline(path: Path, measured: Scores) -> None:
    """Write the file whole. Raises ArgumentError."""
    content = {
        "schema": _Stored.schema,
        "written_by": f"lm-eval-takeover {__version__}",
        "label": measured.label,
        "model": measured.model,
        "settings": measured.settings,
        "versions": measured.versions,
        "tasks": {task: _pack(side.settings, side.problems) for task, side in measured.tasks.items()},
    }
    content = json.loads(json.dumps(content, default=str)) | {"checksum": ""}
    write_file("baseline", path, json.dumps(content | {"checksum": digest_of(content)}) + "\n")


def _pack(settings: Settings, run: Problems) -> dict[str, Any]:
    kept = {name: each for name, each in run.values.items() if not name.startswith(_DERIVED)}
    sums = {name: np.round(each * run.samples, 9).tolist() for name, each in kept.items()}
    counts = {name: [int(x) if x.is_integer() else x for x in each] for name, each in sums.items()}
    packed = {"identity": run.identity, "texts": run.texts, "counts": counts, "seed": run.seed}
    return {"settings": settings, "samples": run.samples, "ids": run.ids, "prompts": run.prompts, "runs": [packed]}


def read_baseline(path: Path) -> Scores:
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
    return Scores(stored.model, stored.settings, stored.versions, tasks, stored.label)


def _unpack(side: _StoredTask) -> TaskScores:
    """Raises ValueError for counts that do not fit the problems and samples."""
    if len(side.runs) != 1 or ACC not in side.runs[0].counts:
        raise ValueError("field 'runs' is not one run with 'counts.acc'")
    run = side.runs[0]
    values = {name: as_values(each) / side.samples for name, each in run.counts.items()}
    for name, each in values.items():
        if len(each) != len(side.ids):
            raise ValueError(f"field {name!r} has {len(each)} problems, 'ids' has {len(side.ids)}")
        if name not in COSTS and (each > 1).any():
            raise ValueError(f"field {name!r} holds more than {side.samples} samples")
    problems = Problems(tuple(side.ids), side.samples, fill_pass_at_k(values, side.samples), prompts=tuple(side.prompts))
    problems = replace(problems, clusters=join_clusters(side.prompts), texts=run.texts, identity=run.identity, seed=run.seed)
    return TaskScores(problems, side.settings)
