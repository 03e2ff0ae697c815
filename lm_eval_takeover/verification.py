"""Whether a response's final answer is right: exact text, then rational value, then math_verify.

No text of a response is ever evaluated as Python: plain numbers and fractions go through a small grammar of ours, and
math_verify sees LaTeX only (its expression extractor would hand its match to `eval`).
"""

import logging
import re
from fractions import Fraction

logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it reports every unparsable answer as an error

_NUMBER = re.compile(r"([-+]?)(\d+(?:\.\d*)?|\.\d+)(?:/(\d+))?")
_THOUSANDS = re.compile(r"(?<=\d),(?:\\!)?(?=\d{3}(?!\d))")
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\{([^{}]*)\}")
_FRAC = re.compile(r"\\[dt]?frac(?:\{(\d+)\}|(\d))(?:\{(\d+)\}|(\d))")
MAX_DIGITS = 100  # longer numbers are compared as text only


def without_thinking(response: str) -> str:
    """The response after its last `</think>`; an unclosed `<think>` is left as it is."""
    return response.rpartition("</think>")[2]


def extract_answer(response: str) -> str | None:
    """The content of the last complete `\\boxed{…}` after the thinking part; None if there is none."""
    text = without_thinking(response)
    for found in reversed(list(re.finditer(r"\\(?:boxed|fbox)\s*\{", text))):
        depth = 1
        for end in range(found.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[found.end() : end].strip()
    return None


def normalise(answer: str) -> str:
    """One spelling for the differences that never matter: spaces, dollar signs, `\\left`, thousands, `\\text{}`."""
    text = answer.strip().strip("$").rstrip(".").strip()
    text = re.sub(r"\\(?:left|right|displaystyle|[!,;:> ])", "", text)
    text = _THOUSANDS.sub("", text)
    text = _WRAPPED.sub(r"\1", text)
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\$", "").replace("\\%", "%")
    return re.sub(r"\s+", "", text)


def rational(answer: str) -> Fraction | None:
    """The value of a plain number or fraction (`-3`, `.5`, `1,234`, `3/4`, `\\frac{3}{4}`); None for anything else."""
    text = _FRAC.sub(lambda m: f"{m[1] or m[2]}/{m[3] or m[4]}", normalise(answer))
    found = _NUMBER.fullmatch(text)
    if found is None or len(text) > MAX_DIGITS:
        return None
    sign, number, denominator = found.groups()
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
        parsed = [math_verify.parse(f"${text}$", extraction_config=latex) for text in (gold, answer)]
        return all(parsed) and bool(math_verify.verify(*parsed))
    except Exception:  # math_verify and sympy raise their own kinds; whatever fails is not a correct answer
        return False
