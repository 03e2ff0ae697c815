"""The letter of a response to a multiple-choice question."""

import pytest

from lm_eval_takeover.answers.letters import extract_letter

LETTERS = [
    (r"\boxed{B}", "B"),
    (r"\boxed{\text{B}}", "B"),
    (r"\boxed{\textbf{(B)}}", "B"),
    (r"\boxed{(B)}", "B"),
    (r"\boxed{B. 10 m}", "B"),
    (r"\boxed{\text{Option C}}", "C"),
    (r"$\boxed{b}$", "B"),
    (r"\boxed{A} or rather \boxed{D}", "D"),
    (r"\boxed{10 m}", None),
    (r"\boxed{E}", None),
    (r"\boxed{Because}", None),
    ("Answer: C", "C"),
    ("The correct answer is **(D)**.", "D"),
    ("**Answer:** $\\text{B}$", "B"),
    ("Answer: A\n\nOn reflection: Answer: B", "B"),
    ("The answer is option C.", "C"),
    ("(A)", "A"),
    ("A) because", "A"),
    ("The answer is A because it conserves charge.", "A"),
    ("We compare the options.\nOnly B conserves charge.", "B"),
    ("We compare the options.\nB and C conserve charge.", None),
    ("The answer is not B", None),
    ("The answer is a vector", None),
    ("<think>the answer is B", None),
    ("<think>A or B?</think>The answer is B", "B"),
    ("I do not know", None),
    ("The answer is B. Option A is wrong because…", "B"),
    ("**Answer: B**\n\nChoice D is incorrect.", "B"),
    ("Option A is wrong. Option C is wrong.", None),
    ("The answer should be B", "B"),
    (r"The answer is \(B\).", "B"),
    ("B is the correct answer", "B"),
    (r"\boxed{\text{The answer is B}}", "B"),
    ("\\boxed{10\\text{ m}}\n\nAnswer: B", "B"),
    (r"\boxed{A, C}", None),
    (r"\boxed{A \text{ or } B}", None),
    (r"\boxed{d = 3 cm}", None),
    (r"\boxed{C-H bond}", None),
    (r"\boxed{a vector field}", None),
    (r"\boxed{c/2}", None),
    (r"\boxed{(C) 10 m}", "C"),
    ("The correct option is C", "C"),
]


@pytest.mark.parametrize(("response", "letter"), LETTERS)
def test_letters(response, letter):
    assert extract_letter(response) == letter


def test_two_letters_offered_are_no_answer():
    for response in ("The answer is A or B.", "**A** or **B**", "Options B and C are both correct.", "Answer: A/B"):
        assert extract_letter(response) is None


def test_a_question_that_is_made_up_after_the_answer_does_not_count():
    assert extract_letter("The answer is B.\n\nQuestion: And what of this?\n\nThe answer is C.") == "B"
