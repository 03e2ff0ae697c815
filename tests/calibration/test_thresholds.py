"""Equations (3) and (4) against numpy, and what a calibration refuses."""

import numpy as np
import pytest
import torch
from helpers.calibrations import METHOD, SCORES, TARGET, calibrate_values
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.calibration.files import find_calibration, find_target, name_rate
from lm_eval_takeover.errors import CalibrationError
from lm_eval_takeover.method.gate import Gate, fires_along

CALIBRATED = calibrate_values(SCORES)


@pytest.mark.parametrize("rho", [0.005, 0.01, 0.03, 0.05, 0.1, 0.5])
def test_tau_and_kappa_equal_their_definitions(rho):
    threshold = calibrate_values(SCORES).threshold(rho)
    tau = np.quantile(SCORES, 1 - rho)
    assert threshold.tau == pytest.approx(tau, rel=1e-12)
    assert threshold.kappa_threshold_to_mean == pytest.approx(tau / SCORES.mean(), rel=1e-12)
    assert threshold.kappa_tail_to_mean == pytest.approx(SCORES[tau < SCORES].mean() / SCORES.mean(), rel=1e-9)


@given(st.floats(0.001, 0.5))
def test_any_rho_is_read_within_a_tenth_of_a_percent_of_rank(rho):
    tau = CALIBRATED.threshold(rho).tau
    assert abs((tau < SCORES).mean() - rho) <= 0.001


def test_zero_scores_give_a_gate_that_fires_on_whatever_is_not_zero():
    threshold = calibrate_values(np.zeros(100)).threshold(0.03)
    gate = Gate(threshold.tau, threshold.kappa_threshold_to_mean)
    assert fires_along(gate, torch.tensor([0.0, 0.1, 0.0])).tolist() == [False, True, False]


@pytest.mark.parametrize("rho", [0.0005, 0.6, 0.0, -1.0, float("nan")])
def test_rho_outside_the_file_is_refused(rho):
    with pytest.raises(CalibrationError, match=r"spike_ratio=.* is outside 0\.001\.\.0\.5"):
        CALIBRATED.threshold(rho)


def test_a_target_is_found_by_its_whole_gate(made):
    assert find_target(made, 0.08, METHOD, str) == TARGET
    for rate, method, word in (
        (0.05, METHOD, "ce@0.05"),
        (0.08, METHOD | {"kappa_rule": "tail_to_mean", "window": 5}, "ce:kappa_rule=tail_to_mean:window=5@0.08"),
        (0.08, METHOD | {"score": "js"}, "js@0.08"),
        (0.08, {"policy": "random"}, "random@0.08"),
        (0.08, METHOD | {"policy": "segment", "score": "js", "length": 8}, "segment:score=js:length=8@0.08"),
    ):
        assert name_rate(rate, method) == f" --methods {word}"
        told = r"was not solved for target_rate=.* `the command` and give that file"
        with pytest.raises(CalibrationError, match=told):
            find_target(made, rate, method, lambda: "the command")


def test_a_solved_rate_is_asked_for_by_name():
    from lm_eval_takeover.model import GuidedTakeover

    lm = GuidedTakeover(target_rate=0.05)
    info = lm.get_model_info()["takeover"]
    assert info["target_rate"] == 0.05
    assert lm.policy.gate == GuidedTakeover(spike_ratio=info["spike_ratio"]).policy.gate
    with pytest.raises(CalibrationError, match=r"was not solved for target_rate=0\.05 with js"):
        GuidedTakeover(target_rate=0.05, score="js")


def test_a_published_table_is_read_by_columns():
    published, column = find_calibration("qwen3-0.6b-base+qwen3-8b:2")
    assert (column, published.source, published.default_row) == (2, "published", "GSM8K")
    assert published.published("ce", 2).tau == 0.467
    for column in (0, 4):
        with pytest.raises(CalibrationError, match=r"has columns .*, strictest first"):
            published.published("ce", column)
    with pytest.raises(CalibrationError, match="does not hold score=rkl"):
        published.published("rkl", 1)
