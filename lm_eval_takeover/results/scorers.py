"""How much of Acc is the scorer: texts that `rescore --verifier` judged again by others, kept below their run_dir."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import get_args

from lm_eval_takeover.answers.samples import Verifier
from lm_eval_takeover.results.problems import ACC, Reading
from lm_eval_takeover.results.runs import Run, TaskResult, common_ids, is_rejudged, read_runs

Accs = Mapping[str, float]  # Acc by verifier


def gather_scorers(runs: Sequence[Run], reading: Reading) -> list[Run]:
    """The runs, with Acc by each verifier in their results. What only judges the texts of another of them is no row of its own.

    A verifier counts for a task if it judged all of its problems.
    """
    run_dirs = {Path(found.run_dir) for run in runs for found in run.tasks.values() if found.run_dir}
    folders = [folder / name for folder in sorted(run_dirs) for name in get_args(Verifier)]
    kept = read_runs((folder for folder in folders if any(folder.rglob("results_*.json"))), reading)[0]
    original = [run for run in runs if not any(is_rejudged(run, other) for other in runs)]
    return [_add_scorers(run, [other for other in [*runs, *kept] if is_rejudged(other, run)]) for run in original]


def _add_scorers(run: Run, judged: Sequence[Run]) -> Run:
    def add(result: TaskResult) -> TaskResult:
        found = [*(other.tasks[result.task] for other in judged if result.task in other.tasks), result]
        own = result.problems
        whole = [each for each in found if each.problems and own and common_ids([each.problems, own])]
        return replace(result, scorers={each.verifier: each.means[ACC] for each in whole})

    return replace(run, tasks={task: add(result) for task, result in run.tasks.items()})


def list_scorer_notes(rows: Mapping[str, Run]) -> list[str]:
    """A line for each task on which two rows change their order with the scorer, and on what was not judged by all."""
    lines = []
    for (first, one), (second, other) in combinations(rows.items(), 2):
        for task in (task for task in one.tasks if task in other.tasks):
            a, b = one.tasks[task].scorers, other.tasks[task].scorers
            above = [name for name in a if name in b and a[name] > b[name]]
            below = [name for name in a if name in b and a[name] < b[name]]
            if above and below:
                order = f"{first} is above {second} by {', '.join(above)}, and below by {', '.join(below)}"
                lines.append(f"{task}: {order}")
    for name, run in rows.items():
        results = run.tasks.values()
        missing = [each for each in get_args(Verifier) if any(each not in result.scorers for result in results)]
        folder = next((result.run_dir for result in results if result.run_dir), None)
        if missing and folder:
            command = f"lm-eval-takeover rescore {folder} --verifier {','.join(missing)}"
            lines.append(f"{name} is not judged by all scorers: {command}")
        elif missing:
            lines.append(f"{name} has no run_dir with its texts, so other scorers cannot judge it")
    return lines
