"""Plans: the power of a drop, simulated with the intervals of the check itself; how often it alarms without a cause."""

import numpy as np
import pytest
from difficulties import table3
from helpers.results import TASK
from regression_alarms import rate_alarms

from lm_eval_takeover.commands.regress.planning import draw_difficulties, lower


def test_a_plan_prints_the_power_of_each_drop(check, regress):
    status, found = regress("--baseline", check.folder / "b.json", "--plan", "--drop", "0.02", "0.1")
    allowed, large = found["rows"]
    assert status == 0
    for row, drop in ((allowed, 0.02), (large, 0.1)):
        assert (row["task"], row["problems"], row["samples"], row["drop"]) == (TASK, 300, 8, drop)
    assert allowed["power"] < 0.05 and large["power"] > 0.95  # the allowed drop itself, and far beyond it
    assert allowed["problems_for_80"] is None and 20 < large["problems_for_80"] < 300


def test_planted_drops_shift_all_log_odds_by_one_amount_and_unsolved_problems_have_a_chance():
    chances = np.random.default_rng(0).beta(1, 1, (3, 50))
    lowered = lower(chances, 0.1, lambda p: p)
    assert lowered.mean(axis=1) == pytest.approx(chances.mean(axis=1) - 0.1, abs=1e-5)
    shifts = np.log(lowered / (1 - lowered)) - np.log(chances / (1 - chances))
    assert shifts == pytest.approx(np.broadcast_to(shifts[:, :1], shifts.shape), abs=1e-6)
    drawn = draw_difficulties(np.random.default_rng(0), np.array([0.0] * 20 + [0.5] * 20), 8)
    assert 0 < drawn[:, :20].mean() < drawn[:, 20:].mean() == pytest.approx(0.5, abs=0.1)


def test_equal_models_alarm_seldom_and_planted_drops_are_found():
    """A thousand comparisons; `benchmarks/regression_alarms.py` has ten thousand of more kinds."""
    generator, beta = np.random.default_rng(3), table3()[2, "AMC23"]
    alarms, _, points = rate_alarms(generator, beta, "AMC23", 0.0, 0.0, 1000)
    assert alarms <= 0.04 and points > 0.3
    assert rate_alarms(generator, beta, "AMC23", 0.1, 0.0, 1000)[0] >= 0.8
