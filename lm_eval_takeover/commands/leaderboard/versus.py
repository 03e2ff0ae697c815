"""Compares every row with one of them: differences over the same problems, with intervals and p-values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results import statistics
from lm_eval_takeover.results.runs import Run, TaskResult, common_ids, find_all_results
from lm_eval_takeover.results.summary import Figure

AVERAGE = "average"


@dataclass(frozen=True)
class Contrast:
    """How far a row is above the reference by one metric, on a task or on their average. `figure.why`: why that is not known."""

    metric: str
    task: str
    figure: Figure
    p_value: float | None = None
    p_holm: float | None = None
    how: str | None = None  # paired by problem, or not


def compare_runs(
    rows: Sequence[Run], averaged: Sequence[str], versus: Path, max_missing: float
) -> tuple[Run, dict[str, list[Contrast]]]:
    """Find the row of `--vs` and compare the others with it, by name. Raises ArgumentError unless it is one of the rows.

    Holm's correction is over all that the table compares. An average over one task is no comparison of its own.
    """
    files = find_all_results([versus])
    matching = [row for row in rows if row.source in files]
    if len(matching) != 1:
        raise ArgumentError(
            f"--vs '{versus}' is {len(matching)} rows of the table; expected a results folder of one run, also given as RESULTS"
        )
    (reference,) = matching
    contrasts = {row.name: _compare(row, reference, averaged, max_missing) for row in rows if row is not reference}
    tested = [each for of_row in contrasts.values() for each in of_row if each.p_value is not None]
    adjusted = iter(statistics.holm([each.p_value for each in tested if each.p_value is not None]))
    return reference, {
        name: [each if each.p_value is None else replace(each, p_holm=next(adjusted)) for each in of_row]
        for name, of_row in contrasts.items()
    }


def _compare(row: Run, reference: Run, averaged: Sequence[str], max_missing: float) -> list[Contrast]:
    """Compare Acc and the Pass@k that tables show, by task and for the average over several tasks."""
    others = reference.tasks
    pairs = {task: (new, others[task]) for task, new in row.tasks.items() if task in others}
    contrasts = []
    for metric in ("acc", *sorted({f"pass@{new.k}" for new, _ in pairs.values() if new.k and new.k > 1})):
        differences: dict[str, statistics.Difference] = {}
        for task, (new, old) in pairs.items():
            if metric not in ("acc", f"pass@{new.k}"):
                continue
            difference, how = _measure(new, old, metric, max_missing)
            contrasts.append(_describe(metric, task, difference, how))
            if difference is not None:
                differences[task] = difference
        if len(averaged) > 1 and all(task in differences for task in averaged):
            whole = statistics.Difference.average([differences[task] for task in averaged])
            contrasts.append(_describe(metric, AVERAGE, whole, "over tasks"))
    return contrasts


def _measure(new: TaskResult, old: TaskResult, metric: str, max_missing: float) -> tuple[statistics.Difference | None, str]:
    """The difference of two runs of a task, and how it was measured, or why it cannot be."""
    if new.problems is None or old.problems is None:
        return None, "no samples; run with --log_samples"
    if any(metric not in result.problems.values for result in (new, old) if result.problems):
        return None, f"no {metric}, since a problem has too few samples in one of the rows"
    observations = statistics.count_observations(metric, min(new.problems.samples, old.problems.samples))
    ids = common_ids([old.problems, new.problems], max_missing)
    if ids is None:
        values = new.problems.values[metric], old.problems.values[metric]
        return statistics.independent_difference(*values, observations), "other problems: not paired"
    differences = new.problems.ordered_as(ids).values[metric] - old.problems.ordered_as(ids).values[metric]
    return statistics.paired_difference(differences, observations), "paired by problem"


def _describe(metric: str, task: str, difference: statistics.Difference | None, how: str) -> Contrast:
    if difference is None:
        return Contrast(metric, task, Figure(why=how))
    figure = Figure.of(statistics.within_shares(difference.interval()))
    return Contrast(metric, task, figure, difference.p_value(), how=how)
