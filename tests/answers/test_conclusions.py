"""What the last sentence of a response without a box concludes with, and that its near misses conclude with nothing of it."""

import re
import time
from pathlib import Path

import pytest
import yaml
from helpers.pairs import ROOT
from helpers.stated_answers import JUDGED, LETTERS, RUN_ON, STATED
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.answers.conclusions import find_conclusion
from lm_eval_takeover.answers.extraction import extract_answer, has_unclosed_think
from lm_eval_takeover.answers.letters import extract_letter
from lm_eval_takeover.answers.prompts import HEADERS, cut_run_on
from lm_eval_takeover.answers.sentences import VALUE, mask_values, split_sentences
from lm_eval_takeover.answers.verification import verify


def is_correct(gold, response):
    answer = extract_answer(response)
    return answer is not None and verify(gold, answer).correct


def is_stated(gold, response):
    return extract_letter(response) == gold if re.fullmatch("[A-J]", gold) else is_correct(gold, response)


@pytest.mark.parametrize(("gold", "response", "near_miss"), [*STATED, *RUN_ON])
def test_a_value_that_is_stated_counts_and_its_near_miss_does_not(gold, response, near_miss):
    assert is_correct(gold, response)
    assert not is_correct(gold, near_miss)


@pytest.mark.parametrize("kind", sorted({row[0] for row in JUDGED}))
def test_judged_statements_are_decided_as_is_noted(kind):
    """All rows of a kind in one test, those that differ listed: one test each would take longer to collect than to run."""
    otherwise = [
        (decided, gold, response)
        for of_kind, gold, response, _, decided in JUDGED
        if of_kind == kind and decided != ("accept" if is_stated(gold, response) else "refuse")
    ]
    assert otherwise == []


def test_few_judged_statements_are_decided_otherwise():
    wrong = [verdict for *_, verdict, decided in JUDGED if decided != verdict]
    assert (len(JUDGED), len(wrong), wrong.count("refuse")) == (2105, 55, 1)


def test_a_calculation_states_its_result():
    assert is_correct("90", "Dante needs 30 + 60 = 90 eggs.")
    assert is_correct(
        "45", "Take those from the total to find what he keeps: 180 tadpoles - 135 tadpoles = 45 tadpoles"
    )
    assert is_correct("-1", "The determinant is $ad - bc = 2 - 3 = -1$.")
    assert is_correct("60", "We see that\n\\begin{align*}\n\\sqrt{3600} &= \\sqrt{60^2} \\\\\n&= 60.\n\\end{align*}")
    assert is_correct("5x - 7y + 4 = 0", "We simplify.\nTherefore we get\n\\[ 5x - 7y + 4 = 0 \\]")
    assert is_correct("460", "So the earnings are $400 + $60 = $<<400+60=460>>460.")  # as GSM8K's solutions write it
    assert is_correct("6", "There are 3! = 6 arrangements.")
    assert is_correct("1, 5", "Factoring gives (x - 1)(x - 5) = 0, so x = 1 or x = 5.")
    assert not is_correct("1, 5", "Factoring gives (x - 1)(y - 5) = 0, so x = 1 or y = 5.")
    assert not is_correct("6", "We divide, so $3x = 6$.")
    assert not is_correct("6", "Subtract 4:\n\n**3x = 6**")
    assert not is_correct("12", "3 * 4 = 12 + 5.")


def test_what_a_supposition_would_come_to_is_no_answer():
    assert is_correct("16", "The jar holds 2 cups. Two of them would contain 16 ounces.")
    for supposed in ("Suppose the jar were full.", "If the jar were full it would be heavy.", "If only it were full!"):
        assert not is_correct("16", f"{supposed} The jar would contain 16 ounces.")


