"""Effects of single positions: means over problems, scores that tell large effects, and where the gain sits."""

import numpy as np
import polars as pl
import pytest

from lm_eval_takeover.analysis.effects import (
    measure_position,
    nested_mean,
    share_of_gain,
    tabulate_auroc,
    tabulate_by_score,
    tabulate_summary,
)
from lm_eval_takeover.results.statistics import paired_difference


def planted(rng, problems=40, positions=5, count=8, strength=1.0):
    """Positions whose effect is `strength` where `good` is 1, and nothing elsewhere."""
    rows = []
    for problem in range(problems):
        for place in range(positions):
            good = int(rng.random() < 0.3)
            host = rng.random(count) < 0.3
            donor = rng.random(count) < (0.3 + 0.7 * strength * good)
            found = measure_position(host.tolist(), donor.tolist())
            kind = "takeover" if place else "control"
            rows.append(
                {"problem": f"t {problem}", "kind": kind, "good": good + rng.random() / 9, "noise": rng.random()}
                | found
            )
            rows[-1] |= {"host": host.tolist(), "donor": donor.tolist()}
    return pl.DataFrame(rows)


def test_a_position_of_a_problem_each_is_a_plain_paired_mean():
    values = np.random.default_rng(0).normal(size=30).clip(-1, 1)
    plain = paired_difference(values, 8).interval()
    nested = nested_mean(values, np.arange(30), 8)
    assert (nested.value, nested.low, nested.high) == pytest.approx((plain.value, plain.low, plain.high))


def test_positions_of_one_problem_count_together():
    values = np.repeat(np.random.default_rng(0).normal(size=20).clip(-1, 1) / 2, 6)
    together = nested_mean(values, np.repeat(np.arange(20), 6), 8)
    apart = nested_mean(values, np.arange(120), 8)
    assert together.value == apart.value
    assert together.high - together.low > 2 * (apart.high - apart.low)
    assert nested_mean(values, np.zeros(120), 8).low == -1


def test_the_interval_of_a_mean_effect_covers_and_controls_come_to_nothing():
    rng, covered, zero = np.random.default_rng(1), 0, 0
    for _ in range(100):
        found = tabulate_summary(planted(rng, strength=0.5))
        low, high = found.filter(kind="takeover").select("low", "high").row(0)
        covered += low <= 0.3 * 0.35 <= high
        low, high = tabulate_summary(planted(rng, strength=0.0)).filter(kind="control").select("low", "high").row(0)
        zero += low <= 0 <= high
    assert covered >= 88  # of 95 on average: 3.2 standard deviations
    assert zero >= 88


def test_a_score_that_knows_the_effects_is_told_from_one_that_does_not():
    positions = planted(np.random.default_rng(2))
    areas = {row["score"]: row for row in tabulate_auroc(positions, ["good", "noise"]).iter_rows(named=True)}
    assert areas["good"]["low"] > 0.8 and areas["good"]["low"] <= areas["good"]["auroc"] <= areas["good"]["high"]
    assert areas["noise"]["low"] < 0.5 < areas["noise"]["high"]
    bins = tabulate_by_score(positions, ["good", "noise"])
    good = bins.filter(score="good")
    assert good["positions"].sum() == len(positions) and len(good) == 10
    assert good["effect"][-1] > 0.5 > 0.15 > abs(good["effect"][0])
    assert (good["left"] <= good["right"]).all() and good["left"].is_sorted()


def test_equal_scores_stay_in_one_bin_and_unknown_ones_in_none():
    positions = planted(np.random.default_rng(3), problems=10).with_columns(
        flat=pl.lit(1.0), unknown=pl.lit(float("nan"))
    )
    bins = tabulate_by_score(positions, ["flat", "unknown"])
    assert bins.select("score", "positions").rows() == [("flat", 50)]
    assert tabulate_auroc(positions, ["unknown"])["auroc"].to_list() == [None]


def test_the_share_that_brings_most_of_the_gain():
    none, all_right = [False] * 8, [True] * 8
    assert share_of_gain([none] * 10, [all_right] * 2 + [none] * 8) == 0.2  # 80 % of 2 is both
    assert share_of_gain([none] * 10, [all_right] * 10) == 0.8
    assert share_of_gain([all_right] * 10, [none] * 10) is None
    assert share_of_gain([none], [all_right]) is None


def test_chance_alone_does_not_look_like_a_few_large_effects():
    """Half of the continuations put positions in order, the other half adds up."""
    rng = np.random.default_rng(4)
    draws = rng.random((2, 400, 8)) < np.array([0.45, 0.55])[:, None, None]
    assert share_of_gain(*draws.tolist()) > 0.6  # by the same draws it would be 0.2


def test_a_position_has_counts_and_an_interval_within_bounds():
    assert measure_position([False, True], [True, True]) == {
        "correct_host": 1, "correct_donor": 2, "continuations": 2, "effect": 0.5, "low": -1.0, "high": 1.0,
    }  # fmt: skip
    alone = measure_position([False], [True])
    assert (alone["effect"], alone["low"], alone["high"]) == (1.0, -1.0, 1.0)
