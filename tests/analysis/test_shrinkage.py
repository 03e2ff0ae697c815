"""The noise of continuations is no effect, and effects are found under it."""

import numpy as np
import pytest

from lm_eval_takeover.analysis.effects import BEYOND, EFFECTS, Outcomes


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


def test_effects_are_found_and_single_ones_are_drawn_to_what_is_likely():
    rng = np.random.default_rng(0)
    good = rng.random(300) < 0.3
    outcomes, raw = observe(rng, np.full(300, 0.2), np.where(good, 0.9, 0.2))
    mixture = outcomes.fit(np.ones(300))
    helpful, harmful = mixture @ BEYOND
    assert helpful == pytest.approx(good.mean(), abs=0.06) and harmful < 0.03
    shrunk = outcomes.infer(mixture) @ EFFECTS
    truth = np.where(good, 0.7, 0)
    assert np.square(shrunk - truth).mean() < 0.5 * np.square(raw - truth).mean()


def test_positions_count_by_their_weight():
    rng = np.random.default_rng(1)
    outcomes, _ = observe(rng, np.full(200, 0.1), np.repeat([0.1, 0.9], 100))
    weights = np.repeat([9.0, 1.0], 100)
    assert (outcomes.fit(np.stack([np.ones(200), weights])) @ BEYOND)[:, 0] == pytest.approx([0.5, 0.1], abs=0.05)


def test_greedy_texts_have_no_noise():
    outcomes = Outcomes(np.array([1, 0, 0, 0]), np.array([0, 1, 0, 0]), 1, exact=True)
    mixture = outcomes.fit(np.ones(4))
    assert (mixture @ BEYOND).tolist() == pytest.approx([0.25, 0.25])
    assert outcomes.infer(mixture) @ EFFECTS == pytest.approx([1, -1, 0, 0])
