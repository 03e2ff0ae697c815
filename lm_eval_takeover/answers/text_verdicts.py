"""Verdicts on an answer by its text and its rational value alone. They load no mathematics, and cannot hang."""

import re
from fractions import Fraction
from itertools import accumulate
from typing import Literal

from lm_eval_takeover.answers.normalisation import MAX_LENGTH, normalise, parse_rational
from lm_eval_takeover.answers.response import PICTURE

Outcome = Literal["correct", "incorrect", "unparsed", "timed_out"]  # the last two: it could not be judged

MAX_NESTING = 10  # brackets in brackets, or signs in a row; the gold answers of the seven benchmarks have 3
MAX_NUMBER = 100  # digits in a row
_LONG_RUN = re.compile(rf"\d{{{MAX_NUMBER + 1}}}|(?:[-+]\s*+){{{MAX_NESTING + 1}}}")
_OPERATOR = re.compile(
    r"[+*/^!]|(?<=[\w)}])-|\\(?:arc)?(?:sin|cos|tan|cot|sec|csc|log|ln|sqrt|frac|d?binom|sum|prod|int|lim|lfloor|lceil|[bp]?mod|gcd|lcm)"
)
_BRACES_OR_UNIT = re.compile(r"[{}]|(?<=[\d%])[a-z]+$")
_SLASHED = re.compile(r"\\frac\{?(-?\d+)\}?\{?(\d+)\}?")
_OR_LIST = re.compile(r"\d,\d{3}(?!\d)")  # 100,200 may be a list of two
_DECIMAL = re.compile(r"-?(\d*)\.(\d+)")
_MANY_DIGITS = 7  # significant ones: so many make a decimal equal to the fraction that it rounds


def verdict_by_text(gold: str, answer: str, tolerance: float = 0.0) -> Outcome | None:
    """The outcome where text or rational values decide, which is cheap and cannot hang; None where they do not."""
    if gold == answer:
        return "correct"
    if is_too_large(answer) or is_too_large(gold):  # of a majority, both are answers
        return "unparsed"
    correct = equal_by_text(gold, answer, tolerance)
    return None if correct is None else "correct" if correct else "incorrect"


def is_too_large(answer: str) -> bool:
    """Whether an answer is over the limits on length, nesting or digits that apply before anything is parsed."""
    if len(answer) > MAX_LENGTH or _LONG_RUN.search(answer):
        return True
    depths = accumulate((character in "([{") - (character in ")]}") for character in answer)
    return max(map(abs, depths), default=0) > MAX_NESTING


def restates(answer: str, gold: str, problem: str) -> bool:
    """Whether an answer is a calculation or number of the problem as it stands there, and the gold has another form."""
    texts = answer[:MAX_LENGTH], gold, PICTURE.sub(" ", problem)
    words, given, written = (_BRACES_OR_UNIT.sub("", _SLASHED.sub(r"\1/\2", normalise(text))) for text in texts)
    if words == given or re.search(rf"(?<![\d.]){re.escape(words)}(?!\d|\.\d)", written) is None:
        return False
    value, other = (parse_rational(text.rstrip("%")) for text in (words, given))
    if value is None:
        return _OPERATOR.search(words) is not None
    if other is None or words.isdigit() or not re.search("[/%]", words + given):
        return False
    scaled = other * Fraction(100) ** (("%" in words) - ("%" in given))
    return value == scaled or (value == other and "percent" not in problem)


def equal_by_text(gold: str, answer: str, tolerance: float) -> bool | None:
    if normalise(gold) == normalise(answer):
        return True
    left, right = parse_rational(gold), parse_rational(answer)
    if left is None or right is None:
        return None
    close = abs(left - right) <= Fraction(tolerance)
    correct = close or _is_long_decimal(gold, right) or _is_long_decimal(answer, left)
    return None if not correct and _OR_LIST.search(f"{gold} {answer}") else correct


def _is_long_decimal(text: str, value: Fraction) -> bool:
    """Whether `text` is `value`, a fraction whose decimals never end, rounded or cut off after at least seven digits."""
    match = _DECIMAL.fullmatch(text.strip(" $"))
    if match is None or 10**64 % value.denominator == 0 or len((match[1] + match[2]).lstrip("0")) < _MANY_DIGITS:
        return False
    unit, decimal = Fraction(1, 10 ** len(match[2])), Fraction(match[0])
    return value * decimal > 0 and (abs(value - decimal) <= unit / 2 or 0 <= abs(value) - abs(decimal) < unit)
