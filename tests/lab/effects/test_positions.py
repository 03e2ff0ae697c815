"""Which positions are chosen: with known probabilities, even over scores and places, with the numbers that the run had."""

import numpy as np
import pytest
from helpers.demo_runs import run_demo

from lm_eval_takeover.commands._stored_pair import Readers, restore_arguments
from lm_eval_takeover.lab.effects.measuring import Form, Writer
from lm_eval_takeover.lab.effects.positions import choose_evenly, list_candidates
from lm_eval_takeover.method.policies import ALONE
from lm_eval_takeover.runs.run_reader import read_run_folder

ROW = [("score", "f4"), ("place", "f4")]


def make_rows(count):
    rng, rows = np.random.default_rng(0), np.zeros(count, ROW)
    rows["score"], rows["place"] = rng.random(count), rng.random(count)
    return rows


def test_the_choice_is_even_over_scores_and_places():
    rows = make_rows(4000)
    chosen, inclusion = choose_evenly(rows, np.ones(4000), 400, seed=1)
    assert len(chosen) == 400 and (np.diff(chosen) > 0).all() and set(inclusion) == {0.1}
    for name in ("score", "place"):
        quarters = np.histogram(rows[name][chosen], 4, (0, 1))[0]
        assert (abs(quarters - 100) < 15).all(), quarters
    same, other = (choose_evenly(rows, np.ones(4000), 400, seed)[0] for seed in (1, 2))
    assert same.tolist() == chosen.tolist() != other.tolist()
    assert choose_evenly(rows[:5], np.ones(5), 400, seed=1)[1].tolist() == [1] * 5


def test_each_row_is_drawn_as_often_as_its_probability_says():
    rows, sizes = make_rows(60), np.random.default_rng(1).exponential(size=60)
    counts, stated = np.zeros(60), np.zeros(60)
    for seed in range(2000):
        chosen, inclusion = choose_evenly(rows, sizes, 12, seed)
        counts[chosen] += 1
        stated[chosen] = inclusion
    np.testing.assert_allclose(counts / 2000, stated, atol=0.05)
    # So sums over the population are right on average, whatever is summed.
    assert (counts / 2000 / stated * rows["score"]).sum() == pytest.approx(rows["score"].sum(), rel=0.05)


def test_the_model_that_was_not_asked_draws_with_the_numbers_of_the_run(strict_run, tmp_path):
    """Asked again at the takeovers of a gate, both models draw what its trace says; at random takeovers the host is asked."""
    run_demo(tmp_path / "random", 1, {"policy": "random", "rate": 0.1})
    run = read_run_folder(strict_run)
    form = Form.of(run)
    candidates = list_candidates(run, form.limit)
    taken = candidates["takeover"].choose(20, 0, None)
    readers = Readers(restore_arguments(run, {"batch_size": "64"}))
    writer = Writer(tmp_path / "written", readers, 0)
    requests = [form.next_token(one) for one in taken]
    for role, tokens in ((run.host, [one.host_token for one in taken]), (run.donor, [one.donor_token for one in taken])):
        assert writer.draw(ALONE[role](), requests) == tokens
    controls = candidates["control"].choose(
        6, 0, lambda them: writer.draw(ALONE[run.donor](), [form.next_token(one) for one in them])
    )
    assert len(controls) == 6 and all(one.host_token != one.donor_token for one in controls)
    assert sum(1 / one.inclusion for one in controls) == pytest.approx(candidates["control"].expected, rel=0.8)
    random = read_run_folder(tmp_path / "random")
    form = Form.of(random)
    takeovers = list_candidates(random, form.limit)["takeover"]
    found = takeovers.choose(400, 0, lambda them: writer.draw(ALONE[run.host](), [form.next_token(one) for one in them]))
    assert np.isnan(takeovers.expected) and 0 < len(found) < len(takeovers.rows) / 3
    writer.run.close()
    readers.close()
