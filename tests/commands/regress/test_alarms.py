"""How often `regress` alarms, and whether it finds what a plan says that it finds: simulations of whole comparisons."""

from dataclasses import replace

import numpy as np
import pytest
from difficulties import table3
from gates import rate_changed
from regression_alarms import PAPER, find_one_drop, make_run, rate_alarms

from lm_eval_takeover.commands.regress.planning import Design, plan
from lm_eval_takeover.commands.regress.verdicts import compare
from lm_eval_takeover.results.problems import Problems


def test_the_number_of_problems_that_a_plan_asks_for_agrees_with_its_power():
    """A good model on few problems, where a reckoning by standard errors alone says a drop that 95 % of runs find."""
    shares = np.random.default_rng(1).binomial(8, np.random.default_rng(2).beta(0.9, 0.1, 40)) / 8
    problems, design = Problems(tuple(map(str, range(40))), 8, {"acc": shares}), Design(0.02, 0.95)
    baseline = make_run({"t": problems})
    solved = make_run({"t": replace(problems, values={"acc": np.ones(40)})})
    for found in [*plan(baseline, design, [0.1, 0.12, 0.15, 0.2]), *plan(solved, design, [0.05, 0.1, 0.2])]:
        assert (found.power >= 0.8) == (found.problems_for_80 <= 40)


def test_a_plan_says_what_the_check_of_several_tasks_finds_and_nothing_of_drops_that_cannot_be():
    """Holm's correction over six tasks and their average: judged alone, the task would find three times as many."""
    generator, cells = np.random.default_rng(9), table3()
    tasks = [(task, cells[2, task], count) for task, count in PAPER.items() if (2, task) in cells]
    planned, found = find_one_drop(generator, tasks, "AIME24", 0.1, 8, 200)
    assert planned == pytest.approx(found, abs=0.1)
    low = Problems(tuple(map(str, range(40))), 8, {"acc": np.repeat([0.5, 0.0], [12, 28])})  # Acc 0.15
    possible, not_possible = plan(make_run({"t": low}), Design(0.02, 0.95), [0.1, 0.2])
    assert possible.power > 0 and (not_possible.power, not_possible.power_whole, not_possible.problems_for_80) == (None,) * 3
    alone, first, _ = plan(make_run({"t": low, "u": low}), Design(0.02, 0.95), [0.1])
    assert alone.power == first.power < possible.power


def test_a_rate_over_tokens_alarms_seldom_where_few_texts_hold_most_tokens():
    """1 % of texts are 40 times as long and nothing changed: with as many degrees of freedom as problems, 15 % alarm."""
    generator, alarms = np.random.default_rng(3), 0
    for _ in range(400):
        sides = []
        for _ in range(2):
            tokens = np.where(generator.random(60) < 0.02, 4000, 100)
            values = {
                "tokens": tokens.astype(float),
                "takeovers": generator.binomial(tokens, generator.beta(1, 19, 60)).astype(float),
            }
            problems = Problems(tuple(map(str, range(60))), 1, values, texts=str(generator.random()))
            sides.append(make_run({"t": problems}))
        alarms += compare(*sides, "realized_rate", 0.0, 0.95)["t"].verdict == "regressed"
    assert alarms <= 0.08 * 400


def test_a_plan_counts_documents_of_one_prompt_as_one():
    shares = np.random.default_rng(1).binomial(8, np.random.default_rng(2).beta(0.9, 0.9, 20)) / 8
    found = []
    for copies, clusters in ((1, ()), (3, tuple(np.arange(20).repeat(3).tolist())), (3, ())):
        problems = Problems(tuple(map(str, range(20 * copies))), 8, {"acc": shares.repeat(copies)}, clusters=clusters)
        found += plan(make_run({"t": problems}), Design(0.02, 0.95), [0.1])
    one, joined, apart = found
    assert joined.power == pytest.approx(one.power, abs=0.03) and apart.power > joined.power + 0.2
    assert joined.problems_for_80 == pytest.approx(3 * one.problems_for_80, rel=0.15)


def test_equal_models_alarm_seldom_and_planted_drops_are_found():
    """A thousand comparisons; `benchmarks/regression_alarms.py` has ten thousand of more kinds."""
    generator, beta = np.random.default_rng(3), table3()[2, "AMC23"]
    alarms, _, points = rate_alarms(generator, beta, "AMC23", 0.0, 0.0, 1000)
    assert alarms <= 0.04 and points > 0.3
    assert rate_alarms(generator, beta, "AMC23", 0.1, 0.0, 1000)[0] >= 0.7


def test_the_exact_test_alarms_seldom_and_finds_what_intervals_find_or_more():
    generator = np.random.default_rng(7)
    assert max(rate_changed(generator, 40, 0.0, 1000)) <= 0.035
    exact, interval, usual = rate_changed(generator, 40, 0.1, 1000)
    assert exact >= max(interval - 0.01, usual + 0.1, 0.3)
