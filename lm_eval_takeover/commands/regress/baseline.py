"""A baseline: what a run scored on each problem, with all that texts depend on, as small JSON. It is read as a run."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy as np

from lm_eval_takeover import __version__
from lm_eval_takeover.commands._output import write_file
from lm_eval_takeover.errors import ArgumentError, ResultsError
from lm_eval_takeover.results.documents import find_differences, read_json
from lm_eval_takeover.results.files import Run, TaskResult, read_runs
from lm_eval_takeover.results.problems import ACC, Problems, ReadOptions, fill_pass_at_k
from lm_eval_takeover.results.statistics import as_values, join_clusters
from lm_eval_takeover.results.stored import COSTS, add_costs
from lm_eval_takeover.runs.layout import find_run_dirs
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.schema import Between, check

WRITER = "`lm-eval-takeover regress RESULTS --baseline FILE --update`"
_DERIVED = "pass@"  # Pass@k comes from the correct samples
_Counts = list[Annotated[float, Between(0, 2**53)]]  # of a metric with grades between 0 and 1 they are not whole


def read_single_run(results: Path, reading: ReadOptions = ReadOptions()) -> Run:
    """The one run of a results folder, with its samples and what they cost. Raises ResultsError, ArgumentError."""
    runs, notes = read_runs([results], reading)
    # Before what `rescore` wrote into the run_dir of this run.
    runs = [run for run in runs if not run.takeover.get("rescored")] or runs
    if len(runs) != 1:
        reasons = [_tell_apart(results, runs)] if runs else notes
        raise ArgumentError("; ".join([f"'{results}' holds {len(runs)} runs, expected one", *reasons]))
    run = add_costs(runs[0])
    tasks = dict(sorted(run.tasks.items()))
    if without := [task for task, result in tasks.items() if not result.problems]:
        raise ResultsError(
            f"'{run.source}' has no samples_{without[0]}_*.jsonl beside it; an interval is over problems, so run with "
            f"--log_samples"
        )
    ran = {task: result.no_costs for task, result in tasks.items() if result.run_dir is not None and result.no_costs}
    notes += [f"{task}: tokens and takeovers by problem are not known: {why}" for task, why in ran.items()]
    notes += [f"{task}: acc is its {result.accuracy}" for task, result in run.tasks.items() if result.accuracy != ACC]
    seed = run.seed if run.takeover and isinstance(run.seed, int) else None  # other models' draw nothing alike
    return replace(run, tasks=tasks, notes=notes, seed=seed)


def _tell_apart(results: Path, runs: Sequence[Run]) -> str:
    """What to give instead of several runs. Raises ArgumentError for a folder of `compare`."""
    folders = find_run_dirs(results)
    if len(folders) > 1:
        names = ", ".join(f"'{folder.parent}'" for folder in folders)
        raise ArgumentError(f"'{results}' holds the rows of compare, and regress takes one of them: give {names}")
    sources = ", ".join(f"'{run.source}'" for run in runs)
    one, other = runs[:2]
    pairs = [(one.settings, other.settings)]
    pairs += [(one.tasks[task].settings, other.tasks[task].settings) for task in one.tasks if task in other.tasks]
    differences = dict.fromkeys(line for pair in pairs for line in find_differences(*pair).values())
    return f"give one of {sources}; they differ in {'; '.join(differences) or 'the seed'}"


# The file. Counts are sums over the samples of each problem.


class _StoredTask(TypedDict):
    settings: dict[str, Any]
    samples: Annotated[int, Between(1, 4096)]
    ids: list[str]
    prompts: list[str]
    identity: str | None
    texts: str
    counts: dict[str, _Counts]


class _Stored(TypedDict):
    schema: Literal[3]
    checksum: str
    model: str
    seed: int | None
    settings: dict[str, Any]
    versions: dict[str, Any]
    tasks: dict[str, _StoredTask]


def write_baseline(path: Path, run: Run) -> None:
    """Write the file whole. Raises ArgumentError."""
    content = {
        "schema": 3,
        "written_by": f"lm-eval-takeover {__version__}",
        **{name: getattr(run, name) for name in ("label", "model", "seed", "settings", "versions")},
        "tasks": {task: _pack(result) for task, result in run.tasks.items()},
    }
    content = json.loads(json.dumps(content, default=str)) | {"checksum": ""}
    write_file("baseline", path, json.dumps(content | {"checksum": digest_of(content)}) + "\n")


def _pack(result: TaskResult) -> dict[str, Any]:
    problems = result.problems
    kept = {name: each for name, each in problems.values.items() if not name.startswith(_DERIVED)}
    sums = {name: np.round(each * problems.samples, 9).tolist() for name, each in kept.items()}
    counts = {name: [int(x) if x.is_integer() else x for x in each] for name, each in sums.items()}
    about = {name: getattr(problems, name) for name in ("samples", "ids", "prompts", "texts")}
    return {"settings": result.settings, "identity": result.identity, **about, "counts": counts}


def read_baseline(path: Path) -> Run:
    """A baseline that `write_baseline` wrote. Raises ResultsError with file and field."""
    if not path.exists():
        raise ResultsError(f"--baseline '{path}' does not exist; write it from a good run with --update")
    content = read_json(path, WRITER)
    try:
        stored: _Stored = check(content, _Stored)
        if digest_of(content | {"checksum": ""}) != stored["checksum"]:
            raise ValueError("field 'checksum' does not agree with the content: the file was edited or cut")
        tasks = {task: _unpack(task, side) for task, side in stored["tasks"].items()}
    except ValueError as error:
        raise ResultsError(f"'{path}': {error}; write it again with {WRITER}") from None
    settings, versions, seed = stored["settings"], stored["versions"], stored["seed"]
    return Run(path, stored["model"], "other", settings, {}, versions, tasks, None, seed=seed)


def _unpack(task: str, side: _StoredTask) -> TaskResult:
    """Raises ValueError for counts that do not fit the problems and samples."""
    samples, ids, prompts = side["samples"], side["ids"], side["prompts"]
    if ACC not in side["counts"]:
        raise ValueError("field 'counts.acc' is missing")
    values = {name: as_values(each) / samples for name, each in side["counts"].items()}
    for name, each in values.items():
        if len(each) != len(ids):
            raise ValueError(f"field {name!r} has {len(each)} problems, 'ids' has {len(ids)}")
        if name not in COSTS and (each > 1).any():
            raise ValueError(f"field {name!r} holds more than {samples} samples")
    no_costs = "" if {*COSTS} <= values.keys() else "the baseline was written without them"
    problems = Problems(tuple(ids), samples, fill_pass_at_k(values, samples), texts=side["texts"], prompts=tuple(prompts))
    problems = replace(problems, clusters=join_clusters(prompts))
    return TaskResult.of(task, problems, side["settings"], identity=side["identity"], no_costs=no_costs)
