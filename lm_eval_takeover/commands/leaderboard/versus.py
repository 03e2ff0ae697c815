"""Every row against one of them: differences over the same problems, with intervals and p-values."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.runs import TaskResult, common_ids, find_results
from lm_eval_takeover.results.statistics import (
    Difference,
    count_observations,
    holm,
    independent_difference,
    paired_difference,
    within_shares,
)

if TYPE_CHECKING:
    from lm_eval_takeover.commands.leaderboard.rows import Row


def compare_rows(board: dict[str, Any], rows: Sequence["Row"], averaged: Sequence[str], versus: Path) -> None:
    """Add `vs` to each row but the one compared with. Raises ArgumentError unless that is one of the rows."""
    files = {file.resolve() for file in find_results(versus)}
    found = [row for row in rows if row.run.source in files]
    if len(found) != 1:
        raise ArgumentError(
            f"--vs '{versus}' is {len(found)} rows of the table; expected a results folder of one run, also given as RESULTS"
        )
    (reference,) = found
    tested: list[dict[str, Any]] = []  # Holm's correction is over all that the table compares
    for row, described in zip(rows, board["rows"], strict=True):
        if row is reference:
            continue
        tasks = [task for task in row.run.tasks if task in reference.run.tasks]
        described["vs"] = {"model": reference.name} | {
            metric.replace("@", ""): _compare(row, reference, tasks, averaged, metric)
            for metric in ("acc", *sorted({f"pass@{row.run.tasks[task].k}" for task in tasks}))
        }
        tested += [
            found
            for name, by_task in described["vs"].items()
            if name != "model"
            for task, found in by_task.items()
            if found["p_value"] is not None and not (task == "average" and len(averaged) == 1)
        ]
    for entry, adjusted in zip(tested, holm([entry["p_value"] for entry in tested]), strict=True):
        entry["p_holm"] = adjusted


def _compare(
    row: "Row", reference: "Row", tasks: Sequence[str], averaged: Sequence[str], metric: str
) -> dict[str, Any]:
    """By task and for the average: difference, interval and p-value."""
    pairs = {task: (row.run.tasks[task], reference.run.tasks[task]) for task in tasks}
    found = {task: _measure(*pair, metric) for task, pair in pairs.items() if metric in ("acc", f"pass@{pair[0].k}")}
    known = {task: difference for task, (difference, _) in found.items() if difference is not None}
    described = {task: _describe(difference, how) for task, (difference, how) in found.items()}
    if averaged and all(task in known for task in averaged):
        alone = described[averaged[0]] if len(averaged) == 1 else None  # one task is its own average, and one test
        described["average"] = alone or _describe(Difference.average([known[task] for task in averaged]), "over tasks")
    return described


def _measure(new: TaskResult, old: TaskResult, metric: str) -> tuple[Difference | None, str]:
    """The difference of two runs of a task, and how it was measured, or why it cannot be."""
    if new.problems is None or old.problems is None:
        return None, "no samples; run with --log_samples"
    if any(metric not in result.problems.values for result in (new, old) if result.problems):
        return None, f"no {metric}, since a problem has too few samples in one of the rows"
    observations = count_observations(metric, min(new.problems.samples, old.problems.samples))
    ids = common_ids([old.problems, new.problems])
    if ids is None:
        values = new.problems.values[metric], old.problems.values[metric]
        return independent_difference(*values, observations), "other problems: not paired"
    differences = new.problems.ordered_as(ids).values[metric] - old.problems.ordered_as(ids).values[metric]
    return paired_difference(differences, observations), "paired by problem"


def _describe(difference: Difference | None, how: str) -> dict[str, Any]:
    if difference is None:
        return {"difference": None, "low": None, "high": None, "p_value": None, "why": how}
    interval = within_shares(difference.interval())
    return {
        "difference": interval.value,
        "low": interval.low,
        "high": interval.high,
        "p_value": difference.p_value(),
        "how": how,
    }
