"""Before a run: how often the check alarms without a cause, and how probable it is to notice a drop, simulated from a baseline.

A simulation draws problems' chances given what the baseline scored, runs a baseline and new runs with them, and judges these by
the intervals of `verdicts`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats
from scipy.special import expit, logit

from lm_eval_takeover.commands.regress.baseline import Measured, Side
from lm_eval_takeover.commands.regress.verdicts import AVERAGE, POWER, Limit, list_averaged
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.chances import fit_chances
from lm_eval_takeover.results.statistics import Values, any_of_runs, as_values, count_observations, difference_errors
from lm_eval_takeover.tasks.metrics import pass_at_k

# What a metric comes to in the mean for a problem whose samples are correct with probability p.
EXPECTED: dict[str, Callable[[Values], Values]] = {"acc": lambda p: p, "pass@8": lambda p: 1 - (1 - p) ** 8}
SIMULATIONS = 2000
BASELINES, GROUPS = (
    100,
    6,
)  # without a change: simulated baselines, and how often the planned runs are made against each
_HALVINGS = 26  # of 60 log-odds: to a millionth
_EDGE = 1e-9  # probabilities are kept that far from 0 and 1


@dataclass(frozen=True)
class Design:
    """What is simulated: the rule, and how many samples a problem has in how many runs of the baseline."""

    metric: str
    limit: Limit
    confidence: float
    samples: int
    seeds: int = 1

    @property
    def level(self) -> float:
        """The one-sided p-value from which a drop counts as one."""
        return (1 - self.confidence) / 2


@dataclass(frozen=True)
class Margins:
    """How far inside the limit simulated runs are: means with standard errors, arrays of one shape, and degrees of freedom."""

    value: Values
    error: Values
    freedom: Values | float

    @classmethod
    def average(cls, parts: Sequence[Self]) -> Self:
        """Over tasks, as `Difference.average`."""
        variances = [part.error**2 for part in parts]
        total = as_values(sum(variances))
        spread = as_values(sum(v**2 / part.freedom for v, part in zip(variances, parts, strict=True)))
        value = as_values(sum(part.value for part in parts)) / len(parts)
        return cls(value, np.sqrt(total) / len(parts), total**2 / spread)

    def p_below(self) -> Values:
        """One-sided, as `Difference.p_below(0)`."""
        return np.asarray(stats.t.cdf(self.value / self.error, self.freedom))


def plan(
    baseline: Measured,
    metric: str,
    limit: Limit,
    confidence: float,
    drops: Sequence[float],
    samples: int,
    runs: int = 30,
    seed: int = 0,
) -> dict[str, list[dict[str, Any]]]:
    """`rows` for every drop, `no_change` for runs without one; of each task, and of their average. Raises ArgumentError."""
    if metric not in EXPECTED:
        raise ArgumentError(f"--plan supports drops of {' and '.join(EXPECTED)}, not of '{metric}'")
    if metric == "pass@8" and samples < 8:
        raise ArgumentError(f"--samples {samples}: pass@8 needs at least 8 samples a problem")
    design = Design(metric, limit, confidence, samples, baseline.seeds)
    groups = {task: [side] for task, side in baseline.tasks.items()}
    if len(averaged := list_averaged(baseline)) > 1:
        groups[AVERAGE] = [baseline.tasks[task] for task in averaged]
    rows, quiet = [], []
    for name, sides in groups.items():
        known = {"task": name, "problems": sum(len(side.problems) for side in sides), "samples": samples}
        rows += [known | _describe_drop(sides, design, drop, seed) for drop in drops]
        quiet.append(known | _describe_quiet(sides, design, runs, seed))
    return {"rows": rows, "no_change": quiet}


def _describe_drop(sides: Sequence[Side], design: Design, drop: float, seed: int) -> dict[str, Any]:
    """Power, what twice as many samples or problems make of it, and how many problems have a power of 80 %."""

    generator = np.random.default_rng(seed)
    chances = []
    for side in sides:
        scored = side.problems.values["acc"], side.problems.samples * len(side.runs)
        before = draw_difficulties(generator, *scored)
        chances.append((before, lower(before, drop, EXPECTED[design.metric])))

    def simulate(samples: int, times: int = 1) -> Margins:
        parts = []
        for side, (before, after) in zip(sides, chances, strict=True):
            ours = max(samples, side.problems.samples)  # of the baseline, which is made anew with more
            old = draw_scores(generator, np.tile(before, times), ours, design.metric, design.seeds)
            new = draw_scores(generator, np.tile(after, times), samples, design.metric)
            parts.append(measure_margins(old, new, design, min(ours, samples)))
        return Margins.average(parts)

    found, more = simulate(design.samples), (simulate(2 * design.samples), simulate(design.samples, 2))
    power, *others = (round(float((one.p_below() <= design.level).mean()), 4) for one in (found, *more))
    beyond = -float(found.value.mean())
    reach = float(np.sqrt((found.error**2).mean())) * (stats.norm.isf(design.level) + stats.norm.ppf(POWER))
    count = sum(len(side.problems) for side in sides)
    needed = ceil(count * (reach / beyond) ** 2) if beyond > reach / 1000 else None
    described = {"drop": drop, "power": power, "power_twice_samples": others[0], "power_twice_problems": others[1]}
    return described | {"problems_for_80": needed}


def _describe_quiet(sides: Sequence[Side], design: Design, runs: int, seed: int) -> dict[str, Any]:
    """Without a change: how often a run passes and alarms, over baselines and for the unlucky ones among them."""
    generator = np.random.default_rng(seed)
    difficulties = [
        draw_difficulties(generator, side.problems.values["acc"], side.problems.samples * len(side.runs), BASELINES)
        for side in sides
    ]
    found = simulate_quiet(generator, difficulties, design, runs, GROUPS)
    alarms = (found <= design.level).mean(axis=(1, 2))
    corrected = found <= find_level(design, runs)
    return {
        "passes": round(float((found >= 1 - design.level).mean()), 4),
        "alarms": round(float(alarms.mean()), 4),
        "alarms_worst_20th": round(float(np.quantile(alarms, 0.95)), 4),
        "runs": runs,
        "any_alarm": round(float((found <= design.level).any(axis=2).mean()), 4),
        "any_alarm_history": round(float(corrected.any(axis=2).mean()), 4),
    }


def simulate_quiet(
    generator: np.random.Generator, difficulties: Sequence[Values], design: Design, runs: int, groups: int
) -> Values:
    """p-values `[baselines, groups, runs]` of runs without a change; `difficulties` of each task are `[baselines, problems]`."""
    found = []
    for chances in zip(*difficulties, strict=True):
        parts = []
        for each in chances:
            old = draw_scores(generator, each[np.newaxis], design.samples, design.metric, design.seeds)
            many = np.broadcast_to(each, (groups * runs, len(each)))
            new = draw_scores(generator, many, design.samples, design.metric)
            parts.append(measure_margins(np.broadcast_to(old, new.shape), new, design, design.samples))
        found.append(Margins.average(parts).p_below())
    return np.stack(found).reshape(-1, groups, runs)


def find_level(design: Design, runs: int) -> float:
    """The p-value of one run whose `any_of_runs` is the level."""
    return float(10 ** optimize.brentq(lambda power: any_of_runs(10**power, runs, design.seeds) - design.level, -12, 0))


def measure_margins(old: Values, new: Values, design: Design, samples: int) -> Margins:
    """Of runs `[simulations, problems]`."""
    (margins,) = design.limit.margins(new, old, both=False)
    errors = difference_errors(margins, count_observations(design.metric, samples))
    return Margins(margins.mean(axis=1), errors, max(margins.shape[1] - 1, 1))


def draw_difficulties(generator: np.random.Generator, shares: Values, samples: int, count: int = SIMULATIONS) -> Values:
    """[count, problems]: probabilities that agree with what each problem scored (`fit_chances`)."""
    return np.clip(generator.beta(*fit_chances(shares, samples), (count, len(shares))), _EDGE, 1 - _EDGE)


def lower(probabilities: Values, drop: float, expected: Callable[[Values], Values]) -> Values:
    """The same problems with all log-odds shifted by the one amount that lowers the expected metric by `drop`, row by row."""
    odds = logit(probabilities)
    target = expected(probabilities).mean(axis=1) - drop
    low, high = np.full(len(odds), -60.0), np.zeros(len(odds))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = expected(expit(odds + middle[:, np.newaxis])).mean(axis=1) > target
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray(expit(odds + low[:, np.newaxis]))


def draw_scores(generator: np.random.Generator, chances: Values, samples: int, metric: str, seeds: int = 1) -> Values:
    """The metric by problem of runs with these chances, the mean over `seeds` runs."""
    return as_values(sum(_score(generator.binomial(samples, chances), samples, metric) for _ in range(seeds))) / seeds


def _score(correct: NDArray[np.int64], samples: int, metric: str) -> Values:
    if metric == "acc":
        return correct / samples
    return as_values([pass_at_k(samples, count, 8) for count in range(samples + 1)])[correct]
