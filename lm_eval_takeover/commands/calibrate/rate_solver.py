"""Finds the value of a method's budget parameter (spike ratio, leniency, weight) that gives a wanted realized rate.

Each takeover changes what the host writes next, so the rate is measured on rollouts of held-out prompts. These share their random
numbers, so the rate is nearly monotone in the parameter.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lm_eval_takeover.calibration.thresholds import Calibration, Target
from lm_eval_takeover.calibration.tuning import SPIKE_RATIO, Method
from lm_eval_takeover.commands.calibrate.score_parts import ScoreParts
from lm_eval_takeover.commands.calibrate.setup import Setup
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.runs.progress import open_bar

_MOST = 12  # measurements of one target
_LOW, _HIGH = 1e-4, 1e9  # bounds of the search, in logarithms, where a parameter's own are 0 and infinity


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
        digest = hashlib.sha256(json.dumps(self.setup.prompts.held_out).encode()).hexdigest()
        return f"{digest} {json.dumps(self.method.settings, sort_keys=True)}"

    def count_takeovers(self, value: float) -> tuple[int, int]:
        """`(takeovers, tokens)` at this value of the budget parameter."""
        policy = self.method.at(value, self.calibration)
        takeovers = tokens = 0
        label = f"{self.method.settings.get('score') or policy.name}, {self.method.budget_parameter.name}={value:.4g}"
        with open_bar(label, total=len(self.requests), unit="rollout", disable=not self.setup.progress) as bar:
            for _, generation in self.setup.write(self.requests, policy):
                takeovers += generation.takeovers
                tokens += len(generation.tokens)
                bar.set_postfix_str(f"realized rate {takeovers / tokens:.2%}", refresh=False)
                bar.update()
        return takeovers, tokens


def solve(rollouts: HeldOutRollouts, rates: Sequence[float], memory: ScoreParts) -> Iterator[Target]:
    """For each rate the budget parameter's value whose rollouts come nearest: secants and halvings of its logarithm.

    What is measured for one rate is where the search for the next one starts. The result may be off where no value gives the
    rate, as in a mass of equal scores; the caller compares `realized_rate` with what was asked.
    """
    parameter, settings = rollouts.method.budget_parameter, rollouts.method.settings
    # The search is in x, in which the rate rises: the parameter's logarithm, negated where the rate falls.
    sign = 1 if parameter.rising else -1
    bounds = [sign * math.log(bound) for bound in (max(parameter.low, _LOW), min(parameter.high, _HIGH))]
    lowest, highest = min(bounds), max(bounds)
    measured: dict[float, tuple[float, int]] = {}

    def measure(x: float) -> float:
        if x not in measured:
            name = f"{rollouts.name} {x!r}"
            if (known := memory.remembered().get(name)) is None:
                known = list(rollouts.count_takeovers(math.exp(sign * x)))
                memory.remember(name, known)
            measured[x] = known[0] / known[1], known[1]
        return measured[x][0]

    for rate in rates:
        x = sign * math.log(_start_from_replay(rollouts, rate)) if not measured else None
        for step in range(_MOST):
            if x is not None:
                measure(min(max(x, lowest), highest))
            x = _choose_next(measured, rate, step, lowest, highest)
            if x is None:
                break
        best = min(measured, key=lambda tried: (abs(measured[tried][0] - rate), tried))
        realized, tokens = measured[best]
        yield Target(rate, settings, parameter.name, math.exp(sign * best), realized, len(rollouts.requests), tokens)


def _choose_next(
    measured: dict[float, tuple[float, int]], rate: float, step: int, lowest: float, highest: float
) -> float | None:
    """Where to measure next; None where it is near enough, or there is nothing left to try."""
    rates = {x: realized for x, (realized, _) in measured.items()}
    low = max((x for x in rates if rates[x] < rate), default=None)
    high = min((x for x in rates if rates[x] >= rate and (low is None or x > low)), default=None)
    close = max(0.001, rate / 100)  # fresh prompts add their own noise
    if any(abs(realized - rate) <= close for realized in rates.values()):
        return None
    if low is not None and high is not None:
        if high - low < 0.002:
            return None
        share = (rate - rates[low]) / (rates[high] - rates[low]) if step % 3 else 0.5
        return low + (high - low) * min(max(share, 0.1), 0.9)
    # Bounded on one side only: go in proportion to the gap, at least a tenth, each time twice as far.
    x = low if low is not None else high
    assert x is not None
    factor = 1.5 * math.log(rate / max(rates[x], rate / 8))
    reach = 2**step * (max(factor, 0.1) if low is not None else min(factor, -0.1))
    further = min(max(x + reach, lowest), highest)
    return None if further in rates else further


def _start_from_replay(rollouts: HeldOutRollouts, rate: float) -> float:
    """A first value: of a gate where the replay of the calibration's own rollouts gives the rate, interpolated in the table."""
    method, budget_parameter = rollouts.method, rollouts.method.budget_parameter
    if budget_parameter.name != SPIKE_RATIO:
        return rate if math.isfinite(budget_parameter.high) else 1.0
    share = f"share_{method.kappa_rule}"
    table = rollouts.calibration.score(method.settings["score"]).table
    rows = [(row[share], row["rho"]) for row in table if row[share] > 0]
    for (below, rho), (above, next_rho) in pairwise(rows):
        if below <= rate <= above and below < above:
            return float(rho * (next_rho / rho) ** (math.log(rate / below) / math.log(above / below)))
    return rate
