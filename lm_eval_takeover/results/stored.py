"""Reads a run_dir as results: a run, its tasks and their problems as `files` reads them from lm-eval's, with what each cost."""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.results.files import Counts, Run, TaskResult, find_kind
from lm_eval_takeover.results.problems import ACC, LoggedProblem, collect_problems
from lm_eval_takeover.results.statistics import Values
from lm_eval_takeover.runs.identity import summarize_samples
from lm_eval_takeover.storage.digests import digest_of

if TYPE_CHECKING:  # with pyarrow
    from lm_eval_takeover.runs.run_reader import Answered, RunReader

COSTS = ("tokens", "takeovers", "guide_passes", "truncated")


def tabulate_run(run: "RunReader") -> Run:
    """A run whose samples are all judged. Raises RunDirError for a document that has another number of samples than others."""
    tasks = {task: tabulate_task(run, task) for task in run.tasks}
    parameters = run.takeover.get("parameters") or {}
    return Run(run.folder, run.label, find_kind(run.policy), {}, run.takeover, {}, tasks, run.seconds, parameters)


def tabulate_task(run: "RunReader", task: str) -> TaskResult:
    """One task of a run. Problems also have `COSTS`, as means."""
    rows = [one for one in run.answered if one.task == task]
    measured = [_measure(list(of_document)) for _, of_document in groupby(rows, lambda one: one.doc_id)]
    for one in measured:
        if one.samples != measured[0].samples:
            numbers = f"{one.samples} samples, and others have {measured[0].samples}"
            raise RunDirError(f"run_dir='{run.folder}': task {task}, doc {one.doc_id} has {numbers}")
    counted = summarize_samples({task: [one.stored for one in rows]})
    counts = Counts(**{field.name: counted[field.name] for field in fields(Counts)})
    return TaskResult.of(task, collect_problems(measured), {}, counts, run_dir=str(run.folder))


def _measure(rows: Sequence["Answered"]) -> LoggedProblem:
    first, count, texts = rows[0], len(rows), tuple(digest_of(one.stored.text) for one in rows)
    metrics = {ACC: sum(one.correct for one in rows) / count}
    metrics |= {name: sum(getattr(one.stored, name) for one in rows) / count for name in COSTS}
    responses, prompt = digest_of([first.doc, texts]), str(first.problem)
    return LoggedProblem(first.doc, first.doc_id, metrics, count, responses, prompt, sample_texts=texts)


def add_costs(run: Run) -> Run:
    """The run with `COSTS` among the values of its problems, or with the reason why there are none. Reads each run_dir once."""
    from lm_eval_takeover.runs.run_reader import read_stored_runs  # with pyarrow

    read, tasks = cache(lambda run_dir: read_stored_runs(Path(run_dir))), dict[str, TaskResult]()
    for task, result in run.tasks.items():
        tasks[task] = replace(result, no_costs="the run had no run_dir")
        try:
            if result.run_dir:
                values = _find_costs(read(result.run_dir), result) | result.problems.values
                tasks[task] = replace(result, problems=replace(result.problems, values=values))
        except (RunDirError, OSError) as error:
            tasks[task] = replace(result, no_costs=str(error))
    return replace(run, tasks=tasks)


def _find_costs(runs: "Sequence[RunReader]", result: TaskResult) -> dict[str, Values]:
    """From the command that asked for the samples of these results. Raises RunDirError where they are not all there."""
    place, task = f"run_dir='{result.run_dir}'", result.task
    run = next((run for run in reversed(runs) if run.identify(task) == result.identity), None)
    if run is None:
        raise RunDirError(f"{place} holds other samples of {task} than these results")
    if not run.is_finished or {*(known := tabulate_task(run, task)).problems.doc_ids} != {*result.problems.doc_ids}:
        raise RunDirError(f"{place} lacks samples of {task}")
    for name in ("tokens", "takeovers", "guide_passes"):
        if getattr(known.counts, name) != getattr(result.counts, name):
            raise RunDirError(f"{place} has another sum of {name} of {task} than these results")
    order = [known.problems.doc_ids.index(number) for number in result.problems.doc_ids]
    return {name: known.problems.values[name][order] for name in COSTS}
