"""The final answer of a response, or the letter of one to a multiple-choice question."""

import re
import time

import pytest
import yaml
from helpers.pairs import ROOT
from helpers.tables import read_table
from hypothesis import example, given
from hypothesis import strategies as st
from regex_growth import list_patterns

from lm_eval_takeover.answers import extraction
from lm_eval_takeover.answers.extraction import find_tags, read_answer, read_letter, strip_thinking
from lm_eval_takeover.storage.paths import TASK_CONFIGS


@pytest.mark.parametrize(("table", "read"), [("extracted", read_answer), ("letters", read_letter)])
def test_extracted(table, read):
    assert not [(response, answer) for response, answer in read_table(table) if read(response).answer != answer]


def test_a_text_that_was_cut_off_has_not_answered():
    for text in ("She has 5 + 3 = 8", "So it is $8$", "8"):
        assert read_answer(text).answer is not None
        assert read_answer(text, truncated=True).answer is None
    assert read_answer("\\boxed{8} and", truncated=True) == ("8", True)
    assert read_answer("The answer is 8. Let me", truncated=True) == ("8", False)


def test_no_pattern_repeats_a_group_possessively():
    """Python before 3.11.5 matches such a group wrongly; an atomic group with a plain quantifier is right everywhere."""
    patterns = [pattern.pattern for pattern, _ in list_patterns().values()]
    written = [path.read_text(encoding="utf-8") for path in (ROOT / "lm_eval_takeover").rglob("*.py")]
    assert len(patterns) > 100
    assert not [text for text in patterns + written if re.search(r"(?<!\\)(?:\\\\)*\)(?:[*+?]|\{\d*,?\d*\})\+", text)]


WORDS = ["\\boxed{", "{", "}", "1", " and ", "$", "\\", "answer is ", "<think>", "\n", ". ", ","]


@given(st.text() | st.lists(st.sampled_from(WORDS), max_size=30).map("".join))
@example("$\n$")
@example("answer is $. ,$")
def test_no_text_and_no_arrangement_of_its_words_breaks_extraction(text):
    read_letter(text)
    answer = read_answer(text).answer
    assert answer is None or answer == answer.strip() != ""


@pytest.mark.parametrize(
    "unit", ["\\boxed{", "{", "$", "answer is ", "\\(", "\\boxed{1}", "\\boxed{1},", "answer to ", "$a$,", " ", "\n", "####",
             "\\boxed{1} and ", "\\boxed{1}\n* x", "\\boxed{1} ** , x"],
)  # fmt: skip
def test_time_is_linear_in_the_response(unit):
    def seconds(length):
        text = unit * (length // len(unit))
        start = time.process_time()
        read_answer(text)
        read_letter(text)
        return time.process_time() - start

    # Eight times as long takes about eight times the time; quadratic would be 64 times.
    assert seconds(160_000) < 24 * seconds(20_000) + 0.05


def test_an_answer_to_an_invented_problem_does_not_count():
    for gold, response, near_miss in read_table("run_on_texts"):
        assert read_answer(response).answer == gold
        assert read_answer(near_miss).answer != gold


def test_a_response_ends_where_it_invents_the_next_problem():
    assert strip_thinking("\\boxed{5}\n\nProblem: next") == "\\boxed{5}\n\n"
    assert strip_thinking("The total is 5.\n Problem: next") == "The total is 5.\n"
    assert read_answer("We restate it. Problem: how many? So it is \\boxed{5}.").answer == "5"  # in mid-line it is a word
    assert strip_thinking("Problem: restated.\nSolution: 5") == "Problem: restated.\nSolution: 5"
    thought = "<think>\nIt is 5.\n</think>\nProblem: restated with 3.\nSolution: \\boxed{5}"
    assert strip_thinking(thought) == thought.partition("</think>")[2]  # no answer was possible before the header
    assert strip_thinking(thought + "\n\nProblem: next \\boxed{6}").endswith("\\boxed{5}\n\n")
    assert read_answer("Let us begin.\nProblem: restated.\nSolution: \\boxed{5}").answer == "5"
    assert read_answer("\\boxed{5}, a typical word problem: see above").answer == "5"
    assert strip_thinking("a\n<think>\nProblem: b</think>c") == "c"
    assert strip_thinking("a\nProblem: b</think>c") == "c"
    unclosed = ["x <think> y", "<think>a</think> <think>b", "<think>a</think>b", "a</think>b"]
    unclosed.append("\\boxed{5}\n\nProblem: next <think> hm")
    assert [bool(find_tags(strip_thinking(text))) for text in unclosed] == [True, True, False, False, False]


def test_headers_are_those_of_the_tasks_prompts():
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda *_: None)
    texts = [path.read_text() for path in TASK_CONFIGS.glob("*yaml")]
    prompts = [yaml.load(text, Loader).get("doc_to_text") for text in texts]
    assert {prompt.partition(" ")[0] for prompt in prompts if prompt} == set(extraction.HEADERS)
