"""The noise of continuations is no effect, and effects are found under it."""

import numpy as np
import polars as pl
import pytest

from lm_eval_takeover.lab.analysis.effects import BEYOND, EFFECTS, Outcomes, Positions


def observe(rng, host, donor, pairs=8):
    """Outcomes of positions that end correctly with these chances, and the raw effects."""
    ends = [rng.random((len(host), pairs)) < np.asarray(chance)[:, None] for chance in (host, donor)]
    gained, lost = ((a & ~b).sum(axis=1) for a, b in (ends[::-1], ends))
    return Outcomes(gained, lost, pairs), (gained - lost) / pairs


@pytest.mark.parametrize("positions", [30, 200])
def test_without_effects_hardly_a_position_is_helpful_or_harmful(positions):
    rng, found, raw = np.random.default_rng(positions), [], []
    for _ in range(40):
        outcomes, effects = observe(rng, *[np.full(positions, 0.5)] * 2)
        found.append(outcomes.fit(np.ones(positions)) @ BEYOND)
        raw.append([(effects > 0.25).mean(), (effects < -0.25).mean()])
    assert (np.mean(found, axis=0) < 0.05).all()
    assert (np.mean(raw, axis=0) > 0.08).all()  # what the raw shares say


def test_without_effects_an_interval_of_few_problems_begins_at_nothing():
    """Ten problems of three positions; where half of the positions are helpful, it does not."""
    rng, lows = np.random.default_rng(3), []
    for effect in (0.0, 0.6):
        for _ in range(20):
            host = rng.beta(0.6, 0.6, 10).repeat(3) * 0.4
            donor = host + effect * (rng.random(30) < 0.5)
            draws = [(rng.random((30, 8)) < chance[:, None]).tolist() for chance in (host, donor)]
            frame = pl.DataFrame({"host": draws[0], "donor": draws[1], "problem": np.arange(10).repeat(3)})
            positions = Positions(frame.with_columns(effect=pl.lit(0.0), inclusion=pl.lit(1.0)))
            lows.append(positions.describe_beyond()["helpful_low"])
    assert np.mean(np.array(lows[:20]) == 0) >= 0.9 and np.mean(np.array(lows[20:]) > 0) >= 0.9


def test_effects_are_found_and_single_ones_are_drawn_to_what_is_likely():
    rng = np.random.default_rng(0)
    good = rng.random(300) < 0.3
    outcomes, raw = observe(rng, np.full(300, 0.2), np.where(good, 0.9, 0.2))
    mixture = outcomes.fit(np.ones(300))
    helpful, harmful = mixture @ BEYOND
    assert helpful == pytest.approx(good.mean(), abs=0.06) and harmful < 0.03
    shrunk = outcomes.expect(mixture, EFFECTS[:, None])[:, 0]
    truth = np.where(good, 0.7, 0)
    assert np.square(shrunk - truth).mean() < 0.5 * np.square(raw - truth).mean()


def test_positions_count_by_their_weight_and_greedy_texts_have_no_noise():
    rng = np.random.default_rng(1)
    outcomes, _ = observe(rng, np.full(200, 0.1), np.repeat([0.1, 0.9], 100))
    weights = np.repeat([9.0, 1.0], 100)
    assert (outcomes.fit(np.stack([np.ones(200), weights])) @ BEYOND)[:, 0] == pytest.approx([0.5, 0.1], abs=0.05)
    outcomes = Outcomes(np.array([1, 0, 0, 0]), np.array([0, 1, 0, 0]), 1, exact=True)
    mixture = outcomes.fit(np.ones(4))
    assert (mixture @ BEYOND).tolist() == pytest.approx([0.25, 0.25])
    assert outcomes.expect(mixture, EFFECTS[:, None])[:, 0] == pytest.approx([1, -1, 0, 0])
