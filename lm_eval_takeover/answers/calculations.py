"""Calculations within a sentence: `30 + 60 = 90 eggs` states what `90 eggs` does; `3x = 6` states nothing yet. Text only."""

import re

from lm_eval_takeover.answers.normalisation import split_top
from lm_eval_takeover.answers.notation import is_name, is_ratio_of_names

COMPUTED = "\ue004"  # stands for the left sides of a calculation before its result

_NUMBER = r"(?:\\?[$€£¥]\s?)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+|(?<=\d))!?(?:/\d+(?!\d)|/[a-zA-Z]+)?\s?[%°]?"
# A number may bear the name of what it counts: `16 red tulips + 12 tulips = 28 tulips`.
_NAME = (
    r"(?:[ -]?(?!(?:and|or|so|is|are|was|were|but|if|then|x|times)(?![a-zA-Z]))[a-zA-Z][a-zA-Z'’]*(?:/[a-zA-Z]+)?){0,4}"
)
_ATOM = rf"[-−]?{_NUMBER}{_NAME}"
_OPERATOR = r"\s*(?:[-+*/×÷·–−]|\\times|\\cdot|\\div|x(?![a-zA-Z])|times)\s*"
_TERM = rf"(?:\({_ATOM}(?:{_OPERATOR}{_ATOM})*\)|{_ATOM})"
_SUM = rf"{_TERM}(?:(?:{_OPERATOR}|(?<=\))\s*(?=\()){_TERM})+"
_CALCULATION = re.compile(
    rf"(?<![\w.,+*/^×÷-])(?<![+*/^×÷−–-]\s)(?:{_SUM}\s*=\s*)+(?=(?>{_TERM})(?!{_OPERATOR}[\d(]|\s*=|\s*[a-zA-Z]\s*[=^]))"
)
_NESTED_CALL = re.compile(r"[A-Za-z]\([A-Za-z]\([^()=]*\)\)")
_UNSOLVED = re.compile(r"(?=[^A-Za-z]*[A-Za-z])(?=\D*\d)[\sA-Za-z\d+*/^().−-]+")
_CHOICES = re.compile(r"\s*\d+\s*[CP]\s*\d+\s*")  # 10C3


def drop_calculations(text: str) -> str:
    """The text with a mark for the left sides of calculations: `needs 30 + 60 = 90 eggs` as `needs COMPUTED 90 eggs`.

    A chain whose last side is itself to be calculated stays as it is, and so does what holds an unknown.
    """
    return _CALCULATION.sub(f"{COMPUTED} ", text) if "=" in text else text


_LAST_SIDE = re.compile(r".*=([^=]+)=\s*([^=]+)|([^=]+)=\s*([^=]+)", re.DOTALL)
_CALLS = re.compile(r"(?:[A-Za-z]\([^()=]*\)\s*[-+]?\s*){2,}")
_COMMAND = re.compile(r"\\[A-Za-z]+")


def read_result(value: str) -> str:
    """What a calculation comes to: `5` of `2 + 3 = 5`, `ad - bc = 2 + 3 = 5` or `f(1) + f(2) = 5`; another value as it is."""
    found = _LAST_SIDE.fullmatch(value)
    if found is None:
        return value
    calculated, result = (found[1], found[2]) if found[1] else (found[3], found[4])
    sides = _COMMAND.sub(" ", calculated), _COMMAND.sub(" ", result)
    if any(re.search(r"[<>,;≠≈]|\\", side) for side in sides):
        return value
    has_letters = [re.search(r"[A-Za-z]", side) for side in sides]
    return result if not any(has_letters) or _CALLS.fullmatch(calculated) else value


def names_value(left: str) -> bool:
    """Whether the left side of an equation names its right side: `x`, `f(2)`, `P(A)` or numbers, not `3x` or `x^2 + 1`."""
    return (
        is_name(left)
        or bool(_NESTED_CALL.fullmatch(left))
        or is_ratio_of_names(left)
        or bool(_CHOICES.fullmatch(left))
        or not _UNSOLVED.fullmatch(left)
    )


_RELATION = re.compile(r"[<>≠≈≤≥]|\\(?:n?eq|ne|l[et]q?|g[et]q?|approx|equiv|sim|pm)(?![a-z])")


def read_equation(equation: str) -> str | None:
    """What a chain of equations gives: `x = 5` of `x = 2 + 3 = 5`, `60` of `\\sqrt{3600} = 60`; None where it is to be solved."""
    sides = [side.strip() for side in equation.rstrip(" .,;").split("=")]
    if len(sides) < 2 or not all(sides) or _RELATION.search(equation) or not names_value(sides[0]):
        return None
    if any(len(split_top(side, ",")) > 1 for side in sides[1:-1]):  # `a = 2, b = 3` are two
        return None
    return f"{sides[0]} = {sides[-1]}" if is_name(sides[0]) or is_ratio_of_names(sides[0]) else sides[-1]
