"""Whether a response's final answer is right: exact text, then rational value, then math_verify.

Plain numbers and fractions go through a small grammar of ours, and math_verify sees LaTeX only: its extractor of plain
expressions would hand its match to `eval`. A *correct* of math_verify then passes a guard, because it takes some unequal
numbers and expressions for equal.
"""

import logging
import re
from fractions import Fraction
from typing import Any

logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it reports every unparsable answer as an error

_NUMBER = re.compile(r"([-+]?)(\d+(?:\.\d*)?|\.\d+)(?:/(\d+))?")
_FRACTION = re.compile(r"([-+]?)\\frac(?:\{(\d+)\}|(\d))(?:\{(\d+)\}|(\d))")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\}|,\\!)(?=\d{3}(?!\d))")
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\{([^{}]*)\}")
_IGNORED = re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[!,;:> ]")
# A space that separates two numbers means something (1 2, 1 1/2, 1 \frac{1}{2}); any other does not.
_SPACES = re.compile(r"(?<!\d)\s+|\s+(?!\d|\\[dt]?frac|\s)")
MAX_DIGITS = 100  # longer numbers are compared as text only
PRECISION = 1e-6  # relative, for numbers that math_verify calls equal


def without_thinking(response: str) -> str:
    """The response after its last `</think>`; an unclosed `<think>` is left as it is."""
    return response.rpartition("</think>")[2]


def extract_answer(response: str) -> str | None:
    """The content of the last complete `\\boxed{…}` after the thinking part; None if there is none."""
    text = without_thinking(response)
    last, opened = None, []  # one entry per open brace: where the content of a box begins, or None for any other brace
    boxes = {found.end() - 1 for found in re.finditer(r"\\f?boxed\s*\{", text)}
    for found in re.finditer(r"[{}]", text):
        position = found.start()
        if text[position] == "{":
            opened.append(position + 1 if position in boxes else None)
        elif opened and (start := opened.pop()) is not None and not any(opened):
            last = text[start:position].strip()
    return last


def normalise(answer: str) -> str:
    """One spelling for the differences that never matter: spaces, dollar signs, `\\left`, thousands, `\\text{}`."""
    text = answer.strip().strip("$").rstrip(".").strip()
    text = _THOUSANDS.sub("", _IGNORED.sub("", text))
    text = _WRAPPED.sub(r"\1", text)
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\$", "").replace("\\%", "%")
    return re.sub(r"\s+", " ", _SPACES.sub("", text)).strip()


def rational(answer: str) -> Fraction | None:
    """The value of a plain number or fraction (`-3`, `.5`, `1,234`, `3/4`, `\\frac{3}{4}`); None for anything else."""
    text = normalise(answer)
    if len(text) > MAX_DIGITS:
        return None
    if found := _FRACTION.fullmatch(text):
        sign, number, denominator = found[1], found[2] or found[3], found[4] or found[5]
    elif found := _NUMBER.fullmatch(text):
        sign, number, denominator = found.groups()
    else:
        return None
    if denominator is not None and int(denominator) == 0:
        return None
    return Fraction(number) / int(denominator or 1) * (-1 if sign == "-" else 1)


def canonical(answer: str) -> str:
    """A key under which equal plain answers meet: the rational value where there is one, else the normalised text."""
    value = rational(answer)
    return normalise(answer) if value is None else str(value)


def verify(gold: str, answer: str) -> bool:
    """Whether `answer` is the same as `gold`. What cannot be parsed is wrong."""
    if normalise(gold) == normalise(answer):
        return True
    left, right = rational(gold), rational(answer)
    if left is not None and right is not None:
        return left == right
    return _math_verify(gold, answer)


def _math_verify(gold: str, answer: str) -> bool:
    import math_verify

    latex = [math_verify.LatexExtractionConfig()]
    try:
        left, right = (math_verify.parse(f"${text}$", extraction_config=latex) for text in (gold, answer))
        return bool(left and right and math_verify.verify(left, right) and _alike(left[0], right[0]))
    except Exception:  # math_verify and sympy raise their own kinds; whatever fails is not a correct answer
        return False


def _alike(left: Any, right: Any) -> bool:
    """Guard: equal numbers agree to a relative precision, and equal expressions have the same free symbols."""
    if not all(hasattr(side, "free_symbols") for side in (left, right)):
        return True
    if left.free_symbols != right.free_symbols:
        return False
    if getattr(left, "is_number", False) and getattr(right, "is_number", False):
        return bool(abs((left - right).evalf(30)) <= PRECISION * max(abs(left.evalf(30)), abs(right.evalf(30))))
    return True
