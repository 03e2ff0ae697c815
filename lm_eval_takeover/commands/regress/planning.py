"""Says before a run which drops a baseline can find by the intervals of `verdicts`.

It simulates: problems' chances are drawn given what the baseline scored, then a baseline and new runs with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from scipy.special import expit, logit, ndtri

from lm_eval_takeover.commands.regress.verdicts import AVERAGE, POWER, weigh
from lm_eval_takeover.results import statistics
from lm_eval_takeover.results.files import Run, TaskResult
from lm_eval_takeover.results.problems import ACC
from lm_eval_takeover.results.statistics import Difference, Values
from lm_eval_takeover.results.summary import choose_averaged

MOST_PROBLEMS = 100_000  # a plan names no larger number
_HALVINGS = 26  # of 60 log-odds: to a millionth
_EDGE = 1e-9  # probabilities are kept that far from 0 and 1


@dataclass(frozen=True)
class Design:
    """The rule of a simulation, and the samples of each problem (None: as many as the baseline has)."""

    limit: float
    confidence: float
    samples: int | None = None
    simulations: int = 2000
    part: float = 1.0  # of the error rate: of several tasks each has its part, by Holm's correction

    @property
    def level(self) -> float:
        """The one-sided p-value from which a drop counts as one."""
        return self.part * (1 - self.confidence) / 2

    @property
    def reach(self) -> float:
        """How many standard errors a drop must be beyond the limit, so that 80 % of runs find it."""
        return float(ndtri(POWER) - ndtri(self.level))


@dataclass(frozen=True)
class Power:
    """The chance to find a drop, None where a task's Acc is below it."""

    task: str
    problems: int
    samples: int
    drop: float
    power: float | None  # if it shifts all problems' log-odds alike
    power_whole: float | None  # if whole problems are lost
    problems_for_80: int | None  # for `power` of 80 %; None where it is too large


def plan(baseline: Run, design: Design, drops: Sequence[float], tasks: bool = True) -> list[Power]:
    """Plan by task and drop, and for the average over tasks, if there is one; without `tasks` for this alone."""
    averaged = choose_averaged(baseline.tasks)
    groups = {task: [side] for task, side in baseline.tasks.items()}
    groups |= {AVERAGE: [baseline.tasks[task] for task in averaged]} if len(averaged) > 1 else {}
    # One task falls at a time, so it must be found at the first step of Holm's correction over all that `compare` judges.
    weights = dict(zip(groups, weigh(groups), strict=True))
    designs = {name: replace(design, part=weight / sum(weights.values())) for name, weight in weights.items()}
    planned = [name for name in groups if tasks or name == AVERAGE or AVERAGE not in groups]
    return [_plan_drop(name, groups[name], designs[name], drop) for name in planned for drop in drops]


def _plan_drop(name: str, sides: Sequence[TaskResult], design: Design, drop: float) -> Power:
    count = sum(len(side.problems) for side in sides)
    samples = design.samples or sides[0].problems.samples
    if drop >= min(float(side.problems.values[ACC].mean()) for side in sides):
        return Power(name, count, samples, drop, None, None, None)
    shifted, lost = (_simulate(sides, design, drop, whole) for whole in (False, True))
    power, whole = (round(_measure_power(margins, design), 4) for margins in (shifted, lost))
    return Power(name, count, samples, drop, power, whole, _count_needed(shifted, design, count))


def _simulate(sides: Sequence[TaskResult], design: Design, drop: float, whole: bool) -> list[Difference]:
    """How far runs with this drop are inside the limit, as differences from a baseline that is drawn, too."""
    generator, parts = np.random.default_rng(0), []
    for side in sides:
        samples, kept = design.samples or side.problems.samples, side.problems.samples
        shares = np.clip(statistics.by_cluster(side.problems.values["acc"], side.problems.clusters), 0, 1)
        before = generator.beta(*statistics.fit_chances(shares, kept), (design.simulations, len(shares)))
        before = generator.permuted(np.clip(before, _EDGE, 1 - _EDGE), axis=1)  # which problems are lost is random
        old = draw_scores(generator, before, max(samples, kept))  # a baseline with fewer samples is made anew
        after = _lose(generator, before, drop) if whole else lower(before, drop)
        parts.append(draw_scores(generator, after, samples) - old + design.limit)
    return [statistics.average_differences(values) for values in zip(*parts, strict=True)]


def _measure_power(margins: Sequence[Difference], design: Design) -> float:
    return float(np.mean([margin.p_below() <= design.level for margin in margins]))


def _count_needed(margins: Sequence[Difference], design: Design, count: int) -> int | None:
    """The problems for which 80 % of runs find the drop: by how many standard errors it is beyond the limit with `count`."""
    power = _measure_power(margins, design)
    beyond = -float(np.mean([margin.value for margin in margins]))
    errors = max(beyond, 1e-9) / float(np.sqrt(np.mean([margin.error**2 for margin in margins])))
    if power > 0.2:  # what nearly all runs find may need far fewer problems, and never more
        errors = max(errors * (power > 0.99), float(ndtri(min(power, 0.99)) - ndtri(design.level)))
    needed = count * (design.reach / errors) ** 2 if errors > 0 else np.inf
    return ceil(needed) if needed <= MOST_PROBLEMS else None


def lower(probabilities: Values, drop: float) -> Values:
    """Shift all log-odds of a row by the one amount that lowers its mean by `drop`."""
    odds = logit(probabilities)
    target = probabilities.mean(axis=1) - drop
    low, high = np.full(len(odds), -60.0), np.zeros(len(odds))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = expit(odds + middle[:, np.newaxis]).mean(axis=1) > target
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray(expit(odds + low[:, np.newaxis]))


def _lose(generator: np.random.Generator, probabilities: Values, drop: float) -> Values:
    """Set the first probabilities of a row to 0, so many that its mean falls by `drop`."""
    worth = probabilities / probabilities.shape[1]
    # The last problem that is lost is so with the chance that makes the drop exact.
    share = (drop - (worth.cumsum(axis=1) - worth)) / worth
    return np.where(generator.random(worth.shape) < share, _EDGE, probabilities)


def draw_scores(generator: np.random.Generator, chances: Values, samples: int) -> Values:
    return generator.binomial(samples, chances) / samples
