"""The area under a method's curve of accuracy over realized rates, and the least cost of most of its gain.

A curve starts at rate 0, where the host writes alone, and is linear between the measured rates. Its area is the mean gain over
rates up to a cap: a sum of the gains at these rates, weighted by the rates alone. So each problem has an area, too, and the
interval is that of a paired difference over problems.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lm_eval_takeover.results.statistics import Difference, Values, holm, paired_difference

CAP = 0.10  # the largest rate that areas go to
SHARE = 0.9  # of the donor's gain, whose least cost is given


@dataclass(frozen=True)
class Curve:
    """Gains of one method over the host: by task `[rates, problems]`, in one order of problems for all methods.

    `rates` are realized ones and rise; `costs` have one more number in front, the host's own.
    """

    rates: Values
    gains: Sequence[Values]
    samples: Sequence[int]  # of each problem, by task
    costs: Values


@dataclass(frozen=True)
class Area:
    """The area of a method, and its difference from that of another method; None without another one."""

    method: str
    area: Difference
    versus: str | None
    difference: Difference | None
    p_holm: float | None
    least_cost: float | None  # at which the curve first has 90 % of the donor's gain; None where it never has


def find_cap(curves: Mapping[str, Curve]) -> float:
    """The largest rate that all curves reach, at most 10 %."""
    return min(CAP, *(float(curve.rates[-1]) for curve in curves.values()))


def weigh_rates(rates: Values, cap: float) -> Values:
    """The weight of each rate's gain in the mean over rates from 0 to the cap, by the trapezoid rule."""
    known = np.concatenate([[0.0], rates])
    grid = np.concatenate([known[known < cap], [cap]])
    units = np.eye(len(known))[1:]
    return np.array([np.trapezoid(np.interp(grid, known, unit), grid) / cap for unit in units])


def compare_areas(curves: Mapping[str, Curve], against: Sequence[str], donor_gain: float | None) -> list[Area]:
    """Each method's area, once for each method that it is compared with. Holm's p-values are over all comparisons."""
    cap = find_cap(curves)
    areas = {name: [weigh_rates(curve.rates, cap) @ gains for gains in curve.gains] for name, curve in curves.items()}
    differences = {
        (name, other): _average([a - b for a, b in zip(areas[name], areas[other], strict=True)], curve.samples)
        for name, curve in curves.items()
        for other in against
        if other in curves and other != name
    }
    adjusted = dict(zip(differences, holm([difference.p_value() for difference in differences.values()]), strict=True))
    results = []
    for name, curve in curves.items():
        own = _average(areas[name], curve.samples)
        cost = None if donor_gain is None else find_least_cost(curve, SHARE * donor_gain)
        pairs = [pair for pair in differences if pair[0] == name]
        results += [Area(name, own, pair[1], differences[pair], adjusted[pair], cost) for pair in pairs]
        results += [Area(name, own, None, None, None, cost)] if not pairs else []
    return results


def find_least_cost(curve: Curve, gain: float) -> float | None:
    """The least cost along a curve, linear between its points, at which the mean gain is so large."""
    means = np.concatenate([[0.0], np.mean([gains.mean(axis=1) for gains in curve.gains], axis=0)])
    costs = [
        float(curve.costs[place] + (gain - before) / (after - before) * (curve.costs[place + 1] - curve.costs[place]))
        for place, (before, after) in enumerate(pairwise(means))
        if before < gain <= after
    ]
    return min(costs, default=None) if gain > 0 else None


def _average(parts: Sequence[Values], samples: Sequence[int]) -> Difference:
    """Over tasks, unweighted."""
    return Difference.average([paired_difference(part, count) for part, count in zip(parts, samples, strict=True)])
