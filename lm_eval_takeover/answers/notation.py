"""Notation of answers: names, matrices, bases, sets. Inequalities, unions and sets with a hole are intervals. Pure functions."""

import re

from lm_eval_takeover.answers.normalisation import normalise, parse_rational, split_brackets, split_top, unwrap_text

NAME = re.compile(
    r"\\?[A-Za-z]+\s*+(?:_\s*+(?:\{[^{}]*\}|\w)\s*+)*'*\s*+(?:\(\s*+([A-Za-z](?:\s*+,\s*+[A-Za-z])*)\s*+\))?|\\angle\s*+[\w{} ]+"
)
_ONE_NAME = re.compile(r"\s*+(\\?[A-Za-z]+)\s*+(?:_\s*+(\{[^{}]*\}|\w))?\s*+('*)\s*+(?:\(([^()]*)\))?\s*+$")
_TERM = r"\\?[A-Za-z]+(?:_\{?\w+\}?)?"
_SUM_OF_NAMES = re.compile(rf"{_TERM}(?:(?:\s*+\+\s*+|\s++|(?=\\)){_TERM})*")
_LABEL = re.compile(
    r"\\?[A-Za-z]+(?:\s*+_\s*+(?:\{[^{}]*\}|\w))*'*\s*+\((?:[^()=]|\([^()=]*+\))*+\)|\|[A-Za-z]+\|"
    r"|\[[A-Z]{3,}\]|\\(?:max|min|angle|overline)\s*+[\w{}() ]+"
)
_SIZE = rf"(?:{_TERM}|\[{_TERM}\]|\|{_TERM}\|)"  # with areas `[ABC]` and lengths `|AB|`
_RATIO_OF_NAMES = re.compile(
    rf"{_SIZE}(?:\s*+:\s*+{_SIZE})+|{_SIZE}\s*+/\s*+{_SIZE}|\\frac\s*+\{{\s*+{_SIZE}\s*+\}}\s*+\{{\s*+{_SIZE}\s*+\}}"
)
_BASE = re.compile(
    r"\(?\s*+(\d+)\s*+\)?\s*+(?:_\s*+\{?\s*+\(?\s*+(\d{1,2}|[a-z]+)\s*+\)?\s*+\}?|\(?\s*+base\s++(\d{1,2}|[a-z]+)\s*+\)?)"
)
_WORDS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
NUMERALS = {word: number for number, word in enumerate(_WORDS.split())}
_FRACTIONS = "half=2 halve=2 third=3 quarter=4 fourth=4 fifth=5 sixth=6 seventh=7 eighth=8 ninth=9 tenth=10"
_PARTS = dict(pair.split("=") for pair in _FRACTIONS.split())
_NUMERAL = re.compile(r"([A-Za-z]+)(?:[\s-]+([a-z]+?)s?\b)?(.*)")
_TWICE = re.compile(r"(\w+) \((\w+)\)")
_MATRIX = re.compile(r"\\begin\s*+\{([pb]?(?:small)?matrix|array)\}(?:\s*+\{[^{}]*\})?(.*)\\end\s*+\{\1\}", re.DOTALL)
RELATION = re.compile(r"(\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])|[<>])")
_UNION = re.compile(r"\\cup(?![A-Za-z])")
MIRRORED = {r"\le": r"\ge", r"\ge": r"\le", "<": ">", ">": "<", r"\ne": r"\ne"}
_UNKNOWN = re.compile(r"[A-Za-z](?:_\{?\w+\}?)?'*(?:\s*+\([A-Za-z]\))?")
REALS = re.compile(r"\\mathbb\s*+\{?\s*+R\s*+\}?|\\R(?![A-Za-z])")
_NAMED = re.compile(
    r"\s*+(?:(?:\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\^\s*+\{?\w+\}?)?|\\(?:vec|overrightarrow)\s*+\{\w+\}"
    r"|\(\s*+\\?[A-Za-z]+(?:_\d)?(?:\s*+,\s*+\\?[A-Za-z]+(?:_\d)?)*\s*+\))"
    r"\s*+(?:=|\\in(?![A-Za-z]))|[A-Za-z](?=\s*+[(\[]))\s*+"
)
_BUILDER = re.compile(r"^\\\{\s*+[A-Za-z]\s*+(?:\\in\s*+\\mathbb\s*+\{?R\}?\s*+)?(?:\\mid|:|\|)\s*+(.*)\\\}$")  # {x | …}
_MINUS = r"(?:\\setminus|\\backslash)"
_OR = re.compile(r"\\text\s*+\{\s*+,?\s*+or\s*+\}|,?\s*+(?<![\\A-Za-z])or(?![A-Za-z])|\\(?:vee|lor)(?![A-Za-z])")
_ALSO = re.compile(r"\\text\s*+\{\s*+,?\s*+and\s*+\}|,?\s*+(?<![\\A-Za-z])and(?![A-Za-z])|\\(?:wedge|land)(?![A-Za-z])")


