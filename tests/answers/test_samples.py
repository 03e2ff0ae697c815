"""All samples of a problem in one process: answers, outcomes, majority, and what a response may raise."""

import logging
from functools import cache
from itertools import permutations

import pytest
from helpers.tables import read_table

from lm_eval_takeover.answers import samples
from lm_eval_takeover.answers.samples import Question, judge_samples, run_here


def ask(gold, answers, **options):
    responses = [rf"\boxed{{{answer}}}" if answer else "no idea" for answer in answers]
    return Question(gold, responses, [False] * len(responses), **options)


run_once = cache(run_here)


def majority(answers):
    judged = judge_samples(ask("none", answers), run_once)
    return None if judged.majority is None else judged.samples[judged.majority].answer


def test_responses_are_read_and_judged():
    """Known ways in which scorers of mathematical answers fail."""
    for gold, response, outcome in read_table("judged_responses"):
        assert judge_samples(Question(gold, [response], [False])).samples[0].outcome == outcome, response


@pytest.mark.parametrize(
    ("problem", "gold", "answer", "outcome"),
    [
        (r"Compute $\sin 60^\circ$.", r"\frac{\sqrt{3}}{2}", r"\sin 60^\circ", "restated"),
        ("What is 54 * 46?", "2484", r"54\times46", "restated"),
        ("Factor the expression $ab+5b+2a+10$.", "(a+5)(b+2)", "ab + 5b + 2a + 10", "restated"),
        (r"Evaluate $x = \dbinom{31}{28}$", "4495", r"\binom{31}{28}", "restated"),
        ("Each of $8$ boxes holds $0.75$ pounds. How much is in one, as a fraction?", r"\frac{3}{4}", "0.75", "restated"),
        ("A jug of 0.75 liters. What part of a liter is it?", r"\frac{3}{4}", "0.75", "restated"),
        (r"Evaluate $2 + 17 \cdot 23 - 2$.", "391", r"17 \times 23", "restated"),
        ("He saved a 12.5% share.", r"\frac{1}{8}", "12.5%", "restated"),
        ("Only 20% of them came. How many?", "20", r"20\%", "restated"),
        ("It was 60% last year. What percentage is it?", "60", r"60\%", "correct"),
        ("[asy] pen(0.75); [/asy] Which part is grey?", r"\frac{3}{4}", "0.75", "correct"),
        ("Expand $(x+1)^2$.", "x^2+2x+1", "x^2 + 2x + 1", "correct"),
        ("Which is larger, $1/2$ or $1/3$?", r"\frac{1}{2}", "1/2", "correct"),
        ("Where does $y = x + 1$ meet the axis? Give $x^2 + 1$.", "x^2+1", "x^2 + 1", "correct"),
        ("Simplify $\\sqrt{8}$.", r"2\sqrt{2}", r"2 \cdot \sqrt{2}", "correct"),
    ],
)
def test_an_expression_of_the_problem_is_no_answer_to_it_and_has_no_vote(problem, gold, answer, outcome):
    question = Question(gold, [rf"\boxed{{{answer}}}"] * 2 + [r"\boxed{7}"], [False] * 3, problem=problem)
    judged = judge_samples(question, run_here)
    assert [sample.outcome for sample in judged.samples] == [outcome] * 2 + ["incorrect"]
    assert judged.majority == (2 if outcome == "restated" else 0)


def test_majority_counts_equal_answers_together_and_ties_go_to_the_first():
    assert majority(["1/2", "3", "0.5", None]) == "0.5"  # the class of one half, by its first text in sorted order
    assert majority(["3", "1/2", "0.5", "3.0"]) == "3"
    assert majority(["1/2", "3", "3.0", "0.5"]) == "0.5"
    assert majority([None, None]) is None
    assert majority([r"\sqrt{8}", "5", r"2\sqrt{2}", "5 cm", r"2 \cdot \sqrt{2}"]) == r"2 \cdot \sqrt{2}"
    assert majority([r"28\%", "28", "0.28"]) == "28"  # 28% votes with 28, not with both


def test_the_order_of_samples_decides_nothing_but_ties():
    answers = [r"\sqrt{8}", r"2\sqrt{2}", "3", "3.0", "3 cm", None]
    assert {majority(order) for order in permutations(answers)} == {"3"}


def test_an_answer_is_judged_once_and_what_timed_out_is_compared_with_no_other():
    steps = []

    def run(step):
        if step.name == "read":
            return run_here(step)
        steps.append(step.arguments)
        return (None, "timed_out", None) if "t" in "".join(step.arguments[:2]) else run_here(step)

    hung = [f"t_{number}" for number in range(6)]
    judged = judge_samples(ask("7", [*hung, "5", "5"]), run)
    assert [sample.outcome for sample in judged.samples] == ["timed_out"] * 6 + ["incorrect"] * 2
    assert steps == [("7", answer, 0.0) for answer in [*hung, "5"]]
    assert judged.samples[judged.majority].answer == "5"


@pytest.mark.parametrize("failing", ["read_answer", "canonicalise", "verify", "verdict_by_text", "strip_thinking"])
def test_what_reading_or_judging_raises_is_the_outcome_of_one_response(monkeypatch, caplog, failing):
    module = next(m for m in (samples, samples.extraction, samples.verification) if hasattr(m, failing))
    plain = getattr(module, failing)

    def fail(*arguments):
        if any("1313" in str(argument) for argument in arguments):
            raise IndexError("no such group")
        return plain(*arguments)

    monkeypatch.setattr(module, failing, fail)
    with caplog.at_level(logging.WARNING):
        judged = judge_samples(ask(r"\sqrt{8}", [r"1313\sqrt{2}", r"2\sqrt{2}", r"\sqrt{3}"]))
    assert [sample.outcome for sample in judged.samples] == ["unparsed", "correct", "incorrect"]
    assert "IndexError while a response was judged; it counts as unparsed" in caplog.text


@pytest.mark.parametrize(
    ("verifier", "outcomes"),
    [
        ("takeover", ["correct", "correct", "correct", "correct"]),
        ("boxed", ["correct", "no_answer", "no_answer", "correct"]),
        ("last_number", ["correct", "correct", "incorrect", "correct"]),
        ("exact_match", ["correct", "correct", "correct", "incorrect"]),
    ],
)
def test_scorers_differ_where_their_rules_do(verifier, outcomes):
    responses = [r"\boxed{70}", "So she has 70.", "The answer is 70. She needs 3 days for it.", r"So \boxed{70.0}"]
    judged = judge_samples(Question("70", responses, [False] * 4, verifier=verifier))
    assert [sample.outcome for sample in judged.samples] == outcomes
