"""`--plan`: the smallest difference of two rows that the problems and samples of these tasks can tell, before anything runs."""

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri

from lm_eval_takeover.commands._output import WRITERS, Table
from lm_eval_takeover.commands.compare.workload import TaskLoad, read_workload
from lm_eval_takeover.commands.regress.planning import EXPECTED, Design, Margins, draw_scores, lower, measure_margins
from lm_eval_takeover.commands.regress.verdicts import POWER
from lm_eval_takeover.results.summary import choose_averaged

ACCURACIES = (0.2, 0.5, 0.8)  # of the better row, which nobody knows yet
_SIMULATIONS = 400
_ROUNDS = 3  # the error depends on the difference a little


def print_plan(options: argparse.Namespace) -> int:
    loads = {load.task: load for load in read_workload(options)}
    parts = {task: [load] for task, load in loads.items()}
    if len(averaged := choose_averaged(loads)) > 1:
        parts["average"] = [loads[task] for task in averaged]
    lines = []
    for name, tasks in parts.items():
        least = [find_least_difference(tasks, acc) for acc in ACCURACIES]
        problems, samples = sum(load.problems for load in tasks), "/".join(sorted({str(t.samples) for t in tasks}))
        shown = ["none" if difference is None else f"{100 * difference:.1f}" for difference in least]
        lines.append([name, f"{problems:,}", samples, *shown])
    notes = [
        f"The least difference in Acc, in points, that is found with a probability of {POWER:.0%} at a confidence of 95 %. "
        "Simulated: the chances to solve a problem follow a beta distribution of weight 1, the worse row lowers all their "
        "log-odds by one amount, and samples are independent. none: no difference is found so often."
    ]
    heads = ["Task", "Problems", "Samples", *(f"Acc {acc:.0%}" for acc in ACCURACIES)]
    sys.stdout.write(WRITERS[options.format](Table(heads, lines, notes)))
    return 0


def find_least_difference(loads: Sequence[TaskLoad], acc: float) -> float | None:
    """The least difference in the mean Acc of these tasks, if the better row has `acc` on each; None beyond `acc` itself."""
    difference = acc / 4
    for _ in range(_ROUNDS):
        generator, parts = np.random.default_rng(0), []
        for load in loads:
            design = Design("acc", 0.0, 0.95, load.samples)
            before = np.clip(generator.beta(acc, 1 - acc, (_SIMULATIONS, load.problems)), 1e-9, 1 - 1e-9)
            rows = (before, lower(before, difference, EXPECTED["acc"]))
            old, new = (draw_scores(generator, row, load.samples, "acc") for row in rows)
            parts.append(measure_margins(old, new, design, load.samples))
        error = float(np.sqrt((Margins.average(parts).error ** 2).mean()))
        difference = error * float(ndtri(POWER) - ndtri(design.level))
        if difference >= acc:
            return None
    return difference
