"""Recovery of a row: its base, its reference, the value with its interval, or why there is none."""

import re
from collections.abc import Sequence

from lm_eval_takeover.results.recovery import NOT_ABOVE, Trio
from lm_eval_takeover.results.runs import PAIRS, Run, TaskResult, common_ids
from lm_eval_takeover.results.settings import name_differences
from lm_eval_takeover.results.statistics import count_observations
from lm_eval_takeover.results.summary import Figure, recover

_SAME_SIZE = 0.3  # names round: a "0.6B" may have 0.75 B with its embeddings


def find_reference(row: Run, rows: Sequence[Run]) -> Run | None:
    """The same-size thinking model if there is one, else the guide alone. Of several, the one whose name begins the base's."""
    thinking = [other for other in rows if other.kind == "thinking" and row.kind in PAIRS]
    if len(thinking) > 1:
        thinking = [other for other in thinking if row.model.startswith(other.model)]
    return _choose_nearest(row, thinking) or find_member(row, rows, "guide")


def find_member(row: Run, rows: Sequence[Run], role: str) -> Run | None:
    """The base or the guide alone, of the same model as the row's."""
    model = row.settings.get(role)
    same = [other for other in rows if other.kind == role and other.settings.get(role) == model]
    return _choose_nearest(row, same) if row.kind in PAIRS else None


def _choose_nearest(row: Run, others: Sequence[Run]) -> Run | None:
    """Choose the row whose settings and seed are nearest; None if there is none."""

    def distance(other: Run) -> tuple[int, bool]:
        shared = row.tasks.keys() & other.tasks.keys()
        differing = [name_differences(row.tasks[t].settings, other.tasks[t].settings) for t in shared]
        return sum(map(len, differing)), row.seed != other.seed

    return min(others, key=distance, default=None)


def warn_of_references(rows: Sequence[Run]) -> list[str]:
    """A line where Recovery is against a thinking model of another size than the base's, or of unknown size."""
    lines = []
    for row in rows:
        reference, base = find_reference(row, rows), find_member(row, rows, "base")
        if reference is None or base is None or reference.kind != "thinking":
            continue
        size, base_size = _find_size(reference, "model"), _find_size(base, "base")
        if size is None or base_size is None:
            if not base.model.startswith(reference.model):
                unknown = f"nothing says that it has the size of {base.name}"
                lines.append(f"Recovery is against {reference.name}, and {unknown}")
        elif abs(size - base_size) > _SAME_SIZE * base_size:
            sizes = f"has {size / 1e9:.2g} B parameters, {base.name} {base_size / 1e9:.2g} B"
            lines.append(f"Recovery is against {reference.name}, which {sizes}: not what one of the same size makes it")
    return list(dict.fromkeys(lines))


def _find_size(run: Run, role: str) -> float | None:
    """Parameters of the model that writes: as the run counted them, else as its name says (`0.6B`)."""
    named = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)[bB](?![A-Za-z])", run.model)
    return run.parameters.get(role) or (float(named[1]) * 1e9 if named else None)


def measure_recoveries(row: Run, base: Run | None, reference: Run | None, averaged: Sequence[str]) -> dict[str, Figure]:
    """Measure Recovery of Acc, Pass@8 and the Pass@k that tables show."""
    why = _find_obstacle(row, base, reference, averaged)
    shown = {row.tasks[task].k or 8 for task in averaged if task in row.tasks}
    metrics = ["acc", *dict.fromkeys(f"pass@{k}" for k in (8, *(shown if len(shown) == 1 else ())))]
    if why is not None or base is None or reference is None:
        return {metric: Figure(why=why) for metric in metrics}
    tasks = [[each.tasks[task] for each in (row, base, reference)] for task in averaged]
    return {metric: _measure(tasks, metric) for metric in metrics}


def _find_obstacle(row: Run, base: Run | None, reference: Run | None, averaged: Sequence[str]) -> str | None:
    """Say why there can be no Recovery, whatever the numbers are."""
    if row.kind not in PAIRS:
        return f"a {row.kind} row recovers nothing"
    if base is None:
        return "no row is the base alone; give its results, too (policy=base)"
    if reference is None:
        return "no reference: no --thinking row and no policy=guide row of this guide"
    for other in (row, base, reference):
        if missing := [task for task in averaged if task not in other.tasks]:
            return f"{other.name} is without {', '.join(missing)}"
    return None


def _measure(tasks: Sequence[Sequence[TaskResult]], metric: str) -> Figure:
    """Measure Recovery over tasks, each given as (guided, base, reference)."""
    if lacking := [task[0].task for task in tasks if any(metric not in result.means for result in task)]:
        return Figure(why=f"{', '.join(lacking)}: no {metric}, since a problem has too few samples")
    if any(result.problems is None for task in tasks for result in task):
        guided, base, reference = (sum(task[i].means[metric] for task in tasks) for i in range(3))
        if reference <= base:
            return Figure(why=NOT_ABOVE)
        return Figure((guided - base) / (reference - base), why="no interval without samples; run with --log_samples")
    trios = []
    for task in tasks:
        problems = [result.problems for result in task if result.problems]
        ids = common_ids(problems)
        if ids is None or len({p.samples for p in problems}) > 1:
            return Figure(why=f"{task[0].task}: base, reference and this row have other problems or samples")
        of_row, of_base, of_reference = (p.ordered_as(ids).values[metric] for p in problems)
        trios.append(Trio(of_row, of_base, of_reference, count_observations(metric, problems[0].samples)))
    return recover(trios)
