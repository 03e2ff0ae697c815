"""Before a run: which drops a baseline can find. Power is simulated, by the intervals that judge a run (`verdicts`).

Problems' chances are drawn given what the baseline scored; a baseline and new runs are drawn with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from scipy.special import expit, logit, ndtri

from lm_eval_takeover.commands.regress.baseline import Scores, TaskScores
from lm_eval_takeover.commands.regress.verdicts import AVERAGE, POWER
from lm_eval_takeover.results.statistics import Difference, Values, average_differences, fit_chances
from lm_eval_takeover.results.summary import choose_averaged

_QUICK = 200  # simulations
MOST_PROBLEMS = 100_000  # a plan names no larger number
_HALVINGS = 26  # of 60 log-odds: to a millionth
_EDGE = 1e-9  # probabilities are kept that far from 0 and 1
_ROUNDS = 3  # in which the smallest drop is found


@dataclass(frozen=True)
class Design:
    """The rule of a simulation, and the samples of each problem (None: as many as the baseline has)."""

    limit: float
    confidence: float
    samples: int | None = None
    simulations: int = 2000

    @property
    def level(self) -> float:
        """The one-sided p-value from which a drop counts as one."""
        return (1 - self.confidence) / 2

    @property
    def reach(self) -> float:
        """How many standard errors a drop must be beyond the limit, so that 80 % of runs find it."""
        return float(ndtri(POWER) - ndtri(self.level))


@dataclass(frozen=True)
class Power:
    """The chance to find a drop: if it shifts all problems' log-odds alike, and if whole problems are lost.

    `problems_for_80` is for the former; None where it is too large.
    """

    task: str
    problems: int
    samples: int
    drop: float
    power: float
    power_whole: float
    problems_for_80: int | None


def plan(baseline: Scores, design: Design, drops: Sequence[float]) -> list[Power]:
    """Plan by task and drop, and for the average over tasks."""
    return [_plan_drop(name, sides, design, drop) for name, sides in _group(baseline).items() for drop in drops]


def find_smallest_drop(baseline: Scores, design: Design, drop: float) -> dict[str, tuple[float, float, int | None]]:
    """The smallest drops that 80 % of runs find: all problems get harder alike, or whole ones are lost; of the average, else by
    task. With them how many problems `drop` needs if all get harder alike.
    """
    groups, quick = _group(baseline), replace(design, simulations=_QUICK)
    found = {}
    for name, sides in ({AVERAGE: groups[AVERAGE]} if AVERAGE in groups else groups).items():
        smallest = []
        for whole in (False, True):
            least = drop
            for _ in range(_ROUNDS):
                errors = [margin.error for margin in _simulate(sides, quick, min(least, 0.99), whole)]
                least = design.limit + design.reach * float(np.sqrt(np.mean(np.square(errors))))
            smallest.append(least)
        alike, lost = smallest
        found[name] = alike, lost, _plan_drop(name, sides, quick, drop).problems_for_80
    return found


def _group(baseline: Scores) -> dict[str, list[TaskScores]]:
    """The tasks by name, with those of the average."""
    averaged = choose_averaged(baseline.tasks)
    groups = {task: [side] for task, side in baseline.tasks.items()}
    return groups | ({AVERAGE: [baseline.tasks[task] for task in averaged]} if len(averaged) > 1 else {})


def _plan_drop(name: str, sides: Sequence[TaskScores], design: Design, drop: float) -> Power:
    shifted, lost = (_simulate(sides, design, drop, whole) for whole in (False, True))
    power, whole = (
        round(float(np.mean([margin.p_below() <= design.level for margin in margins])), 4) for margins in (shifted, lost)
    )
    count = sum(len(side.problems) for side in sides)
    samples = design.samples or sides[0].problems.samples
    return Power(name, count, samples, drop, power, whole, _count_needed(shifted, design, count))


def _simulate(sides: Sequence[TaskScores], design: Design, drop: float, whole: bool) -> list[Difference]:
    """How far runs with this drop are inside the limit, as differences from a baseline that is drawn, too."""
    generator, parts = np.random.default_rng(0), []
    for side in sides:
        samples, kept = design.samples or side.problems.samples, side.problems.samples
        before = draw_difficulties(generator, side.problems.values["acc"], kept, design.simulations)
        before = generator.permuted(before, axis=1)  # which problems are lost is random
        old = draw_scores(generator, before, max(samples, kept))  # a baseline with fewer samples is made anew
        after = _lose(generator, before, drop) if whole else lower(before, drop)
        parts.append(draw_scores(generator, after, samples) - old + design.limit)
    return [average_differences(values) for values in zip(*parts, strict=True)]


def _count_needed(margins: Sequence[Difference], design: Design, count: int) -> int | None:
    beyond = -float(np.mean([margin.value for margin in margins]))
    if beyond <= 0:
        return None
    needed = count * (design.reach * float(np.sqrt(np.mean([margin.error**2 for margin in margins]))) / beyond) ** 2
    return ceil(needed) if needed <= MOST_PROBLEMS else None


def draw_difficulties(generator: np.random.Generator, shares: Values, samples: int, simulations: int) -> Values:
    """Draw probabilities `[simulations, problems]` that agree with what each problem scored (`fit_chances`)."""
    return np.clip(generator.beta(*fit_chances(shares, samples), (simulations, len(shares))), _EDGE, 1 - _EDGE)


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
    """Draw the accuracy by problem of runs with these chances."""
    return generator.binomial(samples, chances) / samples