def is_name(text: str, ratio: bool = False) -> bool:
    """Whether one side of an equation names what the other is: `x`, `f(x)`, `P(A)`, `|z|`, `m + n`, `Area`; not `2x` or `x^2`.

    With `ratio` also a ratio of such: `a : b`, `AB/BC`, `[ABC]:[DEF]` or `\\frac{x}{y}`.
    """
    patterns = (NAME, _SUM_OF_NAMES, _LABEL, *([_RATIO_OF_NAMES] if ratio else []))
    return any(pattern.fullmatch(unwrap_text(text)) for pattern in patterns)


def is_same_name(left: str, right: str) -> bool:
    """`M` and `M_{\\min}`, `f(x)` and `f`, `P(x)` and `p(x)`; `y` may stand for any function of `x`. Not `x_1` and `x_2`."""
    if normalise(left).replace("\\", "") == normalise(right).replace("\\", ""):  # M_{\\max} and M_{\\text{max}}
        return True
    first, second = (_ONE_NAME.match(side) for side in (left, right))
    if first is None or second is None:
        return False
    (name, index, prime, argument), (name_2, index_2, prime_2, argument_2) = first.groups(), second.groups()
    if (index and index_2) or prime != prime_2 or (argument and argument_2 and argument != argument_2):
        return False
    if "y" in (name, name_2) and (argument or argument_2):
        return True
    return bool(name.lower() == name_2.lower()) if argument and argument_2 else bool(name == name_2)


def read_numerals(text: str) -> str:
    """Numbers in words as digits: `six eggs`, `two thirds`, `5 (five)`; any other text as it is."""
    words = unwrap_text(text)
    if twice := _TWICE.fullmatch(words):
        numbers = {str(NUMERALS.get(word.lower(), word)) for word in twice.groups()}
        return numbers.pop() if len(numbers) == 1 else text
    match = _NUMERAL.fullmatch(words)
    if match is None or (number := NUMERALS.get(match[1].lower())) is None:
        return text
    if match[2] in _PARTS:
        return f"{number}/{_PARTS[match[2]]}{match[3]}"
    return f"{number}{words[match.end(1) :]}"


def parse_base(text: str) -> tuple[str, int] | None:
    """The digits and the base of `204_5`, `204_{\\text{five}}`, `(204)_5` and `204 (base 5)`."""
    match = _BASE.fullmatch(unwrap_text(text))
    if match is None:
        return None
    base = match[2] or match[3]
    return match[1], int(base) if base.isdigit() else NUMERALS.get(base, 0)


def parse_matrix(text: str) -> list[list[str]] | None:
    """The rows of a matrix: in LaTeX, or as `[[1, 2], [3, 4]]`."""
    scaled = re.fullmatch(r"\s*+(-|-?(?:\d+|\\frac\s*+\{[^{}]*\}\s*+\{[^{}]*\}))\s*+(\\begin.*)", text, re.DOTALL)
    if scaled and (unscaled := parse_matrix(scaled[2])):
        factor = "-1" if scaled[1] == "-" else scaled[1]
        return [[rf"({factor}) \cdot ({cell})" for cell in row] for row in unscaled]
    if match := _MATRIX.fullmatch(text.strip("()[]| ")) if "\\begin" in text else None:
        rows = [row for row in re.split(r"\\\\(?:\s*+\[[^\]]*\])?|\\cr(?![a-z])", match[2]) if row.strip()]
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


def strip_name(text: str) -> str:
    """A tuple, interval, set or matrix without the name before it."""
    text = _BUILDER.sub(r"\1", text)
    match = _NAMED.match(text)
    if match is None:
        return text
    rest = text[match.end() :]
    listed = split_top(rest, ",;")
    whole = bool(listed) and all(split_brackets(part) for part in listed)
    return rest if whole or rest.startswith((r"\{", r"\begin")) else text


def find_unknown(text: str) -> str:
    """The letter that an inequality is about; empty if it is about none."""
    sides = (side.strip() for side in RELATION.split(text)[::2])
    return next((side for side in sides if _UNKNOWN.fullmatch(side)), "")


def split_union(text: str) -> list[str] | None:
    """The pieces of a union, of `x \\ne a`, of the reals without a point or of two inequalities; None for anything else."""
    pieces = [piece.strip() for piece in _UNION.split(text)]
    if len(pieces) > 1:
        return [to_interval(piece) for piece in pieces]
    if without := _split_holed(text):
        return without
    alternatives = [_read_alternative(piece) for piece in _OR.split(text)]
    if len(alternatives) > 1 and all(alternatives) and not all(r"\{" in str(piece) for piece in alternatives):
        return [piece for piece in alternatives if piece]
    return _join_ends(text)


