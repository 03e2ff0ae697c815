"""The solver of rates: it finds the nearest one in few measurements, and stops at the noise of the prompts."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.calibrations import calibrate_values, small_calibration

from lm_eval_takeover.calibration.files import KAPPA_RULES, TABLE
from lm_eval_takeover.calibration.tuning import Method
from lm_eval_takeover.commands.calibrate.rollouts import Measured, Rollouts, check_target, solve
from lm_eval_takeover.lab.methods import Lossy
from lm_eval_takeover.method.policies import Disagreement


class HeldOut:
    """40 prompts whose rate of takeovers is a function of the parameter. With a seed it is drawn: 50 tokens a prompt, prompts
    that lean to more or fewer takeovers, and a quarter of the tokens that change with the parameter."""

    name, requests = "held out", range(40)

    def __init__(self, rate, seed=None, policy=None):
        self.rate, self.seed, self.method, self.asked = rate, seed, Method(policy or Disagreement()), []
        held = calibrate_values(np.random.default_rng(0).random(1000))
        held = held.with_shares({(rho, rule): rho for rho in TABLE for rule in KAPPA_RULES})
        self.calibration = replace(small_calibration(), scores={"ce": held})

    def measure(self, value, label):
        self.asked.append(value)
        if self.seed is None:
            return Measured(round(self.rate(value) * 10**6), 10**6, 0.0)
        common, own = np.random.default_rng(self.seed), np.random.default_rng([self.seed, int(value * 1e9)])
        leaning, lengths = common.gamma(4, 0.25, 40), common.poisson(50, 40)
        chance, changed, other = common.random((40, 100)), common.random((40, 100)) < 0.25, own.random((40, 100))
        fires = np.where(changed, other, chance) < (self.rate(value) * leaning)[:, None]
        taken = (fires & (np.arange(100) < lengths[:, None])).sum(-1)
        return Measured.of(list(zip(taken.tolist(), lengths.tolist(), strict=True)))


@pytest.mark.parametrize(
    "rate",
    [
        lambda rho: rho,
        lambda rho: rho / 3,
        lambda rho: 3 * rho / (1 + 2 * rho),
        lambda rho: rho**2,
        lambda rho: 0.2 * rho + (0.03 if rho > 0.07 else 0.0),
        lambda rho: min(rho, 0.12),
    ],
)
@pytest.mark.parametrize("wanted", [0.01, 0.02, 0.05, 0.08, 0.1])
def test_the_solver_finds_the_nearest_rate_in_few_measurements(tmp_path, rate, wanted):
    gated, again = HeldOut(rate), HeldOut(rate)
    (target,) = solve(gated, [wanted], Rollouts([], tmp_path))
    grid = np.exp(np.linspace(np.log(0.001), np.log(0.5), 20_000))
    best = min(abs(rate(rho) - wanted) for rho in grid)
    assert abs(target.realized_rate - wanted) <= best + 0.0012
    assert len(gated.asked) <= 12
    assert list(solve(again, [wanted], Rollouts([], tmp_path))) == [target] and not again.asked  # remembered


def test_a_rate_below_all_that_a_budget_parameter_can_reach_takes_few_measurements():
    """As of `lossy` where the donor all but rules out many of the host's tokens: no leniency lets these pass."""
    lossy = HeldOut(lambda leniency: 0.015 + 0.2 / (1 + leniency) ** 2, policy=Lossy())
    (target,) = solve(lossy, [0.005], Rollouts([]))
    assert target.realized_rate == pytest.approx(0.015, abs=1e-6) and not target.is_reached
    assert len(lossy.asked) <= 8


def test_a_rate_is_measured_on_other_prompts_than_it_was_solved_on_and_the_interval_holds_the_true_one():
    held = []
    for seed in range(60):
        (target,) = solve(HeldOut(lambda rho: rho, 2 * seed), [0.05], Rollouts([]))
        others = HeldOut(lambda rho: rho, 2 * seed + 1)
        found = check_target(target, others, Rollouts([]))
        assert (found.solved_rate, others.asked, found.prompts) == (target.realized_rate, [target.value], 40)
        held.append(found.low <= target.value <= found.high)  # each rho is its own rate
    assert np.mean(held) >= 0.85
    assert Measured(1, 100, 0.0).find_reach(1) == 1  # one prompt says nothing


def test_the_standard_error_is_that_of_prompts_not_of_tokens():
    counts = [(taken, 50) for taken in (0, 5, 2, 3)]
    assert Measured.of(counts).error == pytest.approx(np.std([0, 5, 2, 3]) / 50 / 2)
    assert Measured(50, 1000, 0.004).is_near(0.054) and not Measured(50, 1000, 0.002).is_near(0.054)
    assert Measured(50, 1000, 0.0).is_near(0.051) and not Measured(50, 1000, 0.0).is_near(0.0511)
    assert not Measured(50, 1000, 0.02).is_near(0.056)  # the target would not count as reached
