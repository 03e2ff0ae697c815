"""A response ends where it invents the next problem."""

from pathlib import Path

import pytest
import yaml
from helpers.pairs import ROOT
from helpers.tables import read_table

from lm_eval_takeover.answers.extraction import extract_answer, has_unclosed_think
from lm_eval_takeover.answers.prompts import HEADERS, cut_run_on


@pytest.mark.parametrize(("gold", "response", "near_miss"), read_table("run_on_texts"))
def test_an_answer_to_an_invented_problem_does_not_count(gold, response, near_miss):
    assert extract_answer(response) == gold
    assert extract_answer(near_miss) != gold


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
