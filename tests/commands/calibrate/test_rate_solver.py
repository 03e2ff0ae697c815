"""The solver of rates on held-out prompts whose texts change by chance: it stops at their noise."""

import itertools
import statistics
from dataclasses import replace

import numpy as np
import pytest
from helpers.calibrations import calibrate_values, small_calibration

from lm_eval_takeover.calibration.thresholds import KAPPA_RULES
from lm_eval_takeover.calibration.tuning import Method
from lm_eval_takeover.commands.calibrate.rate_solver import Measured, solve
from lm_eval_takeover.commands.calibrate.score_parts import ScoreParts
from lm_eval_takeover.method.policies import Disagreement


class NoisyPrompts:
    """40 prompts of 50 tokens that lean to more or fewer takeovers. A quarter of their tokens change with the threshold."""

    method, name = Method(Disagreement()), "noisy"
    requests = range(40)

    def __init__(self, rate, seed):
        self.rate, self.seed, self.asked = rate, seed, []
        shares = {(rho, rule): rho for rho in (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.2) for rule in KAPPA_RULES}
        held = calibrate_values(np.random.default_rng(0).random(1000)).with_shares(shares)
        self.calibration = replace(small_calibration(), scores={"ce": held})

    def measure(self, rho, label):
        self.asked.append(rho)
        common, own = np.random.default_rng(self.seed), np.random.default_rng([self.seed, int(rho * 1e9)])
        leaning, lengths = common.gamma(4, 0.25, 40), common.poisson(50, 40)
        chance, changed, other = common.random((40, 100)), common.random((40, 100)) < 0.25, own.random((40, 100))
        fires = np.where(changed, other, chance) < (self.rate(rho) * leaning)[:, None]
        taken = (fires & (np.arange(100) < lengths[:, None])).sum(-1)
        return Measured.of(list(zip(taken.tolist(), lengths.tolist(), strict=True)))


def test_four_measurements_do_and_fresh_prompts_are_as_near_as_after_twelve(tmp_path):
    """What the thresholds realize beyond these prompts errs by the prompts' own noise: 1.0 points, however long it searches."""
    asked, errors = [], []
    rates = (lambda rho: rho, lambda rho: rho / 3, lambda rho: 3 * rho / (1 + 2 * rho), lambda rho: 1.6 * rho**1.2)
    for number, (seed, rate, wanted) in enumerate(itertools.product(range(8), rates, (0.05, 0.1))):
        prompts = NoisyPrompts(rate, seed)
        (target,) = solve(prompts, [wanted], ScoreParts(tmp_path / str(number), []))
        asked.append(len(prompts.asked))
        errors.append(rate(target.value) - wanted)
    assert statistics.median(asked) <= 4 and max(asked) <= 12
    assert np.sqrt(np.mean(np.square(errors))) < 0.0115


def test_the_standard_error_is_that_of_prompts_not_of_tokens():
    counts = [(taken, 50) for taken in (0, 5, 2, 3)]
    assert Measured.of(counts).error == pytest.approx(np.std([0, 5, 2, 3]) / 50 / 2)
    assert Measured(50, 1000, 0.004).is_near(0.054) and not Measured(50, 1000, 0.002).is_near(0.054)
    assert Measured(50, 1000, 0.0).is_near(0.051) and not Measured(50, 1000, 0.0).is_near(0.0511)
    assert not Measured(50, 1000, 0.02).is_near(0.056)  # the target would not count as reached


def test_equal_gates_are_measured_once(tmp_path):
    """Where all scores are equal, every spike ratio has one threshold."""
    prompts = NoisyPrompts(lambda rho: rho / 3, 0)
    held = calibrate_values(np.ones(1000)).with_shares(
        {(r["rho"], k): r["rho"] for r in calibrate_values(np.ones(9)).table for k in KAPPA_RULES}
    )
    prompts.calibration = replace(prompts.calibration, scores={"ce": held})
    list(solve(prompts, [0.05, 0.1], ScoreParts(tmp_path / "parts", [])))
    assert len(prompts.asked) == 1
