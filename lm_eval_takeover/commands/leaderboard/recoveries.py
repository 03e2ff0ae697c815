"""Recovery of a row: its base, its reference, the value with its interval, or why there is none."""

import re
from collections.abc import Sequence
from math import sqrt

from lm_eval_takeover.commands.leaderboard.naming import NamedRun
from lm_eval_takeover.results.recovery import NOT_ABOVE, Trio
from lm_eval_takeover.results.runs import Run, TaskResult, common_ids
from lm_eval_takeover.results.settings import name_differences
from lm_eval_takeover.results.statistics import count_observations
from lm_eval_takeover.results.summary import Figure, recover

_TAKEOVER_KINDS = ("guided", "random", "early")
_SAME_SIZE = 0.3  # names round: a "0.6B" may have 0.75 B with its embeddings
_Z = 1.96  # standard errors of noise, where only means are known


def find_reference(row: NamedRun, rows: Sequence[NamedRun]) -> NamedRun | None:
    """The same-size thinking model if there is one, else the guide alone. Of several, the one whose name begins the base's."""
    thinking = [other for other in rows if other.kind == "thinking" and row.kind in _TAKEOVER_KINDS]
    if len(thinking) > 1:
        thinking = [other for other in thinking if row.run.model.startswith(other.run.model)]
    return _choose_nearest(row, thinking) or find_member(row, rows, "guide")


def find_member(row: NamedRun, rows: Sequence[NamedRun], role: str) -> NamedRun | None:
    """The base or the guide alone, of the same model as the row's."""
    model = row.run.settings.get(role)
    same = [other for other in rows if other.kind == role and other.run.settings.get(role) == model]
    return _choose_nearest(row, same) if row.kind in _TAKEOVER_KINDS else None


def _choose_nearest(row: NamedRun, others: Sequence[NamedRun]) -> NamedRun | None:
    """Choose the row whose settings and seed are nearest; None if there is none."""

    def distance(other: NamedRun) -> tuple[int, bool]:
        shared = row.run.tasks.keys() & other.run.tasks.keys()
        differing = [name_differences(row.run.tasks[t].settings, other.run.tasks[t].settings) for t in shared]
        return sum(map(len, differing)), row.run.seed != other.run.seed

    return min(others, key=distance, default=None)


def warn_of_references(rows: Sequence[NamedRun]) -> list[str]:
    """A line where Recovery is against a model of another or unknown size than the base's, or rows are against other models."""
    lines, followers = [], dict[str, list[str]]()
    for row in rows:
        reference, base = find_reference(row, rows), find_member(row, rows, "base")
        if reference is None or base is None:
            continue
        followers.setdefault(reference.run.model, []).append(row.name)
        if reference.kind != "thinking":
            continue
        size, base_size = _find_size(reference.run), _find_size(base.run)
        if size is None or base_size is None:
            if not base.run.model.startswith(reference.run.model):
                unknown = f"nothing says that it has the size of {base.name}"
                lines.append(f"Recovery is against {reference.name}, and {unknown}")
        elif abs(size - base_size) > _SAME_SIZE * base_size:
            sizes = f"has {size / 1e9:.2g} B parameters, {base.name} {base_size / 1e9:.2g} B"
            lines.append(f"Recovery is against {reference.name}, which {sizes}: not what one of the same size makes it")
    if len(followers) > 1:
        parts = (f"{', '.join(names)} against {reference}" for reference, names in followers.items())
        lines.append(f"Recovery has different references: {'; '.join(parts)}")
    return list(dict.fromkeys(lines))


def _find_size(run: Run) -> float | None:
    """Parameters of the model that writes: as the run counted them, else as its name says (`0.6B`)."""
    role = next((role for role in ("model", run.kind) if role in run.parameters), None)
    if role is not None:
        return float(run.parameters[role])
    named = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)[bB](?![A-Za-z])", run.model)
    return float(named[1]) * 1e9 if named else None


def measure_recoveries(
    row: NamedRun, base: NamedRun | None, reference: NamedRun | None, averaged: Sequence[str]
) -> dict[str, Figure]:
    """Measure Recovery of Acc, Pass@8 and the Pass@k that tables show."""
    why = _find_obstacle(row, base, reference, averaged)
    shown = {row.run.tasks[task].k or 8 for task in averaged if task in row.run.tasks}
    metrics = ["acc", *dict.fromkeys(f"pass@{k}" for k in (8, *(shown if len(shown) == 1 else ())))]
    if why is not None or base is None or reference is None:
        return {metric: Figure(why=why) for metric in metrics}
    tasks = [[each.run.tasks[task] for each in (row, base, reference)] for task in averaged]
    return {metric: _measure(tasks, metric) for metric in metrics}


def _find_obstacle(row: NamedRun, base: NamedRun | None, reference: NamedRun | None, averaged: Sequence[str]) -> str | None:
    """Say why there can be no Recovery, whatever the numbers are."""
    if row.kind not in _TAKEOVER_KINDS:
        return f"a {row.kind} row recovers nothing"
    if base is None:
        return "no row is the base alone; give its results, too (policy=base)"
    if reference is None:
        return "no reference: no --thinking row and no policy=guide row of this guide"
    for other in (row, base, reference):
        if missing := [task for task in averaged if task not in other.run.tasks]:
            return f"{other.name} is without {', '.join(missing)}"
    return None


def _measure(tasks: Sequence[Sequence[TaskResult]], metric: str) -> Figure:
    """Measure Recovery over tasks, each given as (guided, base, reference)."""
    if lacking := [task[0].task for task in tasks if any(metric not in result.means for result in task)]:
        return Figure(why=f"{', '.join(lacking)}: no {metric}, since a problem has too few samples")
    if any(result.problems is None for task in tasks for result in task):
        return _measure_means(tasks, metric)
    trios = []
    for task in tasks:
        problems = [result.problems for result in task if result.problems]
        ids = common_ids(problems)
        if ids is None or len({p.samples for p in problems}) > 1:
            return Figure(why=f"{task[0].task}: base, reference and this row have other problems or samples")
        guided, base, reference = (p.ordered_as(ids).values[metric] for p in problems)
        trios.append(Trio(guided, base, reference, count_observations(metric, problems[0].samples)))
    return recover(trios)


def _measure_means(tasks: Sequence[Sequence[TaskResult]], metric: str) -> Figure:
    """Recovery of means without samples, if the reference is above the base beyond their standard errors."""
    guided, base, reference = (sum(task[i].means[metric] for task in tasks) / len(tasks) for i in range(3))
    errors = [task[i].errors.get(metric) for task in tasks for i in (1, 2)]
    if any(error is None for error in errors):
        return Figure(why="neither samples nor standard errors; run with --log_samples")
    noise = _Z * sqrt(sum(error**2 for error in errors if error is not None)) / len(tasks)
    if reference - base <= noise:
        return Figure(why=NOT_ABOVE)
    return Figure((guided - base) / (reference - base), why="no interval without samples; run with --log_samples")
