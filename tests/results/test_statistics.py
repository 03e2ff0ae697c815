"""Intervals and differences over problems: at the edges, against scipy's own, and their coverage by a short simulation."""

import numpy as np
import pytest
from difficulties import table3
from interval_coverage import cover_difference, cover_mean
from scipy import stats

from lm_eval_takeover.results import statistics


def problems(*counts, samples=8):
    return np.array(counts) / samples


@pytest.mark.parametrize("count", [30, 240])
def test_at_none_and_all_the_problems_count_and_not_their_samples(count):
    """0 of 8 in each of 30 problems bounds the mean as 0 of 30 does: samples of a problem may all agree."""
    reach = stats.t.ppf(0.975, count - 1) ** 2 / count
    none, all_ = statistics.mean_interval(problems(*[0] * count)), statistics.mean_interval(problems(*[8] * count))
    assert (none.low, none.value, none.high) == (0, 0, pytest.approx(reach / (1 + reach)))
    assert (all_.low, all_.value, all_.high) == (pytest.approx(1 - none.high), 1, 1)


def test_problems_of_one_sample_have_wilsons_interval():
    found = statistics.mean_interval(np.array([1.0] * 7 + [0.0] * 23), confidence=0.9)
    z = stats.t.ppf(0.95, 29)
    wilson = stats.binomtest(7, 30).proportion_ci(2 * stats.norm.cdf(z) - 1, "wilson")
    assert (found.low, found.high) == (pytest.approx(wilson.low), pytest.approx(wilson.high))


def test_samples_of_a_problem_that_agree_are_worth_one_and_pairing_narrows_what_hard_problems_widen():
    agreeing, mixed = problems(*[8] * 15, *[0] * 15), problems(*[4] * 30)
    assert statistics.mean_interval(mixed).value == statistics.mean_interval(agreeing).value
    assert statistics.mean_interval(mixed).high < statistics.mean_interval(agreeing).high - 0.1
    old = problems(*[0, 8] * 20)
    new = np.clip(old - 1 / 8, 0, 1)
    assert statistics.paired_difference(new - old, 8).error < statistics.independent_difference(new, old, 8).error / 3


@pytest.mark.parametrize("mean", [0.002, 0.5, 0.998])
def test_intervals_hold_their_mean_and_stay_in_their_range(mean):
    for values in np.random.default_rng(0).binomial(8, mean, (500, 30)) / 8:
        found = statistics.mean_interval(values)
        assert 0 <= found.low <= values.mean() <= found.high <= 1


def test_paired_differences_are_a_paired_t_test_where_problems_differ():
    generator = np.random.default_rng(2)
    old, new = generator.binomial(8, 0.4, 2000) / 8, generator.binomial(8, 0.45, 2000) / 8
    found, exact = statistics.paired_difference(new - old, 8), stats.ttest_rel(new, old)
    assert found.p_value() == pytest.approx(exact.pvalue, rel=0.02)
    assert found.interval().low == pytest.approx(exact.confidence_interval().low, abs=2e-5)
    edge = statistics.Difference(found.value - found.interval().high, found.error, found.freedom)
    assert (edge.p_value(), edge.p_below()) == pytest.approx((0.05, 0.025))


def test_pass_and_maj_at_8_are_one_observation_and_no_difference_among_few_is_no_proof():
    assert [statistics.count_observations(m, 8) for m in ("acc", "no_answer", "pass@8", "maj@8")] == [8, 8, 1, 1]
    assert [statistics.count_observations(m, 32) for m in ("acc", "pass@8", "pass@1", "maj@8")] == [32, 4, 32, 1]
    high = statistics.paired_difference(np.zeros(30), statistics.count_observations("pass@8", 8)).interval().high
    assert 0.069 < high < stats.binomtest(0, 30).proportion_ci(0.95, "exact").high == pytest.approx(0.116, abs=0.001)
    few, many = (statistics.paired_difference(np.zeros(count), 8).interval() for count in (30, 1000))
    assert few.low < -0.02 and few.high > 0.02
    assert -0.001 < many.low < 0


@pytest.mark.parametrize("problem_count", [30, 40, 100, 500])
@pytest.mark.parametrize("metric", ["acc", "pass@8", "maj@8"])
def test_intervals_hold_the_true_value_as_often_as_they_say(metric, problem_count):
    """Every cell of Table 3, alone and base to guided; with the floor of 8 observations, some differences cover 72 %."""
    cells, generator = table3(), np.random.default_rng(2)
    tasks = [task for row, task in cells if row == 0 and (2, task) in cells]
    found = [cover_difference(generator, [cells[0, t], cells[2, t]], metric, problem_count, 8, 4000) for t in tasks]
    found += [cover_mean(generator, cells[2, t], metric, problem_count, 8, 4000) for t in tasks]
    assert len(found) >= 8 and min(found) > 0.91


def test_runs_against_one_baseline_share_its_noise():
    """A simulation of 30 runs, whose differences from one baseline correlate by a half."""
    generator = np.random.default_rng(3)
    lowest = ((generator.normal(size=(40_000, 30)) - generator.normal(size=(40_000, 1))) / 2**0.5).min(axis=1)
    for p_value in (0.05, 0.005, 0.0005):
        expected = (lowest < stats.norm.ppf(p_value)).mean()
        assert statistics.any_of_runs(p_value, 30, 1) == pytest.approx(expected, abs=0.006)
        assert p_value < statistics.any_of_runs(p_value, 30, 1) < min(1, 30 * p_value)
    assert statistics.any_of_runs(0.01, 1, 1) == 0.01


def test_averages_over_tasks_are_unweighted_and_narrower_than_their_parts():
    small, large = statistics.mean_interval(problems(*[4, 5] * 15)), statistics.mean_interval(problems(*[0, 2] * 250))
    average = statistics.average_interval([small, large])
    assert average.value == pytest.approx((small.value + large.value) / 2)
    assert average.high - average.low < small.high - small.low
    alike = statistics.Difference.average([statistics.Difference(0.1, 0.02, 29), statistics.Difference(0.3, 0.02, 29)])
    assert (alike.value, alike.error, alike.freedom) == pytest.approx((0.2, 0.02 / 2**0.5, 58))


def test_holm_as_in_the_textbook():
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.5, 0.9]) == [1.0, 1.0]
    assert statistics.holm([]) == []
    # A weight is the share of the error rate that a hypothesis may use first.
    assert statistics.holm([0.01, 0.04, 0.03], [2, 1, 1]) == pytest.approx([0.02, 0.06, 0.06])
    assert statistics.holm([0.03, 0.001, 0.2], [2, 1, 1]) == pytest.approx([0.045, 0.004, 0.2])
