"""Reads a run_dir as results: a run, its tasks and their problems as `files` reads them from lm-eval's, with what each cost."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.results.files import Counts, Run, TaskResult, find_kind
from lm_eval_takeover.results.problems import ACC, Measured, Problems, collect_problems
from lm_eval_takeover.results.statistics import Values, as_values
from lm_eval_takeover.runs.identity import summarize_samples
from lm_eval_takeover.runs.layout import list_journals
from lm_eval_takeover.storage.digests import digest_of

if TYPE_CHECKING:  # with pyarrow
    from lm_eval_takeover.runs.run_reader import Answered, RunReader, StoredRun

COSTS = ("tokens", "takeovers", "guide_passes", "truncated")


def tabulate_run(run: "RunReader") -> Run:
    """A run whose samples are all judged. Raises RunDirError for a document that has another number of samples than others."""
    by_task = {task: [one for one in run.answered if one.task == task] for task in run.tasks}
    counted = summarize_samples({task: [one.stored for one in rows] for task, rows in by_task.items()})["per_task"]
    tasks = {}
    for task, rows in by_task.items():
        measured = measure_documents(rows)
        for one in measured:
            if one.samples != measured[0].samples:
                numbers = f"{one.samples} samples, and others have {measured[0].samples}"
                raise RunDirError(f"run_dir='{run.folder}': task {task}, doc {one.doc_id} has {numbers}")
        problems = collect_problems(measured)
        counts = Counts(**{field.name: counted[task][field.name] for field in fields(Counts)})
        tasks[task] = TaskResult(task, problems.means(), len(problems), problems.samples, {}, problems, counts)
    parameters = run.takeover.get("parameters") or {}
    return Run(run.folder, run.label, find_kind(run.policy), {}, run.takeover, {}, tasks, run.seconds, parameters)


def measure_documents(rows: Sequence["Answered"]) -> list[Measured]:
    """The problems of one task, in the order of their documents; `rows` are its samples, those of one document together."""
    return [_measure(list(of_document)) for _, of_document in groupby(rows, lambda one: one.doc_id)]


def _measure(rows: Sequence["Answered"]) -> Measured:
    first, count, texts = rows[0], len(rows), tuple(digest_of(one.stored.text) for one in rows)
    verdicts = tuple(one.correct for one in rows)
    means = {name: sum(getattr(one.stored, name) for one in rows) / count for name in COSTS}
    metrics, responses, prompt = {ACC: sum(verdicts) / count, **means}, digest_of([first.doc, texts]), str(first.problem)
    return Measured(first.doc, first.doc_id, metrics, count, responses, prompt, sample_texts=texts, verdicts=verdicts)


def read_costs(
    run_dir: Path, task: str, identity: str | None, totals: Mapping[str, int | None], problems: Problems
) -> tuple[dict[str, Values], str]:
    """The `COSTS` of each problem, as means over its samples, from the command in a run_dir that asked for these samples.

    Returns also why there are none. `totals` are the sums that the results have.
    """
    try:
        files = [file for path in list_journals(run_dir) for file in run_dir.glob(f"{path.name}*")]
        facts = ((file.name, (at := file.stat()).st_size, at.st_mtime_ns) for file in files if file.suffix != ".sqlite-shm")
        stored = _read_once(run_dir, tuple(fact for fact in facts if fact[1]))  # a reader makes an empty log, and shared memory
    except (RunDirError, OSError) as error:
        return {}, str(error)
    run = next((run for run in reversed(stored) if run.identify(task) == identity), None)
    if run is None:
        return {}, f"run_dir='{run_dir}' holds other samples of {task} than these results"
    rows = run.answer(task, {})
    measured = {one.doc_id: one.metrics for one in measure_documents(rows)}
    if not run.is_finished or measured.keys() != {*problems.doc_ids}:
        return {}, f"run_dir='{run_dir}' lacks samples of {task}"
    for name, total in totals.items():
        if name in COSTS and sum(getattr(one.stored, name) for one in rows) != total:
            return {}, f"run_dir='{run_dir}' has another sum of {name} of {task} than these results"
    return {name: as_values([measured[number][name] for number in problems.doc_ids]) for name in COSTS}, ""


@lru_cache(maxsize=1)
def _read_once(run_dir: Path, _: tuple[Any, ...]) -> "list[StoredRun]":
    """The runs of a run_dir, once for all of its tasks, as long as its journals stay as they are."""
    from lm_eval_takeover.runs.run_reader import read_stored_runs  # with pyarrow

    return read_stored_runs(run_dir)[0]
