"""The area under a method's curve of accuracy over a cost, and the least cost of most of the donor's gain.

A curve starts at cost 0, where the host writes alone, and is linear between the measured costs. Its area is the mean gain over
costs up to a cap: a sum of the gains, weighted by the costs alone. So each problem has an area, too, and the interval is that of
a paired difference over problems.

Between two measured costs the true curve may rise anywhere. If it rises in one jump, the area is off by `gain x width` times a
number from -1/2 to 1/2: uniform where nothing is known of the place, either end where the jump lies at a measured rate and the
calibration misses it. Its variance, 5/36, counts two of the former (1/12) for one of the latter (1/4), and is in every interval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, sqrt
from typing import NamedTuple, Self

import numpy as np
from scipy.special import ndtri

from lm_eval_takeover.results.statistics import CONFIDENCE, Difference, Interval, Values, average_differences, holm

CAP = 0.10  # the largest share of tokens that areas go to
_DRAWS = 1000  # of problems, for the interval of a least cost


@dataclass(frozen=True)
class Curve:
    """Gains of one method over the host: by task `[points, problems]`, in one order of problems for all methods.

    `costs` `[points]` rise. `samples` are those of each problem, by task.
    """

    costs: Values
    gains: Sequence[Values]
    samples: Sequence[int]

    @property
    def means(self) -> Values:
        """The gain at each point, averaged over tasks."""
        return np.asarray(np.mean([gains.mean(axis=1) for gains in self.gains], axis=0))

    def steps(self, cap: float) -> tuple[Values, Values]:
        """Of each stretch between measured costs below the cap: its share of all costs, and the gain over it `[stretches, 2]`."""
        costs, gains = np.concatenate([[0.0], self.costs]), np.concatenate([[0.0], self.means])
        starts = np.minimum(costs, cap)
        widths = np.append(np.diff(starts), cap - starts[-1]) / cap
        ends = np.append(gains[1:], gains[-1])  # a method that can spend no more keeps its gain
        return widths, np.stack([gains, ends], axis=1)


@dataclass(frozen=True)
class Area:
    """The area of a method with the step curves below and above it, and its difference from that of another method."""

    method: str
    area: Difference
    steps: tuple[float, float]
    versus: str | None = None
    difference: Difference | None = None
    p_holm: float | None = None


class LeastCost(NamedTuple):
    """At which a method first has half of the donor's gain, and 90 % of it, with an interval; None if it never has."""

    half: float | None
    most: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Oracle:
    """The best gain at each cost of any selector that knows what each takeover is worth: `costs` and `gains` rise from 0."""

    costs: Values
    gains: Values

    @classmethod
    def of(cls, costs: Values, gains: Values, room: float) -> Self:
        """From the cost and the gain of each choice; `room` is the most that there is to gain. Gains are added up.

        Those that give most for their cost come first, and those that harm are left out.
        """
        chosen = np.flatnonzero(gains > 0)
        order = chosen[np.argsort(-gains[chosen] / costs[chosen], kind="stable")]
        spent, gained = (np.append(0.0, each[order].cumsum()) for each in (costs, gains))
        return cls(spent, np.minimum(gained, room))

    def gain(self, cost: float) -> float:
        return float(np.interp(cost, self.costs, self.gains))

    def area(self, cap: float) -> float:
        """The mean gain over costs from 0 to the cap."""
        return float(weigh_costs(self.costs[1:], cap) @ self.gains[1:])


def find_cap(curves: Sequence[Curve]) -> float:
    """The largest cost that all curves reach, at most 10 %."""
    return min([CAP, *(float(curve.costs[-1]) for curve in curves)])


def weigh_costs(costs: Values, cap: float) -> Values:
    """The weight of each gain in the mean over costs from 0 to the cap, by the trapezoid rule."""
    known = np.concatenate([[0.0], costs])
    grid = np.concatenate([known[known < cap], [cap]])
    units = np.eye(len(known))[1:]
    return np.array([np.trapezoid(np.interp(grid, known, unit), grid) / cap for unit in units])


