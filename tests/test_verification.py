"""Extraction and verification of final answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.verification import canonical, extract_answer, normalise, rational, verify

EXTRACTED = [
    (r"so \boxed{5}.", "5"),
    (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{\left\{ x \right\}} done", r"\left\{ x \right\}"),
    (r"<think>\boxed{1}</think> it is \boxed{2}", "2"),
    (r"<think>\boxed{1}</think> I do not know", None),
    (r"<think> unfinished \boxed{3}", "3"),
    (r"\boxed{4} and \boxed{5", "4"),
    ("the answer is 7", None),
    ("", None),
]


@pytest.mark.parametrize(("response", "answer"), EXTRACTED)
def test_the_last_complete_box_after_the_thinking_counts(response, answer):
    assert extract_answer(response) == answer


VERDICTS = [
    ("5", "5", True),
    ("5", "5.0", True),
    ("5", "05", True),
    ("-3", "- 3", True),
    ("1234", "1,234", True),
    ("1234", r"1{,}234", True),
    ("1,234", "1234", True),
    ("0.5", r"\frac{1}{2}", True),
    (r"\frac12", r"\dfrac{1}{2}", True),
    (r"\frac{14}{3}", "14/3", True),
    (r"\frac{14}{3}", "4.67", False),
    ("5", r"\$5", True),
    ("18", "$18$", True),
    ("5", "6", False),
    ("5", "-5", False),
    (r"\text{Evelyn}", "Evelyn", True),
    (r"(3, \frac{\pi}{2})", r"\left(3,\frac{\pi}{2}\right)", True),
    (r"3\sqrt{13}", r"\sqrt{117}", True),
    (r"3\sqrt{13}", r"\sqrt{118}", False),
    ("p - q", "-q + p", True),
    (r"6 - 5i", r"6-5i", True),
    ("11/2", r"1\frac{1}{2}", False),
    ("11/2", "1 1/2", False),
    ("3/2", r"1\frac{1}{2}", True),
    ("12", "1 2", False),
    ("1/23", r"\frac{1}{2}3", False),
    (r"\leftarrow", r"\rightarrow", False),
    (r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}", False),
    ("x", "y", False),
    ("0", "1/0", False),
    ("1/0", "0", False),
]


@pytest.mark.parametrize(("gold", "answer", "verdict"), VERDICTS)
def test_verdicts(gold, answer, verdict):
    assert verify(gold, answer) is verdict


@given(st.fractions())
def test_fractions_equal_themselves_in_any_spelling(value):
    plain, latex = f"{value.numerator}/{value.denominator}", rf"\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
    assert rational(plain) == value
    assert abs(rational(latex)) == abs(value)
    assert canonical(plain) == str(value)


@given(st.text())
def test_no_text_breaks_extraction_or_normalisation(text):
    extract_answer(text)
    normalise(text)
    rational(text)
    assert verify(text, text)


def test_no_text_of_a_response_is_evaluated(monkeypatch):
    """sympy builds number literals with eval; no word of a response may ever get there."""
    import builtins

    seen = []
    plain = builtins.eval
    monkeypatch.setattr(builtins, "eval", lambda source, *rest: seen.append(str(source)) or plain(source, *rest))
    for hostile in (
        "__import__('os').getpid()",
        r"\sqrt{117} + getpid()",
        r"\text{getpid}",
        "2+getpid*0",
        r"\frac{getpid}{2}",
    ):
        verify("zz", hostile)
        verify(r"3\sqrt{13}", hostile)
    assert not any("getpid" in source for source in seen)


def test_many_unclosed_boxes_take_no_time():
    assert extract_answer("\\boxed{" * 200_000) is None
