"""The area under a method's curve of accuracy over a cost, and the least cost of most of the donor's gain.

A curve starts at cost 0, where the host writes alone, and is linear between the measured costs. Its area is the mean gain over
costs up to a cap: a sum of the gains, weighted by the costs alone. So each problem has an area, too, and the interval is that of
a paired difference over problems.

Between two measured costs the true curve may rise anywhere: its form is not known. So an interval begins below the area of the
step curve that rises at the end of each stretch, and ends above that of the curve that rises at its start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from lm_eval_takeover.results.statistics import CONFIDENCE, Difference, Interval, Values, average_differences, holm

CAP = 0.10  # the largest share of tokens that areas go to
_DRAWS = 1000  # of problems, for the interval of a least cost
LEAST = ("least_cost_50", "least_cost_90", "least_cost_90_low", "least_cost_90_high")


@dataclass(frozen=True)
class Curve:
    """Gains of one method over the host: by task `[points, problems]`, in one order of problems for all methods.

    `costs` `[points]` rise.
    """

    costs: Values
    gains: Sequence[Values]

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

    def areas(self, cap: float) -> list[Values]:
        """By task the area of each problem."""
        costs = np.append(0.0, self.costs)
        return [find_areas(costs, np.pad(gains.T, ((0, 0), (1, 0))), cap) for gains in self.gains]

    def bound_area(self, cap: float) -> tuple[float, float]:
        """The areas of the step curves below and above it."""
        widths, gains = self.steps(cap)
        return float(widths @ gains.min(axis=1)), float(widths @ gains.max(axis=1))

    def share_of(self, oracles: Sequence["Oracle"], wrong: Sequence[Values], cap: float) -> Interval:
        """Its area over that of the first oracle. `wrong` has by task the host's share of wrong samples of each problem.

        Bounds are from a bootstrap over problems, for both areas the same, of this curve's steps. Shrunk effects, the first
        oracle's, are too small and measured ones, the last one's, too large: they give the upper and the lower bound.
        """
        areas, counts = self.areas(cap), _draw_counts(wrong)
        drawn = _draw_means([np.stack(of_task) for of_task in zip(areas, wrong, strict=True)], counts)
        area = float(np.mean([each.mean() for each in areas]))
        times, bounds = np.hstack([of_task * of_task.shape[1] for of_task in counts]), []
        ends = zip((oracles[-1], oracles[0]), (1 - CONFIDENCE, 1 + CONFIDENCE), self.bound_area(cap), strict=True)
        for oracle, side, step in ends:
            most = find_areas(*oracle.curve(times[:, oracle.problems], drawn[:, 1]), cap)
            known = most > 0  # else its problems were not drawn
            bounds.append(float(np.quantile((drawn[known, 0] + step - area) / most[known], side / 2)))
        return Interval(area / oracles[0].area(cap), *bounds)


@dataclass(frozen=True)
class Bounded:
    """An area, or the difference of two: its error over problems, and what the step curves leave possible."""

    difference: Difference
    steps: tuple[float, float]

    def interval(self) -> Interval:
        """By how much problems may move either end of the steps."""
        reach = self.difference.reach()
        return Interval(self.difference.value, self.steps[0] - reach, self.steps[1] + reach)

    def p_value(self) -> float:
        """Two-sided, of 0, from the nearer end of the steps."""
        return replace(self.difference, value=max(self.steps[0], 0.0) + min(self.steps[1], 0.0)).p_value()


@dataclass(frozen=True)
class Area:
    """The area of a method, and its difference from that of another method."""

    method: str
    area: Bounded
    versus: str | None = None
    difference: Bounded | None = None
    p_holm: float | None = None


@dataclass(frozen=True)
class Oracle:
    """The best gain at each cost of any selector that knows what each takeover is worth: `costs` and `gains` of its choices.

    Those that give most for their cost come first. `problems` are the places of theirs, those of all tasks behind each other.
    """

    costs: Values
    gains: Values
    room: float
    problems: NDArray[np.intp]

    @classmethod
    def of(cls, costs: Values, gains: Values, room: float, problems: Sequence[int] | NDArray[np.intp] = ()) -> Self:
        """From the cost and the gain of each choice; `room` is the most that there is to gain. Those that harm are left out."""
        chosen = np.flatnonzero(gains > 0)
        order = chosen[np.argsort(-gains[chosen] / costs[chosen], kind="stable")]
        places = np.array(problems, dtype=np.intp)
        return cls(costs[order], gains[order], room, places[order] if len(places) else places)

    def curve(self, times: Values | None = None, room: Values | None = None) -> tuple[Values, Values]:
        """Costs and gains from 0, which add up; `[draws, points]` with `times` that each choice counts, and the room of each."""
        taken = np.ones((1, len(self.costs))) if times is None else times
        spent, gained = (np.pad((taken * each).cumsum(axis=1), ((0, 0), (1, 0))) for each in (self.costs, self.gains))
        return spent, np.minimum(gained, self.room if room is None else room[:, np.newaxis])

    def gain(self, cost: float) -> float:
        return float(np.interp(cost, *(each[0] for each in self.curve())))

    def area(self, cap: float) -> float:
        """The mean gain over costs from 0 to the cap."""
        return float(find_areas(*self.curve(), cap)[0])


def find_cap(curves: Sequence[Curve]) -> float:
    """The largest cost that all curves reach, at most 10 %."""
    return min([CAP, *(float(curve.costs[-1]) for curve in curves)])


def find_areas(costs: Values, gains: Values, cap: float) -> Values:
    """The mean over costs from 0 to the cap of curves `[curves, points]` that begin at 0, linear between their points.

    Behind its last point a curve keeps its gain.
    """
    ends, steps = np.minimum(costs, cap), np.diff(costs)
    widths = np.diff(ends)
    reached = np.divide(widths, steps, out=np.zeros_like(steps), where=steps > 0)
    means = gains[..., :-1] + np.diff(gains) * reached / 2
    return np.asarray(((widths * means).sum(axis=-1) + (cap - ends[..., -1]) * gains[..., -1]) / cap)


def compare_areas(curves: Mapping[str, Curve], against: Sequence[str], cap: float) -> list[Area]:
    """Each method's area, once for each method that it is compared with. Each pair counts once in Holm's correction."""
    areas = {name: curve.areas(cap) for name, curve in curves.items()}
    steps = {name: curve.bound_area(cap) for name, curve in curves.items()}
    differences = {
        (name, other): Bounded(
            average_differences([a - b for a, b in zip(areas[name], areas[other], strict=True)]),
            (steps[name][0] - steps[other][1], steps[name][1] - steps[other][0]),
        )
        for name in curves
        for other in against
        if other in curves and other != name
    }
    once = {frozenset(pair): value.p_value() for pair, value in differences.items()}
    adjusted = dict(zip(once, holm(list(once.values())), strict=True))
    results = []
    for name in curves:
        own = Area(name, Bounded(average_differences(areas[name]), steps[name]))
        pairs = [(pair[1], value, adjusted[frozenset(pair)]) for pair, value in differences.items() if pair[0] == name]
        results += [replace(own, versus=v, difference=value, p_holm=p) for v, value, p in pairs] or [own]
    return results


def find_band(curve: Curve) -> list[Interval]:
    """The gain at each point, with a 95 % band that holds all points of the curve at once: the bootstrap of the largest t.

    Problems are drawn again, for all points the same. Never narrower than each point's own interval.
    """
    parts = [average_differences(of_point) for of_point in zip(*curve.gains, strict=True)]
    errors, own = np.array([part.error for part in parts]), [part.reach() for part in parts]
    drawn = _draw_means(curve.gains) - curve.means
    largest = (np.abs(drawn) / errors).max(axis=1)
    # The errors are estimated, so that a quantile for known ones grows as Student's t does.
    factor = float(np.quantile(largest, CONFIDENCE)) * own[0] / errors[0] / float(ndtri((1 + CONFIDENCE) / 2))
    reaches = np.maximum(own, factor * errors)
    values = [part.value for part in parts]
    return [Interval(value, value - reach, value + reach) for value, reach in zip(values, reaches, strict=True)]


def _draw_counts(tasks: Sequence[Values]) -> list[Values]:
    """How often each problem is drawn, over their number: by task `[draws, problems]`; always the same for as many problems."""
    generator, counts = np.random.default_rng(0), [each.shape[-1] for each in tasks]
    return [generator.multinomial(count, np.full(count, 1 / count), _DRAWS) / count for count in counts]


def _draw_means(gains: Sequence[Values], counts: Sequence[Values] | None = None) -> Values:
    """Means over drawn problems `[draws, rows]`, averaged over tasks; by task `[rows, problems]`, and how often each is drawn."""
    drawn = zip(counts or _draw_counts(gains), gains, strict=True)
    return np.asarray(np.mean([of_draws @ of_task.T for of_draws, of_task in drawn], axis=0))


def find_least_costs(curve: Curve, donor_gains: Sequence[Values], start: float | None) -> dict[str, float | None]:
    """`LEAST`: the first crossings of 50 and 90 % of the donor's gain (by task `[problems]`), along rising costs.

    None if it never has it. `start` is the cost of the host alone, where the curve begins; None where the costs do not go down to
    it. The interval is a bootstrap over problems.
    """
    means, wholes = curve.means, float(np.mean([gains.mean() for gains in donor_gains]))
    both = [np.vstack(of_task) for of_task in zip(curve.gains, donor_gains, strict=True)]
    drawn, whole = np.split(_draw_means(both), [len(means)], axis=1)
    whole = whole[:, 0]
    ends = np.quantile([_cross(curve.costs, *pair, start) for pair in zip(drawn, 0.9 * whole, strict=True)], [0.025, 0.975],
                       method="nearest")  # fmt: skip
    values = _cross(curve.costs, means, 0.5 * wholes, start), _cross(curve.costs, means, 0.9 * wholes, start), *ends
    return dict(zip(LEAST, (float(value) if value < inf else None for value in values), strict=True))


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
