"""Before a run: how probable it is that the gate would notice a drop, by simulation from a baseline's problems."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit, logit

from lm_eval_takeover.commands.regress.baseline import Measured, Side
from lm_eval_takeover.commands.regress.gate import Limit
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.statistics import Values, as_values, difference_errors
from lm_eval_takeover.tasks.metrics import pass_at_k

# What a metric comes to in the mean for a problem whose samples are correct with probability p.
EXPECTED: dict[str, Callable[[Values], Values]] = {"acc": lambda p: p, "pass@8": lambda p: 1 - (1 - p) ** 8}
SIMULATIONS = 2000
_HALVINGS = 40
_EDGE = 1e-9  # probabilities are kept that far from 0 and 1


def plan(
    baseline: Measured,
    metric: str,
    limit: Limit,
    confidence: float,
    drops: Sequence[float],
    samples: int,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """`task, problems, samples, drop, power` for every task and drop. Raises ArgumentError."""
    if metric not in EXPECTED:
        raise ArgumentError(f"--plan knows drops of {' and '.join(EXPECTED)}, not of '{metric}'")
    if metric == "pass@8" and samples < 8:
        raise ArgumentError(f"--samples {samples}: pass@8 needs at least 8 samples a problem")
    rows = []
    for task, side in baseline.tasks.items():
        for drop in drops:
            generator = np.random.default_rng(seed)
            power = simulate_power(generator, side, metric, limit, confidence, drop, samples)
            rows.append(
                {
                    "task": task,
                    "problems": len(side.problems),
                    "samples": samples,
                    "drop": drop,
                    "power": round(power, 4),
                }
            )
    return rows


def simulate_power(
    generator: np.random.Generator, side: Side, metric: str, limit: Limit, confidence: float, drop: float, samples: int
) -> float:
    """The share of simulated runs, `drop` below simulated baselines, that are found to have regressed."""
    before = draw_difficulties(generator, side.problems.values["acc"], side.problems.samples)
    after = lower(before, drop, EXPECTED[metric])
    old = _score(generator.binomial(side.problems.samples, before), side.problems.samples, metric)
    new = _score(generator.binomial(samples, after), samples, metric)
    (margins,) = limit.margins(new, old, both=False)
    errors = difference_errors(margins, min(samples, side.problems.samples))
    reach = errors * stats.t.ppf((1 + confidence) / 2, max(margins.shape[1] - 1, 1))
    return float((margins.mean(axis=1) + reach < 0).mean())


def draw_difficulties(generator: np.random.Generator, shares: Values, samples: int) -> Values:
    """[simulations, problems]: probabilities that agree with what each problem scored, under a beta distribution over problems.

    Its mean and spread are those of the baseline with the binomial noise of its samples taken off, so that a problem that was
    never solved is not taken for one that never will be.
    """
    mean = (shares.sum() * samples + 0.5) / (len(shares) * samples + 1)
    spread = float(shares.var(ddof=1)) / (mean * (1 - mean)) if len(shares) > 1 else 1.0
    agreement = np.clip((spread - 1 / samples) / (1 - 1 / samples), 0.01, 0.95) if samples > 1 else 0.5
    weight = 1 / agreement - 1
    correct = shares * samples
    shape = (SIMULATIONS, len(shares))
    return np.clip(
        generator.beta(mean * weight + correct, (1 - mean) * weight + samples - correct, shape), _EDGE, 1 - _EDGE
    )


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


def _score(correct: NDArray[np.int64], samples: int, metric: str) -> Values:
    if metric == "acc":
        return correct / samples
    return as_values([pass_at_k(samples, count, 8) for count in range(samples + 1)])[correct]
