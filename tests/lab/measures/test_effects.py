"""Effects of single positions: means over problems, scores that tell helpful ones, where the gain sits, and noise."""

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

from lm_eval_takeover.lab.measures.effects import (
    BEYOND,
    EFFECTS,
    Outcomes,
    Positions,
    measure_auroc,
    measure_position,
    nested_mean,
    tabulate_auroc,
    tabulate_by_score,
    tabulate_summary,
)
from lm_eval_takeover.lab.measures.figures import draw
from lm_eval_takeover.results.statistics import paired_difference


def planted(rng, problems=40, positions=5, count=8, strength=1.0):
    """Positions whose effect is `0.7 strength` where `good` is 1, and nothing elsewhere; a problem with more of them has more."""
    rows = []
    for problem in range(problems):
        share = rng.choice([0.1, 0.5])
        for place in range(positions + int(20 * share * (rng.random() < 0.5))):
            good = int(rng.random() < share)
            host = rng.random(count) < 0.3
            donor = rng.random(count) < (0.3 + 0.7 * strength * good)
            row = {"task": "t", "problem": f"t {problem}", "kind": "takeover" if place % 3 else "control"}
            scores = {"good": good + rng.random() / 9, "decision": good, "noise": rng.random(), "inclusion": 0.25 + good / 4}
            lists = {"host": host.tolist(), "donor": donor.tolist()}
            if rng.random() < scores["inclusion"] or not place:
                rows.append(row | scores | lists | {"effect": float(donor.mean() - host.mean())})
    return pl.DataFrame(rows)


def position_frame(host, donor, problems=None):
    frame = pl.DataFrame({"host": host, "donor": donor, "problem": range(len(host)) if problems is None else problems})
    effects = [float(np.mean(d) - np.mean(h)) for h, d in zip(host, donor, strict=True)]
    return Positions(frame.with_columns(effect=pl.Series(effects), inclusion=1.0))


def test_positions_of_one_problem_count_together_and_by_the_inverse_of_their_probability():
    """One position of each problem is a plain paired mean."""
    values = np.random.default_rng(0).normal(size=30).clip(-1, 1)
    plain = paired_difference(values, 8).interval()
    nested = nested_mean(values, np.arange(30), 8)
    assert (nested.value, nested.low, nested.high) == pytest.approx((plain.value, plain.low, plain.high))
    values = np.repeat(np.random.default_rng(0).normal(size=20).clip(-1, 1) / 2, 6)
    together = nested_mean(values, np.repeat(np.arange(20), 6), 8)
    apart = nested_mean(values, np.arange(120), 8)
    assert together.value == pytest.approx(apart.value)
    assert together.high - together.low > 2 * (apart.high - apart.low)
    assert nested_mean(values, np.zeros(120), 8).low == -1
    assert nested_mean(np.array([1.0, 1, 0, 0]), np.arange(4), 8, np.array([1.0, 1, 3, 3])).value == 0.25


def test_the_interval_of_a_mean_effect_covers():
    """In a world where problems that gain more have more positions; half of the positions are drawn, good ones more often."""
    # The first position of a problem is always drawn, so it counts by its weight: 2 for a good one, 4 for another.
    goods, weights = zip(*((share * (n + 1), n + 3 - 2 * share) for share, n in ((0.1, 6), (0.5, 10))), strict=True)
    rng, truth = np.random.default_rng(1), 0.7 * sum(goods) / sum(weights)
    found = [Positions(planted(rng)).mean() for _ in range(60)]
    assert sum(one.low <= truth <= one.high for one in found) >= 52  # of 57 on average: 3 standard deviations


def test_a_score_that_knows_the_effects_is_told_from_one_that_does_not():
    """Scores that know the true decisions, alone or in an order of their own, have 1, and a random one 1/2; intervals cover."""
    rng, areas = np.random.default_rng(2), []
    for _ in range(10):
        table = tabulate_auroc(planted(rng), ["good", "decision", "noise"]).filter(kind="all")
        areas.append(table.select("auroc", "low", "high").to_numpy())
    good, decision, noise = np.array(areas).transpose(1, 0, 2)
    for known in (good, decision):
        assert known[:, 0].mean() > 0.97 and (known[:, 2] > 0.99).mean() >= 0.9 and known[:, 1].mean() > 0.9
    assert abs(noise[:, 0].mean() - 0.5) < 0.06 and ((noise[:, 1] < 0.5) & (noise[:, 2] > 0.5)).mean() >= 0.8
    bins = tabulate_by_score(planted(rng), ["good", "noise"]).filter(kind="all")
    good = bins.filter(score="good")
    assert good["positions"].sum() == bins.filter(score="noise")["positions"].sum() and len(good) == 10
    assert good["effect"][-1] > 0.5 > 0.2 > abs(good["effect"][0])
    assert (good["left"] <= good["right"]).all() and good["left"].is_sorted()


