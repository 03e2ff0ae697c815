"""How an answer writes what it gives: a name before a value, a matrix, a number in a base. Pure text functions."""

import re

from lm_eval_takeover.answers.normalisation import normalise, split_brackets, unwrap_text

NAME = re.compile(
    r"\\?[A-Za-z]+\s*+(?:_\s*+(?:\{[^{}]*\}|\w)\s*+)*'*\s*+(?:\(\s*+([A-Za-z](?:\s*+,\s*+[A-Za-z])*)\s*+\))?|\\angle\s*+[\w{} ]+"
)
_TERM = r"\\?[A-Za-z]+(?:_\{?\w+\}?)?"
_SUM_OF_NAMES = re.compile(rf"{_TERM}(?:(?:\s*+\+\s*+|\s++|(?=\\)){_TERM})*")
_LABEL = re.compile(
    r"\\?[A-Za-z]+(?:\s*+_\s*+(?:\{[^{}]*\}|\w))*'*\s*+\([^()=]*\)|\|[A-Za-z]+\||\\(?:max|min|angle)\s*+[\w{}() ]+"
)


_SIZE = rf"(?:{_TERM}|\[{_TERM}\]|\|{_TERM}\|)"  # with areas `[ABC]` and lengths `|AB|`
_RATIO_OF_NAMES = re.compile(
    rf"{_SIZE}(?:\s*+:\s*+{_SIZE})+|{_SIZE}\s*+/\s*+{_SIZE}|\\frac\s*+\{{\s*+{_SIZE}\s*+\}}\s*+\{{\s*+{_SIZE}\s*+\}}"
)


def is_name(text: str, ratio: bool = False) -> bool:
    """Whether one side of an equation names what the other is: `x`, `f(x)`, `P(A)`, `|z|`, `m + n`, `Area`; not `2x` or `x^2`.

    With `ratio` also a ratio of such: `a : b`, `AB/BC`, `[ABC]:[DEF]` or `\\frac{x}{y}`.
    """
    patterns = (NAME, _SUM_OF_NAMES, _LABEL, *([_RATIO_OF_NAMES] if ratio else []))
    return any(pattern.fullmatch(unwrap_text(text)) for pattern in patterns)


def is_same_name(left: str, right: str) -> bool:
    """`M` and `M_{\\min}`, `f(x)` and `f`, `P(x)` and `p(x)`; `y` may stand for any function of `x`. Not `x_1` and `x_2`."""
    if normalise(left) == normalise(right):
        return True
    parts = [
        re.match(r"\s*+(\\?[A-Za-z]+)\s*+(?:_\s*+(\{[^{}]*\}|\w))?\s*+('*)\s*+(?:\(([^()]*)\))?\s*+$", side)
        for side in (left, right)
    ]
    if parts[0] is None or parts[1] is None:
        return False
    (name, index, prime, argument), (other, other_index, other_prime, other_argument) = (
        part.groups() for part in parts if part
    )
    if (index and other_index) or prime != other_prime or (argument and other_argument and argument != other_argument):
        return False
    if "y" in (name, other) and (argument or other_argument):
        return True
    return bool(name.lower() == other.lower()) if argument and other_argument else bool(name == other)


_BASE = re.compile(
    r"\(?\s*+(\d+)\s*+\)?\s*+(?:_\s*+\{?\s*+\(?\s*+(\d{1,2}|[a-z]+)\s*+\)?\s*+\}?|\(?\s*+base\s++(\d{1,2}|[a-z]+)\s*+\)?)"
)
_WORDS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
NUMERALS = {word: number for number, word in enumerate(_WORDS.split())}


def parse_base(text: str) -> tuple[str, int] | None:
    """The digits and the base of `204_5`, `204_{\\text{five}}`, `(204)_5` and `204 (base 5)`."""
    found = _BASE.fullmatch(unwrap_text(text))
    if found is None:
        return None
    base = found[2] or found[3]
    return found[1], int(base) if base.isdigit() else NUMERALS.get(base, 0)


_MATRIX = re.compile(r"\\begin\s*+\{([pb]?(?:small)?matrix|array)\}(?:\s*+\{[^{}]*\})?(.*)\\end\s*+\{\1\}", re.DOTALL)


def parse_matrix(text: str) -> list[list[str]] | None:
    """The rows of a matrix: in LaTeX, or as `[[1, 2], [3, 4]]`."""
    scaled = re.fullmatch(r"\s*+(-|-?(?:\d+|\\frac\s*+\{[^{}]*\}\s*+\{[^{}]*\}))\s*+(\\begin.*)", text, re.DOTALL)
    if scaled and (unscaled := parse_matrix(scaled[2])):
        factor = "-1" if scaled[1] == "-" else scaled[1]
        return [[rf"({factor}) \cdot ({cell})" for cell in row] for row in unscaled]
    if found := _MATRIX.fullmatch(text.strip("()[]| ")) if "\\begin" in text else None:
        rows = [row for row in re.split(r"\\\\(?:\s*+\[[^\]]*\])?|\\cr(?![a-z])", found[2]) if row.strip()]
        return [[cell.strip() for cell in row.split("&")] for row in rows]
    outer = split_brackets(text)
    if outer and all(re.fullmatch(r"\[[^\[\],]+\]", part) for part in outer[1]):
        return [[part[1:-1].strip()] for part in outer[1]]
    if outer and outer[0] == "[":
        inner = [row for part in outer[1] if (row := split_brackets(part)) is not None and row[0] == "["]
        if len(inner) == len(outer[1]):
            return [cells for _, cells, _ in inner]
    return None


def parse_vector(text: str) -> list[str] | None:
    """The cells of a matrix of one row or one column."""
    rows = parse_matrix(text)
    return [cell for row in rows for cell in row] if rows and (len(rows) == 1 or len(rows[0]) == 1) else None
