"""Effects of single positions: means over problems, scores that tell helpful ones, where the gain sits, and noise."""

import numpy as np
import polars as pl
import pytest
from effect_intervals import SCORES, measure

from lm_eval_takeover.lab.measures.effects import (
    BEYOND,
    EFFECTS,
    Outcomes,
    Positions,
    measure_auroc,
    nested_mean,
    tabulate_auroc,
    tabulate_by_score,
    tabulate_summary,
)
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


def position_frame(host, donor):
    frame = pl.DataFrame({"host": host, "donor": donor, "problem": range(len(host))})
    effects = [float(np.mean(d) - np.mean(h)) for h, d in zip(host, donor, strict=True)]
    return Positions(frame.with_columns(effect=pl.Series(effects), inclusion=1.0))


def test_positions_of_one_problem_count_together_and_by_the_inverse_of_their_probability():
    """One position of each problem is a plain paired mean."""
    values = np.random.default_rng(0).normal(size=30).clip(-1, 1)
    plain = paired_difference(values).interval()
    nested = nested_mean(values, np.arange(30))
    assert (nested.value, nested.low, nested.high) == pytest.approx((plain.value, plain.low, plain.high))
    values = np.repeat(np.random.default_rng(0).normal(size=20).clip(-1, 1) / 2, 6)
    together = nested_mean(values, np.repeat(np.arange(20), 6))
    apart = nested_mean(values, np.arange(120))
    assert together.value == pytest.approx(apart.value)
    assert together.high - together.low > 2 * (apart.high - apart.low)
    assert nested_mean(values, np.zeros(120)).low == -1
    assert nested_mean(np.array([1.0, 1, 0, 0]), np.arange(4), np.array([1.0, 1, 3, 3])).value == 0.25


@pytest.mark.parametrize("world", ["none", "tied", "clear"])
def test_figures_hold_in_simulated_worlds(world):
    """Of the committed simulation at a small size: nothing to find; more positions where problems gain more; true decisions."""
    found = measure(world, 30, 4, 30)
    assert min(found["mean"], found["helpful covered"], found["harmful covered"]) >= 0.83
    if world == "none":
        assert max(found["helpful"], found["harmful"]) < 0.03 < 0.045 < min(found["raw helpful"], found["raw harmful"])
        return
    assert abs(found["helpful"] - found["true helpful"]) < 0.06 and abs(found["harmful"] - found["true harmful"]) < 0.04
    for score in SCORES:
        assert found[f"auroc {score} covered"] >= 0.8, score
        assert found[f"median auroc {score}"] == pytest.approx(found[f"true auroc {score}"], abs=0.07), score
    assert found["auroc effect"] > found["auroc near"] > found["auroc random"] + 0.1


def test_bins_by_score_rise_with_the_effect_equal_scores_are_in_one_and_unknown_ones_in_none():
    positions = planted(np.random.default_rng(2)).with_columns(flat=pl.lit(1.0), unknown=pl.lit(float("nan")))
    bins = tabulate_by_score(positions, ["good", "flat", "unknown"]).filter(kind="all")
    good = bins.filter(score="good")
    assert bins.filter(pl.col("score") != "good").select("score", "positions").rows() == [("flat", len(positions))]
    assert good["positions"].sum() == len(positions) and len(good) == 10 and tabulate_auroc(positions, ["unknown"]).is_empty()
    assert good["effect"][-1] > 0.5 > 0.2 > abs(good["effect"][0])
    assert (good["left"] <= good["right"]).all() and good["left"].is_sorted()


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


def test_positions_count_by_their_weight_and_greedy_texts_have_no_noise():
    right = np.random.default_rng(1).random((2, 200, 8)) < np.array([np.full(200, 0.1), np.repeat([0.1, 0.9], 100)])[..., None]
    outcomes = Outcomes(*((a & ~b).sum(axis=1) for a, b in (right[::-1], right)), 8)
    weights = np.repeat([9.0, 1.0], 100)
    assert (outcomes.fit(np.stack([np.ones(200), weights])) @ BEYOND)[:, 0] == pytest.approx([0.5, 0.1], abs=0.05)
    outcomes = Outcomes(np.array([1, 0, 0, 0]), np.array([0, 1, 0, 0]), 1, exact=True)
    mixture = outcomes.fit(np.ones(4))
    assert (mixture @ BEYOND).tolist() == pytest.approx([0.25, 0.25])
    assert outcomes.expect(mixture, EFFECTS[:, None])[:, 0] == pytest.approx([1, -1, 0, 0])
