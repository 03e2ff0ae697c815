"""pass@k, majority and the metrics of one problem."""

from itertools import combinations, permutations

import pytest

from lm_eval_takeover.answers.verification import verify
from lm_eval_takeover.errors import TakeoverError
from lm_eval_takeover.tasks.metrics import majority, pass_at_k, score_samples


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


def test_majority_counts_equal_answers_together_and_ties_go_to_the_first():
    assert (
        majority(["1/2", "3", "0.5", None], verify) == "0.5"
    )  # the class of one half, by its first text in sorted order
    assert majority(["3", "1/2", "0.5", "3.0"], verify) == "3"
    assert majority(["1/2", "3", "3.0", "0.5"], verify) == "0.5"
    assert majority([None, None], verify) is None
    assert majority([r"\sqrt{8}", "5", r"2\sqrt{2}", "5 cm", r"2 \cdot \sqrt{2}"], verify) == r"2 \cdot \sqrt{2}"
    assert majority([r"28\%", "28", "0.28"], verify) == "28"  # 28% votes with 28, not with both


def test_the_order_of_samples_decides_nothing_but_ties():
    answers = [r"\sqrt{8}", r"2\sqrt{2}", "3", "3.0", "3 cm", None]
    assert {majority(order, verify) for order in permutations(answers)} == {"3"}


def test_the_metrics_of_one_problem():
    responses = [r"\boxed{4}"] * 3 + [r"\boxed{5}"] * 3 + ["no idea", r"<think> \boxed{\frac{1}{}"]
    scored = score_samples("4", responses, "p", verify)
    assert scored.answers == ["4"] * 3 + ["5"] * 3 + [None] * 2
    assert scored.outcomes == ["correct"] * 3 + ["incorrect"] * 3 + ["no_answer"] * 2
    assert scored.majority == "4"
    assert scored.metrics == {
        "acc": 3 / 8, "pass@1": pytest.approx(3 / 8), "pass@2": pytest.approx(1 - 10 / 28),
        "pass@4": pytest.approx(1 - 5 / 70), "pass@8": 1.0, "maj@8": 1.0,
        "no_answer": 0.25, "unparsed": 0.0, "timed_out": 0.0, "unclosed_think": 0.125,
    }  # fmt: skip


def test_samples_without_an_answer_do_not_vote_and_none_at_all_is_incorrect():
    scored = score_samples("4", ["no idea"] * 6 + [r"\boxed{4}", r"\boxed{\frac{}{}}"], "p", verify)
    assert (scored.metrics["maj@8"], scored.metrics["no_answer"], scored.metrics["unparsed"]) == (1.0, 0.75, 0.125)
    assert score_samples("4", ["no idea"] * 8, "p", verify).metrics["maj@8"] == 0.0


@pytest.mark.parametrize("count", [0, 7, 9])
def test_another_number_of_samples_is_an_error_that_names_the_problem(count):
    with pytest.raises(TakeoverError, match=f"problem 3 has {count} samples, expected 8"):
        score_samples("4", ["x"] * count, "problem 3", verify)
