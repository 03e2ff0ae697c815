"""pass@k, majority and the metrics of one problem."""

import json
import math
import pickle
from itertools import combinations

import pytest

from lm_eval_takeover.tasks.metrics import accuracy_of_completed, pass_at_k, score_samples
from lm_eval_takeover.tasks.verdicts import (
    Response,
    get_think_end,
    get_verdict_log,
    get_verifier,
    scoring_by,
    set_verdict_log,
)


@pytest.mark.parametrize("n", range(1, 9))
def test_pass_at_k_equals_enumeration(n):
    for correct in range(n + 1):
        samples = [True] * correct + [False] * (n - correct)
        for k in range(1, n + 1):
            drawn = list(combinations(samples, k))
            assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, drawn)) / len(drawn))


@pytest.mark.parametrize(("n", "correct", "k"), [(8, 9, 1), (8, -1, 1), (8, 1, 9), (8, 1, 0)])
def test_pass_at_k_of_what_cannot_be(n, correct, k):
    with pytest.raises(ValueError, match="is not defined"):
        pass_at_k(n, correct, k)


def test_the_metrics_of_one_problem():
    responses = [r"\boxed{4}"] * 3 + [r"\boxed{5}"] * 3 + ["no idea", r"<think> \boxed{\frac{1}{}"]
    samples, metrics = score_samples("4", responses)
    assert [sample.answer for sample in samples] == ["4"] * 3 + ["5"] * 3 + [None] * 2
    assert [sample.outcome for sample in samples] == ["correct"] * 3 + ["incorrect"] * 3 + ["no_answer"] * 2
    assert metrics == {
        "acc": 3 / 8, "acc_boxed": 3 / 8, "acc_completed": (3, 7), "unboxed": 0.0, "truncated": 0.125,
        "pass@1": pytest.approx(3 / 8), "pass@2": pytest.approx(1 - 10 / 28),
        "pass@4": pytest.approx(1 - 5 / 70), "pass@8": 1.0, "maj@8": 1.0,
        "no_answer": 0.25, "restated": 0.0, "unparsed": 0.0, "timed_out": 0.0, "unclosed_think": 0.125,
    }  # fmt: skip


def test_samples_without_an_answer_do_not_vote_and_none_at_all_is_incorrect():
    _, metrics = score_samples("4", ["no idea"] * 6 + [r"\boxed{4}", r"\boxed{\frac{}{}}"])
    assert (metrics["maj@8"], metrics["no_answer"], metrics["unparsed"]) == (1.0, 0.75, 0.125)
    assert score_samples("4", ["no idea"] * 8)[1]["maj@8"] == 0.0


def test_what_its_model_calls_cut_off_is_cut_off_whatever_the_text_shows():
    cut, whole = Response("It is", truncated=True), Response(r"<think> \boxed{4}", truncated=False)
    _, metrics = score_samples("4", [cut, whole, r"\boxed{4}", "<think> so"])
    assert (metrics["truncated"], metrics["acc_completed"]) == (0.5, (2, 2))
    assert (metrics["acc"], metrics["unclosed_think"]) == (0.5, 0.5)


def test_thinking_ends_at_the_token_of_its_model():
    response = "maybe \\boxed{41} [END] So it is 42."
    for end, outcome in (("[END]", "correct"), ("", "incorrect")):
        assert score_samples("42", [response], think_end=end)[0][0].outcome == outcome


def test_problems_without_a_completed_sample_count_for_nothing():
    assert accuracy_of_completed([(0, 0), (3, 4), (0, 2)]) == 0.5
    assert math.isnan(accuracy_of_completed([(0, 0), (0, 0)]))


def test_a_response_is_its_text_and_survives_pickling():
    response = pickle.loads(pickle.dumps(Response("text", truncated=True)))
    assert (response, response.truncated, json.dumps([response])) == ("text", True, '["text"]')


def test_verdicts_are_not_logged_inside_of_the_block_only():
    before = set_verdict_log(log := object())
    with scoring_by("math_verify", "[END]"):
        assert (get_verifier(), get_think_end(), get_verdict_log()) == ("math_verify", "[END]", None)
    assert (get_verifier(), get_think_end(), get_verdict_log()) == ("takeover", "", log)
    before.var.reset(before)