def compare_areas(curves: Mapping[str, Curve], against: Sequence[str], cap: float) -> list[Area]:
    """Each method's area, once for each method that it is compared with. Each pair counts once in Holm's correction."""
    areas = {name: [weigh_costs(curve.costs, cap) @ gains for gains in curve.gains] for name, curve in curves.items()}
    grids = {name: _grid_error(curve, cap) for name, curve in curves.items()}
    differences = {
        (name, other): average_differences([a - b for a, b in zip(areas[name], areas[other], strict=True)], curve.samples)
        for name, curve in curves.items()
        for other in against
        if other in curves and other != name
    }
    differences = {pair: _widen(value, *(grids[name] for name in pair)) for pair, value in differences.items()}
    once = {frozenset(pair): value.p_value() for pair, value in differences.items()}
    adjusted = dict(zip(once, holm(list(once.values())), strict=True))
    results = []
    for name, curve in curves.items():
        widths, gains = curve.steps(cap)
        steps = float(widths @ gains.min(axis=1)), float(widths @ gains.max(axis=1))
        own = Area(name, _widen(average_differences(areas[name], curve.samples), grids[name]), steps)
        pairs = [(pair[1], value, adjusted[frozenset(pair)]) for pair, value in differences.items() if pair[0] == name]
        results += [replace(own, versus=v, difference=value, p_holm=p) for v, value, p in pairs] or [own]
    return results


def find_band(curve: Curve) -> list[Interval]:
    """The gain at each point, with a 95 % band that holds all points of the curve at once: the bootstrap of the largest t.

    Problems are drawn again, for all points the same. Never narrower than each point's own interval.
    """
    parts = [average_differences(of_point, curve.samples) for of_point in zip(*curve.gains, strict=True)]
    errors, own = np.array([part.error for part in parts]), [part.reach() for part in parts]
    drawn = _draw_means(curve.gains, np.random.default_rng(0)) - curve.means
    largest = (np.abs(drawn) / errors).max(axis=1)
    # The errors are estimated, so that a quantile for known ones grows as Student's t does.
    factor = float(np.quantile(largest, CONFIDENCE)) * own[0] / errors[0] / float(ndtri((1 + CONFIDENCE) / 2))
    reaches = np.maximum(own, factor * errors)
    values = [part.value for part in parts]
    return [Interval(value, value - reach, value + reach) for value, reach in zip(values, reaches, strict=True)]


def _draw_means(gains: Sequence[Values], generator: np.random.Generator) -> Values:
    """Means over problems drawn again `[draws, rows]`, averaged over tasks; by task `[rows, problems]`."""
    means = []
    for of_task in gains:
        count = of_task.shape[1]
        means.append(generator.multinomial(count, np.full(count, 1 / count), _DRAWS) / count @ of_task.T)
    return np.asarray(np.mean(means, axis=0))


def find_least_costs(curve: Curve, donor_gains: Sequence[Values], start: float | None) -> LeastCost:
    """The first crossings of 50 and 90 % of the donor's gain (by task `[problems]`), along rising costs.

    `start` is the cost of the host alone, where the curve begins; None where the costs do not go down to it. The interval is a
    bootstrap over problems.
    """
    means, wholes = curve.means, float(np.mean([gains.mean() for gains in donor_gains]))
    both = [np.vstack(of_task) for of_task in zip(curve.gains, donor_gains, strict=True)]
    drawn, whole = np.split(_draw_means(both, np.random.default_rng(0)), [len(means)], axis=1)
    whole = whole[:, 0]
    ends = np.quantile([_cross(curve.costs, *pair, start) for pair in zip(drawn, 0.9 * whole, strict=True)], [0.025, 0.975],
                       method="nearest")  # fmt: skip
    values = _cross(curve.costs, means, 0.5 * wholes, start), _cross(curve.costs, means, 0.9 * wholes, start), *ends
    return LeastCost(*(float(value) if value < inf else None for value in values))


def _cross(costs: Values, gains: Values, goal: float, start: float | None) -> float:
    """Where a curve, linear between its points, first has this gain; infinity if it never has."""
    points = list(zip(costs, gains, strict=True))
    points = [(start, 0.0), *points] if start is not None else points
    if goal <= 0:
        return inf
    if points[0][1] >= goal:
        return float(points[0][0])
    for (left, before), (right, after) in pairwise(points):
        if before < goal <= after:
            return float(left + (goal - before) / (after - before) * (right - left))
    return inf


def _grid_error(curve: Curve, cap: float) -> float:
    widths, gains = curve.steps(cap)
    return float(sqrt(np.sum((widths * np.diff(gains, axis=1)[:, 0]) ** 2) * 5 / 36))


def _widen(difference: Difference, *errors: float) -> Difference:
    return replace(difference, error=sqrt(difference.error**2 + sum(error**2 for error in errors)))
