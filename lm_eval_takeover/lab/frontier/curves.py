"""The area under a method's curve of accuracy over a cost, and the least cost of most of the donor's gain.

A curve starts at cost 0, where the host writes alone, and is linear between the measured costs. Its area is the mean gain over
costs up to a cap: a sum of the gains, weighted by the costs alone. So each problem has an area, too, and the interval is that of
a paired difference over problems.

Between two measured costs the true curve may rise anywhere: its form is not known. So an interval begins below the area of the
step curve that rises at the end of each stretch, and ends above that of the curve that rises at its start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from lm_eval_takeover.results.statistics import CONFIDENCE, Difference, Interval, Values, average_differences, holm

CAP = 0.10  # the largest share of tokens that areas go to
_DRAWS = 1000  # of problems, for the interval of a least cost
LEAST = ("least_cost_50", "least_cost_90", "least_cost_90_low", "least_cost_90_high")


@dataclass(frozen=True)
class Curve:
    """Gains of one method over the host, in one order of problems for all methods."""

    costs: Values  # [points], rising
    gains: Sequence[Values]  # by task [points, problems]

    @property
    def means(self) -> Values:
        """The gain at each point, averaged over tasks."""
        return np.asarray(np.mean([gains.mean(axis=1) for gains in self.gains], axis=0))

    def area(self, cap: float) -> "Area":
        """The area of each problem, and of the step curves below and above this one."""
        costs, gains = np.append(0.0, self.costs), np.append(0.0, self.means)
        ends = np.append(gains[1:], gains[-1])  # a method that can spend no more keeps its gain
        widths = np.diff(np.minimum(costs, cap), append=cap) / cap
        steps = float(widths @ np.minimum(gains, ends)), float(widths @ np.maximum(gains, ends))
        return Area([find_areas(costs, np.pad(own.T, ((0, 0), (1, 0))), cap) for own in self.gains], steps)

    def share_of(self, oracles: Sequence["Oracle"], wrong: Sequence[Values], cap: float) -> Interval:
        """Its area over that of the first oracle. `wrong` has by task the host's share of wrong samples of each problem.

        Bounds are from a bootstrap over problems, for both areas the same, of this curve's steps. Shrunk effects, the first
        oracle's, are too small and measured ones, the last one's, too large: they give the upper and the lower bound.
        """
        own, counts = self.area(cap), _draw_counts(wrong)
        drawn = _draw_means([np.stack(of_task) for of_task in zip(own.problems, wrong, strict=True)], counts)
        times, bounds = np.hstack([of_task * of_task.shape[1] for of_task in counts]), []
        ends = zip((oracles[-1], oracles[0]), (1 - CONFIDENCE, 1 + CONFIDENCE), own.steps, strict=True)
        for oracle, side, step in ends:
            most = find_areas(*oracle.curve(times[:, oracle.problems], drawn[:, 1]), cap)
            known = most > 0  # else its problems were not drawn
            bounds.append(float(np.quantile((drawn[known, 0] + step - own.mean.value) / most[known], side / 2)))
        return Interval(own.mean.value / oracles[0].area(cap), *bounds)


@dataclass(frozen=True)
class Area:
    """An area, or the difference of two: by task that of each problem, and what the step curves leave possible."""

    problems: Sequence[Values]
    steps: tuple[float, float]

    def __sub__(self, other: Self) -> Self:
        problems = [own - its for own, its in zip(self.problems, other.problems, strict=True)]
        return replace(self, problems=problems, steps=(self.steps[0] - other.steps[1], self.steps[1] - other.steps[0]))

    @cached_property
    def mean(self) -> Difference:
        return average_differences(self.problems)

    def interval(self) -> Interval:
        """By how much problems may move either end of the steps."""
        reach = self.mean.reach()
        return Interval(self.mean.value, self.steps[0] - reach, self.steps[1] + reach)

    def p_value(self) -> float:
        """Two-sided, of 0, from the nearer end of the steps."""
        return replace(self.mean, value=max(self.steps[0], 0.0) + min(self.steps[1], 0.0)).p_value()


class Compared(NamedTuple):
    """The area of a method, and its difference from that of another method, where there is one."""

    method: str
    area: Area
    versus: str | None = None
    difference: Area | None = None
    p_holm: float | None = None


@dataclass(frozen=True)
class Oracle:
    """The best gain at each cost of a selector that knows what each takeover is worth: its choices, the best price first."""

    costs: Values
    gains: Values
    room: float
    problems: NDArray[np.intp]  # their places, those of all tasks behind each other

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
        return float(find_areas(*self.curve(), cap)[0])


def find_cap(curves: Sequence[Curve]) -> float:
    """The largest cost that all curves reach, at most 10 %."""
    return min([CAP, *(float(curve.costs[-1]) for curve in curves)])


def find_areas(costs: Values, gains: Values, cap: float) -> Values:
    """The mean over costs from 0 to the cap of curves `[curves, points]` from 0, linear between points, level behind the last."""
    ends, steps = np.minimum(costs, cap), np.diff(costs)
    widths = np.diff(ends)
    reached = np.divide(widths, steps, out=np.zeros_like(steps), where=steps > 0)
    means = gains[..., :-1] + np.diff(gains) * reached / 2
    return np.asarray(((widths * means).sum(axis=-1) + (cap - ends[..., -1]) * gains[..., -1]) / cap)


def compare_areas(curves: Mapping[str, Curve], against: Sequence[str], cap: float) -> list[Compared]:
    """Each method's area, once for each method that it is compared with. Each pair counts once in Holm's correction."""
    areas = {name: curve.area(cap) for name, curve in curves.items()}
    pairs = [(name, other) for name in curves for other in against if other in curves and other != name]
    differences = {(name, other): areas[name] - areas[other] for name, other in pairs}
    once = {frozenset(pair): value.p_value() for pair, value in differences.items()}
    adjusted = dict(zip(once, holm(list(once.values())), strict=True))
    results = []
    for name, area in areas.items():
        others = [(pair[1], value, adjusted[frozenset(pair)]) for pair, value in differences.items() if pair[0] == name]
        results += [Compared(name, area, *other) for other in others] or [Compared(name, area)]
    return results


def find_band(curve: Curve) -> list[Interval]:
    """The gain at each point, with a 95 % band that holds all points of the curve at once: the bootstrap of the largest t."""
    parts = [average_differences(of_point) for of_point in zip(*curve.gains, strict=True)]
    errors, own = np.array([part.error for part in parts]), [part.reach() for part in parts]
    largest = (np.abs(_draw_means(curve.gains) - curve.means) / errors).max(axis=1)
    # The errors are estimated, so that a quantile for known ones grows as Student's t does.
    factor = float(np.quantile(largest, CONFIDENCE)) * own[0] / errors[0] / float(ndtri((1 + CONFIDENCE) / 2))
    reaches = np.maximum(own, factor * errors)  # never narrower than each point's own interval
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
    """`LEAST`, by a bootstrap over problems: where the curve first has 50 and 90 % of the donor's gain (by task `[problems]`).

    None if it never has it. `start`: the cost of the host alone, where the curve begins; None where costs do not go down to it.
    """
    means, costs, whole = curve.means, curve.costs, float(np.mean([gains.mean() for gains in donor_gains]))
    both = [np.vstack(of_task) for of_task in zip(curve.gains, donor_gains, strict=True)]
    drawn, wholes = np.split(_draw_means(both), [len(means)], axis=1)
    if start is not None:
        means, costs, drawn = np.append(0.0, means), np.append(start, costs), np.pad(drawn, ((0, 0), (1, 0)))
    crossings = [_cross(costs, *pair) for pair in zip(drawn, 0.9 * wholes[:, 0], strict=True)]
    ends = np.quantile(crossings, [0.025, 0.975], method="nearest")
    values = _cross(costs, means, 0.5 * whole), _cross(costs, means, 0.9 * whole), *ends
    return dict(zip(LEAST, (float(value) if value < inf else None for value in values), strict=True))


def _cross(costs: Values, gains: Values, goal: float) -> float:
    """Where a curve, linear between its points, first has this gain; infinity if it never has."""
    reached = gains >= goal
    if goal <= 0 or not reached.any():
        return inf
    part = slice(max(reached.argmax() - 1, 0), reached.argmax() + 1)
    return float(np.interp(goal, gains[part], costs[part]))
