"""Areas under frontiers: the trapezoid rule, paired differences over problems, the least cost of most of the gain."""

import sys

import numpy as np
import pytest
from helpers.pairs import ROOT

from lm_eval_takeover.results.frontier import Curve, compare_areas, find_cap, find_least_cost, weigh_rates

sys.path.append(str(ROOT / "benchmarks"))
from frontier_area import simulate  # the committed simulation, at a small size


def curve(rates, gains, problems=50, costs=None):
    rates, generator = np.array(rates), np.random.default_rng(0)
    spread = generator.normal(0, 0.1, problems)
    values = np.array([gain + spread - spread.mean() for gain in gains])
    return Curve(rates, [values], [8], np.array([0.0, *rates] if costs is None else costs))


@pytest.mark.parametrize(
    ("rates", "cap"), [([0.02, 0.05, 0.1], 0.1), ([0.03, 0.2], 0.1), ([0.2], 0.07), ([0.04], 0.04)]
)
def test_weights_are_those_of_the_trapezoid_rule(rates, cap):
    gains = np.random.default_rng(1).random(len(rates))
    grid = np.linspace(0, cap, 200_001)
    area = np.trapezoid(np.interp(grid, [0, *rates], [0, *gains]), grid) / cap
    assert weigh_rates(np.array(rates), cap) @ gains == pytest.approx(area, abs=1e-6)


def test_areas_end_at_the_largest_common_rate():
    curves = {"far": curve([0.05, 0.3], [0.2, 0.4]), "near": curve([0.06], [0.2])}
    assert find_cap(curves) == 0.06
    assert find_cap({"far": curves["far"]}) == 0.1


def test_methods_are_compared_where_there_is_something_to_compare_with():
    curves = {"ce": curve([0.05, 0.1], [0.5, 0.6]), "random": curve([0.05, 0.1], [0.1, 0.1])}
    ce, random = compare_areas(curves, ["random", "entropy"], 0.6)
    assert ce.versus == "random" and ce.difference.value == pytest.approx(0.4 * 0.25 + (0.4 + 0.5) / 2 * 0.5)
    assert ce.p_holm < 1e-6 and (random.versus, random.difference, random.p_holm) == (None, None, None)
    assert ce.least_cost == pytest.approx(0.05 + 0.05 * 0.4) and random.least_cost is None


def test_the_least_cost_is_read_between_points_on_any_axis():
    assert find_least_cost(curve([0.05, 0.1], [0.4, 0.8], costs=[10, 20, 60]), 0.6) == pytest.approx(40)
    assert find_least_cost(curve([0.05], [0.4]), 0.5) is None
    assert find_least_cost(curve([0.05], [-0.4]), -0.2) is None


def test_intervals_cover_and_copies_do_not_differ():
    covered, differed = simulate(np.random.default_rng(3), 0.0, 60, 250)
    assert covered >= 0.92 and differed <= 0.05
