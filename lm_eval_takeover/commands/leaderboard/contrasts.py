"""A row against others: Recovery between its base and its reference, differences from the row of `--vs`, and unlike reading."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from scipy.special import betaincinv

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results import statistics
from lm_eval_takeover.results.documents import find_differences
from lm_eval_takeover.results.files import PAIRS, Run, TaskResult, find_all_results
from lm_eval_takeover.results.problems import align
from lm_eval_takeover.results.statistics import NOT_ABOVE
from lm_eval_takeover.results.summary import Figure, Summary, mean_of, recover

AVERAGE = "average"
BOXED = "acc_of_boxes"  # Recovery of the samples alone that have a box
PAIR = ("base", "guide")
APART = 0.10  # from this difference of `unboxed` on, a table says how far reading can move the gap


def find_members(row: Run, rows: Sequence[Run]) -> tuple[Run | None, Run | None, Run | None]:
    """The base and the reference of a row among others, a thinking model if there is one, else the guide alone; and this guide.

    Of several thinking models it is the one whose name begins the base's. Rows of no pair have neither, but a base has a guide.
    """
    base, guide = ([r for r in rows if r.kind == role and r.settings.get(role) == row.settings.get(role)] for role in PAIR)
    if row.kind == "base":
        alone = [other for other in rows if other.kind == "guide"]
        return None, None, alone[0] if len(alone) == 1 else None
    if row.kind not in PAIRS:
        return None, None, row if row.kind == "guide" else None
    thinking = [other for other in rows if other.kind == "thinking"]
    if len(thinking) > 1:
        thinking = [other for other in thinking if row.model.startswith(other.model)]
    nearest = _choose_nearest(row, guide)
    return _choose_nearest(row, base), _choose_nearest(row, thinking) or nearest, nearest


def _choose_nearest(row: Run, others: Sequence[Run]) -> Run | None:
    def distance(other: Run) -> tuple[int, bool]:
        shared = row.tasks.keys() & other.tasks.keys()
        differing = [find_differences(row.tasks[t].settings, other.tasks[t].settings) for t in shared]
        return sum(map(len, differing)), row.seed != other.seed

    return min(others, key=distance, default=None)


def measure_recoveries(row: Run, base: Run | None, reference: Run | None, averaged: Sequence[str]) -> dict[str, Figure]:
    """Measure Recovery of Acc, Pass@8 and the Pass@k that tables show."""
    why = _find_obstacle(row, base, reference, averaged)
    shown = {row.tasks[task].k or 8 for task in averaged if task in row.tasks}
    metrics = ["acc", *dict.fromkeys(f"pass@{k}" for k in (8, *(shown if len(shown) == 1 else ())))]
    if why is not None or base is None or reference is None:
        return {metric: Figure(why=why) for metric in metrics}
    tasks = [[each.tasks[task] for each in (row, base, reference)] for task in averaged]
    return {metric: _measure_recovery(tasks, metric) for metric in metrics} | {BOXED: _recover_boxed(tasks)}


def _recover_boxed(tasks: Sequence[Sequence[TaskResult]]) -> Figure:
    """Recovery of Acc over the samples that have a box. Each row boxes other samples, so there is no interval."""
    columns = [[measure_boxed(result.means) for result in row] for row in zip(*tasks, strict=True)]
    guided, base, reference = (mean_of(column) for column in columns)
    if guided is None or base is None or reference is None:
        return Figure(why="a row has no boxes, or does not say")
    return Figure((guided - base) / (reference - base)) if reference > base else Figure(why=NOT_ABOVE)


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


def _measure_recovery(tasks: Sequence[Sequence[TaskResult]], metric: str) -> Figure:
    """Measure Recovery over tasks, each given as (guided, base, reference)."""
    if lacking := [task[0].task for task in tasks if any(metric not in result.means for result in task)]:
        return Figure(why=f"{', '.join(lacking)}: no {metric}, since a problem has too few samples")
    if not all(result.problems for task in tasks for result in task):
        guided, base, reference = (sum(task[i].means[metric] for task in tasks) for i in range(3))
        if reference <= base:
            return Figure(why=NOT_ABOVE)
        return Figure((guided - base) / (reference - base), why="no interval without samples; run with --log_samples")
    trios = []
    for task in tasks:
        sides = align([result.problems for result in task])
        if sides is None or len({side.samples for side in sides}) > 1:
            return Figure(why=f"{task[0].task}: base, reference and this row have other problems or samples")
        trios.append(np.stack([statistics.by_cluster(side.values[metric], sides[0].clusters) for side in sides]))
    return recover(trios)


@dataclass(frozen=True)
class Contrast:
    """How far a row is above the reference by one metric, on a task or on their average. `figure.why`: why that is not known."""

    metric: str
    task: str
    figure: Figure
    p_value: float | None = None
    p_holm: float | None = None
    how: str | None = None  # paired by problem, or not


def subtract_row(
    rows: Sequence[Run], averaged: Sequence[str], versus: Path, max_missing: float
) -> tuple[Run, dict[str, list[Contrast]]]:
    """Find the row of `--vs` and subtract it from the others, by name. Raises ArgumentError unless it is one of the rows."""
    files = find_all_results([versus])
    matching = [row for row in rows if row.source in files]
    if len(matching) != 1:
        raise ArgumentError(
            f"--vs '{versus}' is {len(matching)} rows of the table; expected a results folder of one run, also given as RESULTS"
        )
    (reference,) = matching
    contrasts = {row.name: _list_contrasts(row, reference, averaged, max_missing) for row in rows if row is not reference}
    p_values = [p for of_row in contrasts.values() for each in of_row if (p := each.p_value) is not None]
    adjusted = iter(statistics.holm(p_values))  # over all that the table compares
    return reference, {
        name: [each if each.p_value is None else replace(each, p_holm=next(adjusted)) for each in of_row]
        for name, of_row in contrasts.items()
    }


def _list_contrasts(row: Run, reference: Run, averaged: Sequence[str], max_missing: float) -> list[Contrast]:
    """Compare Acc and the Pass@k that tables show, by task and for the average over several tasks."""
    others = reference.tasks
    pairs = {task: (new, others[task]) for task, new in row.tasks.items() if task in others}
    contrasts = []
    for metric in ("acc", *sorted({f"pass@{new.k}" for new, _ in pairs.values() if new.k and new.k > 1})):
        differences: dict[str, statistics.Difference] = {}
        for task, (new, old) in pairs.items():
            if metric not in ("acc", f"pass@{new.k}"):
                continue
            difference, how = _subtract(new, old, metric, max_missing)
            contrasts.append(_describe(metric, task, difference, how))
            if difference is not None:
                differences[task] = difference
        if len(averaged) > 1 and all(task in differences for task in averaged):
            whole = statistics.Difference.average([differences[task] for task in averaged])
            contrasts.append(_describe(metric, AVERAGE, whole, "over tasks"))
    return contrasts


def _subtract(new: TaskResult, old: TaskResult, metric: str, max_missing: float) -> tuple[statistics.Difference | None, str]:
    """The difference of two runs of a task, and how it was measured, or why it cannot be."""
    if not (new.problems and old.problems):
        return None, "no samples; run with --log_samples"
    if any(metric not in result.problems.values for result in (new, old)):
        return None, f"no {metric}, since a problem has too few samples in one of the rows"
    sides = align([old.problems, new.problems], max_missing)
    if sides is None:
        values = (statistics.by_cluster(p.values[metric], p.clusters) for p in (new.problems, old.problems))
        return statistics.independent_difference(*values), "other problems: not paired"
    before, after = sides
    differences = statistics.by_cluster(after.values[metric] - before.values[metric], after.clusters)
    return statistics.paired_difference(differences), "paired by problem"


def _describe(metric: str, task: str, difference: statistics.Difference | None, how: str) -> Contrast:
    if difference is None:
        return Contrast(metric, task, Figure(why=how))
    figure = Figure.of(statistics.within_shares(difference.interval()))
    return Contrast(metric, task, figure, difference.p_value(), how=how)


# Right answers without a box are refused more often than those with one. `ruler.json` has how often, counted on labelled texts of
# base models (`benchmarks/reading_answers.py --write`). A base seldom writes a box and its guide nearly always does, so the gap
# between them is the one that reading can bend.


class Read(NamedTuple):
    """Shares of the samples of one row: correct, correct in a box, and read without a box."""

    acc: float
    acc_boxed: float
    unboxed: float

    @classmethod
    def of(cls, row: Summary | None) -> Self | None:
        shares = () if row is None else (row.acc.value, row.rates.acc_boxed, row.rates.unboxed)
        known = [share for share in shares if share is not None]
        return cls(*known) if len(known) == len(cls._fields) else None


@cache
def read_refused() -> tuple[float, float]:
    """The most that the refused shares of right answers, with a box and without, can be: upper ends of exact 95 % intervals."""
    shares = json.loads(Path(__file__).with_name("ruler.json").read_text(encoding="utf-8"))
    counts = [(shares[name]["refused"], shares[name]["right"]) for name in ("boxed", "unboxed")]
    with_box, without = (float(betaincinv(refused + 1, right - refused, 0.975)) for refused, right in counts)
    return with_box, without


def bound_refused(row: Read) -> float:
    """The share of a row's samples that may be right and refused."""
    with_box, without = read_refused()
    return row.acc_boxed * with_box / (1 - with_box) + (row.acc - row.acc_boxed) * without / (1 - without)


def describe_bend(rows: Mapping[str, Read | None]) -> str | None:
    """One line on the two rows that differ most in `unboxed`; None where no two differ by more than 10 points."""
    known = {name: row for name, row in rows.items() if row is not None}
    most, least = (choose(known, key=lambda name: known[name].unboxed, default="") for choose in (max, min))
    if not known or known[most].unboxed - known[least].unboxed <= APART:
        return None
    move = max(map(bound_refused, (known[most], known[least])))
    shares = (
        f"{known[most].unboxed:.0%} of the samples of {most} are read without a box, and {known[least].unboxed:.0%} of {least}"
    )
    return (
        f"{shares}. Without a box more right answers are refused, which can move the gap between the two by up to "
        f"{100 * move:.1f} points (--columns reading)"
    )


def measure_boxed(means: Mapping[str, float]) -> float | None:
    """Acc of the samples that have a box, from a row's means; None where none has, or the row does not say."""
    if not {"acc_boxed", "unboxed", "no_answer"} <= means.keys():
        return None
    having = 1 - means["unboxed"] - means["no_answer"]
    return means["acc_boxed"] / having if having > 1e-9 else None