def _split_holed(text: str) -> list[str] | None:
    """The two pieces of an interval or the reals without a point, or of the reals without an interval."""
    reals = re.fullmatch(rf"(?:{REALS.pattern})\s*+{_MINUS}\s*+([\[(])([^,]+),([^,]+)([\])])", text)
    if reals:
        opening, closing = ")" if reals[1] == "[" else "]", "(" if reals[4] == "]" else "["
        return [rf"(-\infty,{reals[2]}{opening}", rf"{closing}{reals[3]},\infty)"]
    holed = re.fullmatch(rf"(.+?)\s*+(?:{_MINUS}\s*+\\\{{([^{{}},]*)\\\}}|,\s*+[A-Za-z]\s*+\\ne\s*+([^,]+))", text)
    interval = split_brackets(to_interval(strip_name(holed[1].strip()))) if holed else None
    if holed and interval and len(interval[1]) == 2:
        point = (holed[2] or holed[3]).strip()
        return [f"{interval[0]}{interval[1][0]},{point})", f"({point},{interval[1][1]}{interval[2]}"]
    parts = RELATION.split(text)
    hole = parts[2].strip() if len(parts) == 3 and parts[1] == r"\ne" and _UNKNOWN.fullmatch(parts[0].strip()) else None
    return [rf"(-\infty,{hole})", rf"({hole},\infty)"] if hole else None


def _join_ends(text: str) -> list[str] | None:
    """Two inequalities in one unknown: one interval if both hold, two if a comma stands for 'or'; None for anything else."""
    both = [piece.strip() for piece in re.split(rf"{_ALSO.pattern}|,", text) if piece.strip()]
    if len(both) != 2 or not all(map(RELATION.search, both)) or len(set(map(find_unknown, both))) > 1:
        return None
    ends = [to_interval(piece) for piece in both]
    lower = next((end for end in ends if end.endswith(r"\infty)")), None)
    upper = next((end for end in ends if end.startswith(r"(-\infty")), None)
    if not lower or not upper:
        return None
    first, last = lower[: -len(r",\infty)")], upper[len(r"(-\infty,") :]
    values = parse_rational(first[1:]), parse_rational(last[:-1])
    meet = _ALSO.search(text) or None in values or values[0] < values[1]  # type: ignore[operator]
    return [f"{first},{last}"] if meet else ends


def _read_alternative(text: str) -> str | None:
    """One alternative of a union: an inequality or interval, or `x = 1` as `\\{1\\}`; None for anything else."""
    text = text.strip()
    if RELATION.search(text):
        return to_interval(text)
    sides = split_top(text, "=")
    if len(sides) == 2 and _UNKNOWN.fullmatch(sides[0]):
        return rf"\{{{sides[1]}\}}"
    group = split_brackets(text)
    return text if group and len(group[1]) == 2 and r"\infty" in text else None


def to_interval(text: str) -> str:
    """The interval that an inequality in one unknown describes; any other text as it is."""
    if REALS.fullmatch(text.strip()):
        return r"(-\infty,\infty)"
    if absolute := re.fullmatch(r"\|\s*+[A-Za-z]\s*+\|\s*+(<|\\le)\s*+([^|]+)", text):
        first, last = ("[", "]") if "e" in absolute[1] else ("(", ")")
        return f"{first}-{absolute[2]},{absolute[2]}{last}"
    parts = [part.strip() for part in RELATION.split(text)]
    signs = parts[1::2]
    if len(parts) == 5 and _UNKNOWN.fullmatch(parts[2]):
        if all(sign in (r"\ge", ">") for sign in signs):
            parts, signs = parts[::-1], signs[::-1]
        elif not all(sign in (r"\le", "<") for sign in signs):
            return text
        opening, closing = "[" if "e" in signs[0] else "(", "]" if "e" in signs[1] else ")"
        return f"{opening}{parts[0]},{parts[4]}{closing}"
    if len(parts) != 3 or signs[0] == r"\ne":
        return text
    left, sign, right = parts
    if _UNKNOWN.fullmatch(right) and not _UNKNOWN.fullmatch(left):
        left, right, sign = right, left, MIRRORED[sign]
    if not _UNKNOWN.fullmatch(left):
        return text
    if sign in (r"\ge", ">"):
        return rf"{'[' if 'e' in sign else '('}{right},\infty)"
    return rf"(-\infty,{right}{']' if 'e' in sign else ')'}"