def test_a_number_in_words_behind_the_digits_is_read():
    assert is_correct("35", "They split the 70 dollar bill, so each one owes thirty-five dollars.")
    assert not is_correct("70", "They split the 70 dollar bill, so each one owes thirty-five dollars.")
    assert not is_correct("12", "He bought 12 apples and ate three.")
    assert is_correct("14", "So the tree is 14 feet tall now, ten years after it was planted.")


def test_the_table_is_large_and_has_no_duplicates():
    assert len(STATED) + len(LETTERS) + len(RUN_ON) >= 300
    assert len({response for _, *both in STATED for response in both}) == 2 * len(STATED)


@given(
    st.integers(-(10**6), 10**6),
    st.sampled_from(["Is the total {}?", "Suppose the total is {}.", "The total is not {}."]),
)
def test_no_value_is_taken_from_a_question_a_supposition_or_a_denial(value, sentence):
    assert find_conclusion(sentence.format(value)) is None
    assert find_conclusion(f"So the total is {value}.") == str(value)


def test_no_number_is_picked_from_running_text():
    for text in (
        "He walked on for 5 miles and 3 more, then 2.",
        "We try 3, then 5, then 42.",
        "It stands on page 12.",
        "Step 3.",
    ):
        assert extract_answer(text) is None


def test_prices_are_no_mathematics():
    assert mask_values("He pays $5 and she pays $10.").values == ["$5", "$10"]
    assert mask_values("It is $5$ or $x+1$.").text == f"it is {VALUE} or {VALUE}."


def test_sentences_end_at_full_stops_only():
    assert len(split_sentences("It is 5 sq. ft. of $a. b$ at 3.5 dollars. Done here.")) == 2


def test_time_is_linear_in_the_response():
    for unit in (
        "is 5 ",
        "so is is ",
        "**5** ",
        "not 5, but ",
        "(5) ",
        "the the ",
        "who not ",
        "5. ",
        "$5 ",
        "a, ",
        "Problem: ",
        " eggs for the day",
        ", which the man has",
        " in 5 boxes",
    ):
        start = time.perf_counter()
        extract_answer(unit * (200_000 // len(unit)))
        extract_answer("So it " + unit * (380 // len(unit)))
        extract_answer("So it is 5 eggs" + unit * (360 // len(unit)) + " 7 wrong")
        assert time.perf_counter() - start < 2


def test_a_response_ends_where_it_invents_the_next_problem():
    assert cut_run_on("\\boxed{5}\n\nProblem: next") == "\\boxed{5}\n\n"
    assert cut_run_on("The total is 5.\n Problem: next") == "The total is 5.\n"
    assert extract_answer("We restate it. Problem: how many? So it is \\boxed{5}.") == "5"  # in mid-line it is a word
    assert cut_run_on("Problem: restated.\nSolution: 5") == "Problem: restated.\nSolution: 5"
    thought = "<think>\nIt is 5.\n</think>\nProblem: restated with 3.\nSolution: \\boxed{5}"
    assert cut_run_on(thought) == thought  # no answer was possible between the thinking and the header
    assert cut_run_on(thought + "\n\nProblem: next \\boxed{6}").endswith("\\boxed{5}\n\n")
    assert extract_answer("Let us begin.\nProblem: restated.\nSolution: \\boxed{5}") == "5"
    assert extract_answer("\\boxed{5}, a typical word problem: see above") == "5"
    assert cut_run_on("a\n<think>\nProblem: b</think>c") == "a\n<think>\nProblem: b</think>c"
    assert cut_run_on("a\nProblem: b</think>c") == "a\nProblem: b</think>c"
    assert not has_unclosed_think("\\boxed{5}\n\nProblem: next <think> hm")


def test_headers_are_those_of_the_tasks_prompts():
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda *_: None)
    prompts = [
        yaml.load(Path(path).read_text(), Loader).get("doc_to_text") for path in (ROOT / "task_configs").glob("*yaml")
    ]
    assert {prompt.partition(" ")[0] for prompt in prompts if prompt} == set(HEADERS)