def test_a_score_between_a_random_one_and_the_effects_is_not_overstated():
    """Many effects lie close to 25 points, where it is open which are helpful."""
    rng, found, truth = np.random.default_rng(5), [], []
    for _ in range(20):
        effects = rng.beta(0.5, 1.0, 150)
        values = effects + rng.normal(0, 0.4, 150)
        draws = [(rng.random((150, 8)) < chance[:, None]).tolist() for chance in (0 * effects, effects)]
        found.append(measure_auroc(position_frame(*draws), values))
        above = values[effects > 0.25][:, None] > values[effects <= 0.25]
        truth.append(above.mean())
    areas = np.array(found)
    assert abs(areas[:, 0].mean() - np.mean(truth)) < 0.03
    assert sum(low <= np.mean(truth) <= high for _, low, high in found) >= 16


def test_an_auroc_is_null_where_nothing_is_known_and_has_no_interval_within_one_problem():
    """With one pair of continuations, and where no position is helpful."""
    frame = planted(np.random.default_rng(6))
    alone = tabulate_auroc(frame.with_columns(problem=pl.lit("one")), ["decision"]).filter(kind="all").row(0)
    assert alone[3] > 0.9 and alone[4:] == (None, None)
    nothing = [planted(np.random.default_rng(seed), strength=0) for seed in range(10)]
    assert sum(tabulate_auroc(one, ["noise"]).row(0)[3:] == (None, None, None) for one in nothing) >= 8
    first = frame.with_columns(pl.col("host", "donor").list.head(1))
    assert measure_auroc(Positions(first), first["decision"].to_numpy()) == (None, None, None)


def test_kinds_and_tasks_have_rows_of_their_own_and_populations_add_up():
    frame = planted(np.random.default_rng(4))
    both = pl.concat([frame, frame.with_columns(task=pl.lit("u"), problem="u" + pl.col("problem"))])
    table = {(row["task"], row["kind"]): row for row in tabulate_summary(both).rows(named=True)}
    assert set(table) == {(task, kind) for task in ("t", "u", "all") for kind in ("takeover", "control", "all")}
    for kind in ("takeover", "control", "all"):
        assert table["all", kind]["population"] == pytest.approx(2 * table["t", kind]["population"])
        assert table["all", kind]["effect"] == pytest.approx(table["t", kind]["effect"])
    assert sum(table["t", kind]["population"] for kind in ("takeover", "control")) == table["t", "all"]["population"]


def test_equal_scores_stay_in_one_bin_and_unknown_ones_in_none():
    positions = planted(np.random.default_rng(3), problems=10)
    positions = positions.with_columns(flat=pl.lit(1.0), unknown=pl.lit(float("nan")))
    bins = tabulate_by_score(positions, ["flat", "unknown"]).filter(kind="all")
    assert bins.select("score", "positions").rows() == [("flat", len(positions))]
    assert tabulate_auroc(positions, ["unknown"]).is_empty()


def test_the_share_that_brings_most_of_the_gain():
    def share(host, donor):
        return position_frame(host, donor).share_of_gain()

    none, all_right = [False] * 8, [True] * 8
    assert share([none] * 10, [all_right] * 2 + [none] * 8) == 0.2  # 80 % of 2 is both
    assert share([none] * 10, [all_right] * 10) == 0.8
    assert share([all_right] * 10, [none] * 10) is None
    assert share([none], [all_right]) is None


def test_chance_alone_does_not_look_like_a_few_large_effects():
    """Half of the continuations put positions in order, the other half adds up."""
    rng = np.random.default_rng(4)
    draws = rng.random((2, 400, 8)) < np.array([0.45, 0.55])[:, None, None]
    assert position_frame(*draws.tolist()).share_of_gain() > 0.6  # by the same draws it would be 0.2


def test_a_position_has_counts_and_an_interval_within_bounds():
    assert measure_position([False, True], [True, True]) == {
        "correct_host": 1, "correct_donor": 2, "continuations": 2, "effect": 0.5, "low": -1.0, "high": 1.0,
    }  # fmt: skip
    alone = measure_position([False], [True])
    assert (alone["effect"], alone["low"], alone["high"]) == (1.0, -1.0, 1.0)


def test_the_picture_weights_positions_as_the_tables_do():
    draw("effects", pl.DataFrame({"kind": "control", "effect": [0.0, 1.0], "inclusion": [0.5, 0.1]}), figure := Figure())
    heights = figure.axes[0].patches[0].get_xy()[:, 1]
    assert sorted(set(heights.round(6))) == pytest.approx([0, 2 / 12, 10 / 12], abs=1e-6)


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
            lows.append(position_frame(*draws, np.arange(10).repeat(3)).describe_beyond()["helpful_low"])
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
