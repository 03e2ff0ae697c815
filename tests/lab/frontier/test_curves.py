"""Curves of gain against cost: areas, bands, least costs and the oracle, by slow calculations and in simulated worlds."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from frontier_area import CURVES, simulate  # the committed simulation, at a small size
from scipy.integrate import trapezoid

from lm_eval_takeover.lab.frontier.curves import Curve, Oracle, compare_areas, find_areas, find_band, find_cap, find_least_costs
from lm_eval_takeover.results.statistics import paired_difference


def curve(costs, gains, problems=50):
    spread = np.random.default_rng(0).normal(0, 0.1, problems)
    return Curve(np.array(costs), [np.array([gain + spread - spread.mean() for gain in gains])])


@pytest.mark.parametrize(("costs", "cap"), [([0.02, 0.05, 0.1], 0.1), ([0.03, 0.2], 0.1), ([0.2], 0.07), ([0.04], 0.04)])
def test_areas_are_those_of_the_trapezoid_rule_between_the_steps(costs, cap):
    gains = np.sort(np.random.default_rng(1).random(len(costs)))
    grid = np.linspace(0, cap, 200_001)
    known = np.array([0, *costs]), np.array([0, *gains])
    area = trapezoid(np.interp(grid, *known), grid) / cap
    assert find_areas(*known, cap) == pytest.approx(area, abs=1e-6)
    (measured,) = compare_areas({"ce": curve(costs, gains)}, [], cap)
    for side, bound in zip(("right", "left"), measured.area.steps, strict=True):  # the step below and the step above
        places = np.searchsorted(known[0], grid, side) - (side == "right")
        assert trapezoid(known[1][places], grid) / cap == pytest.approx(bound, abs=1e-4)
    assert measured.area.interval().low < measured.area.steps[0] < measured.area.mean.value < measured.area.steps[1]


def test_methods_are_compared_where_there_is_something_to_compare_with_and_each_pair_is_corrected_once():
    curves = {"ce": curve([0.05, 0.1], [0.5, 0.6]), "random": curve([0.05, 0.1], [0.1, 0.1])}
    ce, random = compare_areas(curves, ["random", "entropy"], 0.1)
    assert ce.versus == "random" and ce.difference.mean.value == pytest.approx(0.4 * 0.25 + (0.4 + 0.5) / 2 * 0.5)
    assert (random.versus, random.difference, random.p_holm) == (None, None, None)
    areas = compare_areas(curves, ["random", "ce"], 0.1)
    assert [(area.method, area.versus) for area in areas] == [("ce", "random"), ("random", "ce")]
    assert {area.p_holm for area in areas} == {ce.difference.p_value()}  # one pair, so nothing to correct
    both = curve([0.05, 0.3], [0.2, 0.4]), curve([0.06], [0.2])
    assert (find_cap(both), find_cap(both[:1]), find_cap([])) == (0.06, 0.1, 0.1)


def test_least_costs_are_first_crossings_along_the_axis():
    donor = [np.full(50, 0.8)]
    half, most, low, high = find_least_costs(curve([0.05, 0.1], [0.4, 0.8]), donor, 0.0).values()
    assert (half, most) == pytest.approx((0.05, 0.05 + 0.05 * 0.8)) and low <= most <= high
    unknown = find_least_costs(curve([20, 60], [0.6, 0.8]), donor, None)
    assert unknown["least_cost_50"] == 20  # nothing is known of less
    flat = find_least_costs(curve([1, 1, 1], [0.1, 0.5, 0.8]), donor, None)
    assert [*flat.values()] == [1] * 4  # all rates have one cost
    assert [*find_least_costs(curve([0.05], [0.3]), donor, 0.0).values()] == [None] * 4


@pytest.mark.parametrize("shared", [0.0, 0.9], ids=["apart", "together"])
def test_a_band_holds_all_points_at_once_where_intervals_of_single_points_do_not(shared):
    """Eight points whose problems vary apart, or nearly together."""
    generator, gains, held = np.random.default_rng(2), np.linspace(0.1, 0.6, 8), []
    for _ in range(200):
        common, own = (generator.normal(size=(rows, 60)) for rows in (1, 8))
        noise = 0.3 * (shared * common + (1 - shared**2) ** 0.5 * own)
        one = Curve(np.arange(8), [gains[:, None] + noise])
        single = [paired_difference(rows, False).interval() for rows in one.gains[0]]
        bands = find_band(one), single
        pairs = [zip(band, gains, strict=True) for band in bands]
        held.append([all(part.low < gain < part.high for part, gain in pair) for pair in pairs])
        assert all(wide.low <= own.low for wide, own in zip(*bands, strict=True))
    together, singly = np.mean(held, axis=0)
    assert 0.92 <= together <= 0.985 and singly < together - (0.2 if not shared else 0.03)


def test_no_set_of_takeovers_gains_more_than_the_oracle_at_its_cost():
    """Against all sets of eight, at the costs where the oracle's curve bends; what there is to gain is its end."""
    generator = np.random.default_rng(4)
    costs, gains = generator.uniform(0.001, 0.01, 8), generator.normal(0.03, 0.05, 8)
    sets = np.array(list(product([0, 1], repeat=8)))
    oracle = Oracle.of(costs, gains, 1.0)
    for cost, gain in zip(*(values[0] for values in oracle.curve()), strict=True):
        assert gain == pytest.approx((sets @ gains)[sets @ costs <= cost + 1e-12].max())
    assert oracle.gain(1.0) == pytest.approx(gains[gains > 0].sum())
    half = Oracle.of(costs, gains, 0.05)
    grid = np.linspace(0, 0.1, 100_001)
    assert half.gain(1.0) == 0.05
    assert half.area(0.1) == pytest.approx(np.mean([half.gain(cost) for cost in grid[::100]]), rel=0.01)


@pytest.mark.parametrize("shape", CURVES)
def test_intervals_cover_and_copies_do_not_differ(shape):
    found = simulate(np.random.default_rng(3), CURVES[shape], 60, 250)
    assert min(found.covered, found.at_the_rates) >= 0.92 and found.differed <= 0.07


def test_two_methods_differ_where_no_curve_between_the_measured_rates_makes_them_equal():
    """Equal jumps in all stretches: areas are 25 points apart, steps 10 points about each."""
    gains = [0.1, 0.2, 0.3, 0.4, 0.5], [0.3, 0.5, 0.6, 0.7, 0.8]
    one, other = (curve([0.02, 0.04, 0.06, 0.08, 0.1], own) for own in gains)
    ce, _ = compare_areas({"ce": one, "random": other}, ["random"], 0.1)
    assert ce.difference.steps == pytest.approx((0.2 - 0.58, 0.3 - 0.42)) and ce.difference.interval().high < 0
    assert ce.difference.p_value() == pytest.approx(replace(ce.difference.mean, value=0.3 - 0.42).p_value())
    same, _ = compare_areas({"ce": one, "random": one}, ["random"], 0.1)
    assert same.difference.p_value() == 1 and same.difference.interval().high > 0.1
