"""pass@k, majority and the metrics of one problem."""

from itertools import combinations

import pytest

from lm_eval_takeover.errors import TakeoverError
from lm_eval_takeover.metrics import majority, pass_at_k, score_samples


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
    assert majority(["1/2", "3", "0.5", None]) == "1/2"
    assert majority(["3", "1/2", "0.5", "3.0"]) == "3"
    assert majority([None, None]) is None


def test_the_metrics_of_one_problem():
    responses = [r"\boxed{4}"] * 3 + [r"\boxed{5}"] * 4 + ["none"]
    assert score_samples("4", responses, "p") == {
        "acc": 3 / 8, "pass@1": pytest.approx(3 / 8), "pass@2": pytest.approx(1 - 10 / 28),
        "pass@4": pytest.approx(1 - 5 / 70), "pass@8": 1.0, "maj@8": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize("count", [0, 7, 9])
def test_another_number_of_samples_is_an_error_that_names_the_problem(count):
    with pytest.raises(TakeoverError, match=f"problem 3 has {count} samples, expected 8"):
        score_samples("4", ["x"] * count, "problem 3")
