"""Simulates from a baseline how probable it is to notice a drop.

A simulation draws problems' chances given what the baseline scored, runs a baseline and new runs with them, and judges these by
the intervals of `verdicts`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from scipy.special import expit, logit, ndtri

from lm_eval_takeover.commands.regress.baseline import SeedRuns, TaskRuns
from lm_eval_takeover.commands.regress.verdicts import AVERAGE, POWER
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.statistics import (
    Difference,
    Values,
    as_values,
    average_differences,
    count_observations,
    fit_chances,
)
from lm_eval_takeover.results.summary import choose_averaged
from lm_eval_takeover.tasks.metrics import pass_at_k

# The expected metric of a problem whose samples are correct with probability p.
EXPECTED: dict[str, Callable[[Values], Values]] = {"acc": lambda p: p, "pass@8": lambda p: 1 - (1 - p) ** 8}
SIMULATIONS = 2000
MOST_PROBLEMS = 100_000  # a plan names no larger number
_HALVINGS = 26  # of 60 log-odds: to a millionth
_EDGE = 1e-9  # probabilities are kept that far from 0 and 1


@dataclass(frozen=True)
class Design:
    """The rule of a simulation, the samples of each problem, and the runs of the baseline."""

    metric: str
    limit: float
    confidence: float
    samples: int
    seeds: int = 1

    @property
    def level(self) -> float:
        """The one-sided p-value from which a drop counts as one."""
        return (1 - self.confidence) / 2


@dataclass(frozen=True)
class Power:
    """The chance to find a drop. `problems_for_80` is None where it is too large."""

    task: str
    problems: int
    samples: int
    drop: float
    power: float
    problems_for_80: int | None


def plan(
    baseline: SeedRuns, metric: str, limit: float, confidence: float, drops: Sequence[float], samples: int, seed: int = 0
) -> list[Power]:
    """Plan by task and drop, and for the average over tasks. Raises ArgumentError."""
    if metric not in EXPECTED:
        raise ArgumentError(f"--plan supports drops of {' and '.join(EXPECTED)}, not of '{metric}'")
    if metric == "pass@8" and samples < 8:
        raise ArgumentError(f"--samples {samples}: pass@8 needs at least 8 samples a problem")
    design = Design(metric, limit, confidence, samples, baseline.seeds)
    groups = {task: [side] for task, side in baseline.tasks.items()}
    if len(averaged := choose_averaged(baseline.tasks)) > 1:
        groups[AVERAGE] = [baseline.tasks[task] for task in averaged]
    return [_plan_drop(name, sides, design, drop, seed) for name, sides in groups.items() for drop in drops]


def _plan_drop(name: str, sides: Sequence[TaskRuns], design: Design, drop: float, seed: int) -> Power:
    generator = np.random.default_rng(seed)
    chances = []
    for side in sides:
        scored = side.problems.values["acc"], side.problems.samples * len(side.runs)
        before = draw_difficulties(generator, *scored)
        chances.append((before, lower(before, drop, EXPECTED[design.metric])))
    parts = []
    for side, (before, after) in zip(sides, chances, strict=True):
        ours = max(design.samples, side.problems.samples)  # of the baseline, which is made anew with more
        old = draw_scores(generator, before, ours, design.metric, design.seeds)
        new = draw_scores(generator, after, design.samples, design.metric)
        parts.append(new - old + design.limit)
    observations = [float(count_observations(design.metric, design.samples))] * len(sides)
    margins = [average_differences(values, observations) for values in zip(*parts, strict=True)]
    power = float(np.mean([margin.p_below() <= design.level for margin in margins]))
    count = sum(len(side.problems) for side in sides)
    return Power(name, count, design.samples, drop, round(power, 4), _count_needed(margins, design, count))


def _count_needed(margins: Sequence[Difference], design: Design, count: int) -> int | None:
    beyond = -float(np.mean([margin.value for margin in margins]))
    if beyond <= 0:
        return None
    reach = float(np.sqrt(np.mean([margin.error**2 for margin in margins]))) * (ndtri(POWER) - ndtri(design.level))
    needed = count * (reach / beyond) ** 2
    return ceil(needed) if needed <= MOST_PROBLEMS else None


def draw_difficulties(generator: np.random.Generator, shares: Values, samples: int, count: int = SIMULATIONS) -> Values:
    """Draw probabilities `[count, problems]` that agree with what each problem scored (`fit_chances`)."""
    return np.clip(generator.beta(*fit_chances(shares, samples), (count, len(shares))), _EDGE, 1 - _EDGE)


def lower(probabilities: Values, drop: float, expected: Callable[[Values], Values]) -> Values:
    """Shift all log-odds of a row by the one amount that lowers its expected metric by `drop`."""
    odds = logit(probabilities)
    target = expected(probabilities).mean(axis=1) - drop
    low, high = np.full(len(odds), -60.0), np.zeros(len(odds))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = expected(expit(odds + middle[:, np.newaxis])).mean(axis=1) > target
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray(expit(odds + low[:, np.newaxis]))


def draw_scores(generator: np.random.Generator, chances: Values, samples: int, metric: str, seeds: int = 1) -> Values:
    """Draw the metric by problem of runs with these chances, as the mean over `seeds` runs."""
    counts = range(samples + 1)
    scores = as_values([count / samples if metric == "acc" else pass_at_k(samples, count, 8) for count in counts])
    return as_values(sum(scores[generator.binomial(samples, chances)] for _ in range(seeds))) / seeds
