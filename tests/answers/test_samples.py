"""Answers that are read, whether they are the gold answer, and what several samples make of them."""

import logging
import re
import time
from functools import cache
from itertools import permutations

import pytest
import yaml
from helpers.pairs import ROOT
from helpers.processes import run_code
from helpers.tables import read_table
from hypothesis import example, given
from hypothesis import strategies as st
from regex_growth import list_patterns

from lm_eval_takeover.answers import samples, text_verdicts, verification
from lm_eval_takeover.answers.letters import read_letter
from lm_eval_takeover.answers.normalisation import normalise, parse_rational
from lm_eval_takeover.answers.reading import read_answer
from lm_eval_takeover.answers.response import HEADERS, find_tags, strip_thinking
from lm_eval_takeover.answers.samples import Question, judge_samples, run_here
from lm_eval_takeover.answers.verification import verify
from lm_eval_takeover.storage.files import TASK_CONFIGS


def ask(gold, answers, **options):
    responses = [rf"\boxed{{{answer}}}" if answer else "no idea" for answer in answers]
    return Question(gold, responses, [False] * len(responses), **options)


run_once = cache(run_here)


def majority(answers):
    judged = judge_samples(ask("none", answers), run_once)
    return None if judged.majority is None else judged.samples[judged.majority].answer


def test_responses_are_read_and_judged():
    """Known ways in which scorers of mathematical answers fail."""
    for gold, response, outcome, problem in read_table("judged_responses"):
        assert judge_samples(Question(gold, [response], [False], problem=problem)).samples[0].outcome == outcome, response


def test_an_expression_of_the_problem_has_no_vote():
    for answer, majority in ((r"17 \times 23", 2), ("390", 0)):
        question = ask("391", [answer, answer, "7"], problem=r"Evaluate $2 + 17 \cdot 23 - 2$.")
        assert judge_samples(question, run_here).majority == majority


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


@pytest.mark.parametrize("failing", ["read_answer", "canonicalise", "verify", "verdict_by_text"])
def test_what_reading_or_judging_raises_is_the_outcome_of_one_response(monkeypatch, caplog, failing):
    module = next(m for m in (samples, text_verdicts, verification) if hasattr(m, failing))
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


@pytest.mark.parametrize(("table", "read"), [("extracted", read_answer), ("letters", read_letter)])
def test_extracted(table, read):
    assert not [(response, answer) for response, answer in read_table(table) if read(response).answer != answer]


def test_a_text_that_was_cut_off_has_not_answered():
    for text in ("She has 5 + 3 = 8", "So it is $8$", "8"):
        assert read_answer(text).answer is not None
        assert read_answer(text, truncated=True).answer is None
    assert read_answer("\\boxed{8} and", truncated=True) == ("8", True, False)
    assert read_answer("The answer is 8. Let me", truncated=True) == ("8", False, False)


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
    configs = [yaml.safe_load(path.read_text().replace("!function", "")) for path in TASK_CONFIGS.glob("*yaml")]
    prompts = [config.get("doc_to_text") for config in configs]
    assert {prompt.partition(" ")[0] for prompt in prompts if prompt} == set(HEADERS)


def test_verdicts():
    """In one test: a test of its own for each of hundreds of cases takes longer than they do."""
    cases = read_table("verdicts")  # of the seven benchmarks
    assert not [(gold, answer) for gold, answer, correct in cases if (verify(gold, answer) == "correct") is not correct]


@given(st.text(), st.sampled_from(["5", r"3\sqrt{13}", "(1,2)", r"\{1,2\}", "x=5", r"[0,\infty)", r"\text{east}"]))
def test_identical_text_is_correct_and_no_text_breaks_a_verdict(text, gold):
    normalise(text)
    parse_rational(text)
    assert verify(text, text) == "correct"
    assert verify(gold, text) in ("correct", "incorrect", "unparsed")


@pytest.mark.parametrize(
    "answer",
    ["a" * 60 + "5 = 3", "a+" * 60 + "5 = 3", "x" * 60 + "! = 3", r"\text{a} " * 60 + "5", "1 " * 200, "a_" * 100 + "=",
     "(" * 15 + "a " * 100],
)  # fmt: skip
def test_no_pattern_of_ours_backtracks_without_end(answer):
    for gold in ("5", "x=5", "(1,2)", r"15\mbox{ cm}^2"):
        assert verify(gold, answer) != "correct"  # without an end otherwise


def test_tolerance_is_absolute():
    assert verify(r"4.2\%", "4.25", tolerance=0.1) == "correct"
    assert verify(r"4.2\%", "0.0425", tolerance=0.1) == "correct"
    assert verify(r"4.2\%", "4.4", tolerance=0.1) != "correct"
    assert verify(r"\sqrt{2}", "1.4", tolerance=0.1) == "correct"


def test_no_text_of_an_answer_reaches_eval_exec_parse_expr_or_sympify():
    """Python itself says what is compiled, so no way to evaluate a text is overlooked, and none that swallows its error."""
    done = run_code(
        r"""
import sys
import sympy, sympy.physics.units, math_verify, latex2sympy2_extended.latex2sympy2  # with what sympy imports late
from helpers.tables import read_table
from lm_eval_takeover.answers.verification import verify

verify(r"\sqrt{8}", r"2\sqrt{2}")  # imports, which may evaluate code of their own
compiled = []

def note(event, given):  # `eval`, `exec`, `parse_expr` and `sympify` compile a text; imports compile files
    if event == "compile" and given[0] is not None and str(given[1]).startswith("<"):
        compiled.append(bytes(given[0]).decode())

sys.addaudithook(note)
wrong = [(g, a) for g, a, correct in read_table("verdicts")[::8] if (verify(g, a) == "correct") is not correct]
hostile = ["__import__('os').getpid()", r"\sqrt{117} + getpid()", "2+getpid*0", r"\frac{getpid}{2}", "exec('x')",
           "1.5 + 10^{2}", "().__class__", "lambda: 1", "9**9", "1.5E3 + x", "0.5 x", r"50\% + 1"]
verdicts = [verify(r"3\sqrt{13}", answer) == "correct" for answer in hostile]
# sympy builds its monomial functions from a template of its own
print(wrong, any(verdicts), [text for text in compiled if not text.startswith("def monomial_")])
""",
        cwd=ROOT / "tests",
    )
    assert done.stdout.strip() == "[] False []", done.stdout[-2000:] + done.stderr[-2000:]
