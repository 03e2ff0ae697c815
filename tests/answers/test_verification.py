"""Verdicts on answers: the table, rules that hold for any answer, and that no text of an answer is evaluated."""

import subprocess
import sys
import time

import pytest
from helpers.tables import read_table
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.answers.normalisation import normalise, parse_rational
from lm_eval_takeover.answers.verification import verify

CASES = read_table("verdicts")  # of the seven benchmarks: (gold, answer, correct)


def test_verdicts():
    """In one test: a test of its own for each of hundreds of cases takes longer than they do."""
    assert not [(gold, answer) for gold, answer, correct in CASES if (verify(gold, answer) == "correct") is not correct]


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
    start = time.perf_counter()
    for gold in ("5", "x=5", "(1,2)", r"15\mbox{ cm}^2"):
        verify(gold, answer)
    assert time.perf_counter() - start < 20  # seconds; endless otherwise


def test_tolerance_is_absolute():
    assert verify(r"4.2\%", "4.25", tolerance=0.1) == "correct"
    assert verify(r"4.2\%", "0.0425", tolerance=0.1) == "correct"
    assert verify(r"4.2\%", "4.4", tolerance=0.1) != "correct"
    assert verify(r"\sqrt{2}", "1.4", tolerance=0.1) == "correct"


NO_EVALUATION = """
import builtins, sys
sys.path.insert(0, {tests!r})
import sympy, sympy.physics.units, math_verify, latex2sympy2_extended.latex2sympy2  # with what sympy imports late
from helpers.tables import read_table
from lm_eval_takeover.answers.verification import is_too_large, verify

verify(r"\\\\sqrt{{8}}", "2\\\\sqrt{{2}}")  # imports, which may evaluate code of their own

def refuse(*arguments, **_):
    raise AssertionError(f"evaluated {{arguments[:1]!r}}")

plain = sys.modules['sympy.core.sympify'].sympify
def sympify(value, *rest, **options):
    return refuse(value) if isinstance(value, str) else plain(value, *rest, **options)

for module in list(sys.modules.values()):
    if getattr(module, "__name__", "").partition(".")[0] in ("sympy", "math_verify", "latex2sympy2_extended"):
        for name, value in list(vars(module).items()):
            if value is plain:
                setattr(module, name, sympify)
            elif getattr(value, "__name__", "") in ("parse_expr", "eval_expr", "stringify_expr") and callable(value):
                setattr(module, name, refuse)
plain_exec = exec
def execute(source, *rest, **options):
    # Imports run code objects, and sympy builds its monomial functions from a template of its own.
    if isinstance(source, str) and not source.startswith("def monomial_"):
        refuse(source)
    return plain_exec(source, *rest, **options)
builtins.eval, builtins.exec = refuse, execute

wrong = [(g, a) for g, a, correct in read_table("verdicts")[::8] if (verify(g, a) == "correct") is not correct]
hostile = ["__import__('os').getpid()", "\\\\sqrt{{117}} + getpid()", "2+getpid*0", "\\\\frac{{getpid}}{{2}}", "exec('x')",
           "1.5 + 10^{{2}}",
           "().__class__", "lambda: 1", "9**9", "1.5E3 + x", "0.5 x", "50\\\\% + 1"]
verdicts = [verify(r"3\\\\sqrt{{13}}", answer) == "correct" for answer in hostile]
print(wrong, any(verdicts))
"""


def test_no_text_of_an_answer_reaches_eval_exec_parse_expr_or_sympify():
    """Cases keep their verdicts in an interpreter where these refuse, so nothing depends on them or swallows their error."""
    from helpers.pairs import ROOT

    code = NO_EVALUATION.format(tests=str(ROOT / "tests"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[] False", done.stdout[-2000:] + done.stderr[-2000:]
