"""Sets of numbers as text: inequalities, unions and sets with a hole as intervals; names before tuples and sets taken off."""

import re

from lm_eval_takeover.answers.normalisation import parse_rational, split_brackets, split_top

RELATION = re.compile(r"(\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])|[<>])")
_UNION = re.compile(r"\\cup(?![A-Za-z])")
MIRRORED = {r"\le": r"\ge", r"\ge": r"\le", "<": ">", ">": "<", r"\ne": r"\ne"}
_UNKNOWN = re.compile(r"[A-Za-z](?:_\{?\w+\}?)?'*")
_OPPOSITE = re.compile(rf"-\s*+(?:{_UNKNOWN.pattern})")
REALS = re.compile(r"\\mathbb\s*+\{?\s*+R\s*+\}?|\\R(?![A-Za-z])")


_NAMED = re.compile(
    r"\s*+(?:(?:\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\^\s*+\{?\w+\}?)?|\\(?:vec|overrightarrow)\s*+\{\w+\}"
    r"|\(\s*+\\?[A-Za-z]+(?:_\d)?(?:\s*+,\s*+\\?[A-Za-z]+(?:_\d)?)*\s*+\))"
    r"\s*+(?:=|\\in(?![A-Za-z]))|[A-Za-z](?=\s*+[(\[]))\s*+"
)
_BUILDER = re.compile(
    r"^\\\{\s*+[A-Za-z]\s*+(?:\\in\s*+\\mathbb\s*+\{?R\}?\s*+)?(?:\\mid|:|\|)\s*+(.*)\\\}$"
)  # all x such that


def strip_name(text: str) -> str:
    """A tuple, interval, set or matrix without the name before it."""
    text = _BUILDER.sub(r"\1", text)
    found = _NAMED.match(text)
    if found is None:
        return text
    rest = text[found.end() :]
    listed = split_top(rest, ",;")
    whole = bool(listed) and all(split_brackets(part) for part in listed)
    return rest if whole or rest.startswith((r"\{", r"\begin")) else text


def find_unknown(text: str) -> str:
    """The letter that an inequality is about; empty if it is about none."""
    sides = (side.strip() for side in _turn([part.strip() for part in RELATION.split(text)])[::2])
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
    if bare := re.fullmatch(rf"(?:{REALS.pattern})\s*+(?:-|\\)\s*+\\\{{([^{{}},]*)\\\}}", text):
        hole = bare[1].strip()
    return [rf"(-\infty,{hole})", rf"({hole},\infty)"] if hole else None


def _join_ends(text: str) -> list[str] | None:
    """Two inequalities in one unknown: one interval if both hold, two if a comma stands for 'or'; None for anything else."""
    both = [piece.strip() for piece in re.split(rf"{_ALSO.pattern}|,", text) if piece.strip()]
    if (
        len(both) != 2
        or not all(RELATION.search(piece) for piece in both)
        or find_unknown(both[0]) != find_unknown(both[1])
    ):
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


_MINUS = r"(?:\\setminus|\\backslash)"
_OR = re.compile(r"\\text\s*+\{\s*+,?\s*+or\s*+\}|,?\s*+(?<![\\A-Za-z])or(?![A-Za-z])|\\(?:vee|lor)(?![A-Za-z])")
_ALSO = re.compile(r"\\text\s*+\{\s*+,?\s*+and\s*+\}|,?\s*+(?<![\\A-Za-z])and(?![A-Za-z])|\\(?:wedge|land)(?![A-Za-z])")


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


def _turn(parts: list[str]) -> list[str]:
    """The sides and signs of an inequality about `-x`, multiplied by -1; any others as they are."""
    if not any(_OPPOSITE.fullmatch(side) for side in parts[::2]):
        return parts
    return [MIRRORED[part] if index % 2 else _negate(part) for index, part in enumerate(parts)]


def _negate(term: str) -> str:
    if re.search(r"(?<=.)[-+]", term):
        return f"-({term})"
    return term[1:].strip() if term.startswith("-") else f"-{term}"


def to_interval(text: str) -> str:
    """The interval that an inequality in one unknown describes; any other text as it is."""
    if REALS.fullmatch(text.strip()):
        return r"(-\infty,\infty)"
    if absolute := re.fullmatch(r"\|\s*+[A-Za-z]\s*+\|\s*+(<|\\le)\s*+([^|]+)", text):
        first, last = ("[", "]") if "e" in absolute[1] else ("(", ")")
        return f"{first}-{absolute[2]},{absolute[2]}{last}"
    parts = _turn([part.strip() for part in RELATION.split(text)])
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
