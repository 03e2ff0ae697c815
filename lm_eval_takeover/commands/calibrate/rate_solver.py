"""Finds the value of a method's budget parameter (spike ratio, leniency, weight) that gives a wanted realized rate.

Each takeover changes what the host writes next, so the rate is measured on rollouts of held-out prompts. These share their random
numbers, so the rate is nearly monotone in the parameter. It is solved on half of the prompts and measured on the others.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Self

import numpy as np
from scipy.special import stdtrit

from lm_eval_takeover.calibration.thresholds import TOLERANCE, Calibration, Target
from lm_eval_takeover.calibration.tuning import SPIKE_RATIO, Method
from lm_eval_takeover.commands.calibrate.rollouts import Rollouts, Setup
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.runs.progress import Progress
from lm_eval_takeover.storage.digests import digest_of

MOST = 12  # measurements of one target
_NEAR = 0.001  # of a rate: fresh prompts add more noise
_LOW, _HIGH = 1e-4, 1e9  # bounds of the search, in logarithms, where a parameter's own are 0 and infinity


@dataclass(frozen=True, slots=True)
class Measured:
    """What rollouts realized. error: the standard error of the rate over prompts."""

    takeovers: int
    tokens: int
    error: float

    @classmethod
    def of(cls, counts: Sequence[tuple[int, int]]) -> Self:
        """Of `(takeovers, tokens)` of each prompt. The rate is a ratio of sums, so its error is that of the residuals."""
        taken, tokens = np.array(counts).T
        residuals = taken - taken.sum() / tokens.sum() * tokens
        return cls(int(taken.sum()), int(tokens.sum()), float(np.sqrt(len(counts)) * residuals.std() / tokens.sum()))

    @property
    def rate(self) -> float:
        return self.takeovers / self.tokens

    def find_reach(self, prompts: int) -> float:
        """How far a 95 % interval of the rate reaches to either side, by Student's t over so many prompts."""
        return self.error * math.sqrt(prompts / (prompts - 1)) * float(stdtrit(prompts - 1, 0.975)) if prompts > 1 else 1.0

    def is_near(self, rate: float) -> bool:
        """Whether more measurements of the same prompts would only fit their noise."""
        return abs(self.rate - rate) <= min(max(_NEAR, self.error), TOLERANCE)


@dataclass(frozen=True, slots=True)
class HeldOutRollouts:
    """Rollouts of held-out prompts by a method at any value of its budget parameter."""

    setup: Setup
    requests: Sequence[Request]
    calibration: Calibration
    method: Method

    @property
    def name(self) -> str:
        """A key of all that a measured rate depends on, without the value."""
        return digest_of([[request.prompt for request in self.requests], self.method.settings])

    def measure(self, value: float, label: str) -> Measured:
        """The rate at this value of the budget parameter."""
        policy = self.method.at(value, self.calibration)
        shown = f"{self.method.settings.get('score') or policy.name}, {self.method.budget_parameter.name}={value:.4g}, {label}"
        with Progress(len(self.requests), quiet=False, label=shown, unit="rollout") as bar:
            written = self.setup.write(self.requests, policy, bar)
            return Measured.of([(generation.takeovers, len(generation.tokens)) for _, generation in written])


def solve(rollouts: HeldOutRollouts, rates: Sequence[float], memory: Rollouts) -> Iterator[Target]:
    """For each rate the budget parameter's value whose rollouts come near it: along the replay, by secants and halvings.

    What is measured for one rate is where the search for the next one starts. The result may be off where no value gives the
    rate, as in a mass of equal scores; the caller compares `realized_rate` with what was asked.
    """
    parameter, settings = rollouts.method.budget_parameter, rollouts.method.settings
    # The search is in x, in which the rate rises: the parameter's logarithm, negated where the rate falls.
    sign = 1 if parameter.rising else -1
    bounds = [sign * math.log(bound) for bound in (max(parameter.low, _LOW), min(parameter.high, _HIGH))]
    lowest, highest = min(bounds), max(bounds)
    measured: dict[float, Measured] = {}

    def measure(x: float, label: str) -> None:
        name, value = f"{rollouts.name} {x!r}", math.exp(sign * x)
        if (known := memory.results.get(name)) is None:
            known = astuple(rollouts.measure(value, label))
            memory.remember(name, known)
        measured[x] = Measured(*known)

    expect = _read_replay(rollouts)
    for rate in rates:
        for step in range(MOST):
            x = _choose_next(measured, rate, step, expect) if measured else expect(rate)
            if x is None or (x := min(max(x, lowest), highest)) in measured:
                break
            measure(x, f"{step + 1} of at most {MOST}")
        best = min(measured, key=lambda tried: (abs(measured[tried].rate - rate), tried))
        found = measured[best]
        yield Target(rate, settings, parameter.name, math.exp(sign * best), found.rate, len(rollouts.requests), found.tokens)


def check_target(target: Target, rollouts: HeldOutRollouts, memory: Rollouts) -> Target:
    """The target with the rate that its value realizes on these prompts, on which it was not solved."""
    name, count = f"{rollouts.name} {target.value!r}", len(rollouts.requests)
    if name not in memory.results:
        memory.remember(name, astuple(rollouts.measure(target.value, "on the other half")))
    found = Measured(*memory.results[name])
    reach = found.find_reach(count)
    low, high = max(found.rate - reach, 0.0), min(found.rate + reach, 1.0)
    counts: dict[str, Any] = {"realized_rate": found.rate, "prompts": count, "tokens": found.tokens, "low": low, "high": high}
    return replace(target, **counts, solved_rate=target.realized_rate)


def _choose_next(measured: dict[float, Measured], rate: float, step: int, expect: Callable[[float], float]) -> float | None:
    """Where to measure next; None where it is near enough, or there is nothing left to try."""
    if any(found.is_near(rate) for found in measured.values()):
        return None
    rates = {x: found.rate for x, found in measured.items()}
    low = max((x for x in rates if rates[x] < rate), default=None)
    high = min((x for x in rates if rates[x] >= rate and (low is None or x > low)), default=None)
    if low is not None and high is not None:
        if high - low < 0.002:
            return None
        share = (rate - rates[low]) / (rates[high] - rates[low]) if step % 3 != 2 else 0.5
        return low + (high - low) * min(max(share, 0.1), 0.9)
    # Bounded on one side only: as far as the replay moves for this change, at least a tenth, each time twice as far.
    x = low if low is not None else high
    assert x is not None
    further, reach = x + expect(rate) - expect(max(rates[x], rate / 8)), 0.1 * 2.0**step
    return max(further, x + reach) if low is not None else min(further, x - reach)


def _read_replay(rollouts: HeldOutRollouts) -> Callable[[float], float]:
    """By share of takeovers the x that would give it, as far as is known before anything is measured.

    A gate's shares are those at which it fires on the calibration's own rollouts. A share of tokens is its own value.
    """
    method, parameter = rollouts.method, rollouts.method.budget_parameter
    if parameter.name == SPIKE_RATIO:
        table = rollouts.calibration.score(method.settings["score"]).table
        rising = sorted({share: row["rho"] for row in table if (share := row[f"share_{method.kappa_rule}"]) > 0}.items())
        if rising:
            shares, values = np.log(np.array(rising)).T
            return lambda share: float(np.interp(math.log(share), shares, values))
    if math.isfinite(parameter.high) and parameter.rising:
        return math.log
    return lambda share: 1.5 * math.log(share / 0.05)
