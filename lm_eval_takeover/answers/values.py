"""What an answer is: `read_value` reads a tidied text as one of a few types. Pure functions.

An amount (a number or expression, and its unit), a group (list, set, tuple, matrix, a ratio of three or more), a region of the
real line (interval, union, inequality), a relation (equation, other inequality); and what equals only itself.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from string import ascii_letters
from typing import Any, NamedTuple

from sympy import Complement, FiniteSet, Intersection, Interval, S, Union, oo

from lm_eval_takeover.answers.expressions import OF_ANGLE, evaluate
from lm_eval_takeover.answers.normalisation import (
    find_closing,
    is_set,
    normalise,
    split_brackets,
    split_elements,
    split_top,
    split_unit,
    unwrap_text,
)
from lm_eval_takeover.answers.units import Unit, read_unit

_EXCEPT = r",? (?:except|besides|other than)(?: for)?"
_SETS = {
    r"(?:the )?(?:set of )?(?:all |every |any )?(?:the )?reals?(?: numbers?)?(?: [a-z])?" + rf"(?=$|{_EXCEPT})": r"\mathbb{R}",
    r"(?:all )?(?:the )?(?:positive integers|natural numbers)$|\\mathbb\{N\}$": r"\mathbb{Z}^+",
    r"(?:all )?(?:the )?integers$": r"\mathbb{Z}",
    r"(?:there (?:is|are|exists?) )?no (?:real |valid |integer |such )*(?:solutions?|roots?)(?: exists?)?$": r"\{\}",
    r"(?:the )?(?:empty|null) set$": r"\{\}",
}


def name_sets(text: str) -> str:
    """Sets in words by their signs: `all real numbers except 2`, `no solution`; any other text as it is."""
    words = unwrap_text(text)
    for pattern, name in _SETS.items():
        if match := re.match(pattern, words, re.IGNORECASE):
            return name + re.sub(f"{_EXCEPT} ", r" \\setminus ", words[match.end() :])
    return text


class Amount(NamedTuple):
    """A number or expression without its unit."""

    number: str
    unit: Unit


class Group(NamedTuple):
    """A list (no brackets), a set (braces), a tuple, or the cells of a matrix (`column`, `row` or `3 columns`), row by row.

    `names` where each item has a name of its own, in its order.
    """

    items: list[str]
    brackets: str = ""
    names: Sequence[str] = ()


class Region(NamedTuple):
    """A part of the real line, as a set of sympy's, and the unknown of an inequality."""

    numbers: Any
    unknown: str = ""


class Relation(NamedTuple):
    """An equation, or a chain of inequalities that describes no region: its sides, and the sign behind each but the last."""

    sides: list[str]
    signs: list[str]


class Exact(NamedTuple):
    """A time of day, a number in a base, a remainder: equal as it is. `plain` is the number that says the same, if any."""

    kind: str
    value: tuple[int | str, ...]
    plain: str = ""


Value = Amount | Group | Region | Relation | Exact

_CLOCK = re.compile(r"(\d{1,2})(?::([0-5]\d)| (?=[ap]\.?\s?m))(?:\s?(?:(noon|[ap])\.?(?:\s?m\b\.?)?))?", re.IGNORECASE)
_BASE = re.compile(
    r"\(?\s*+(\d(?: ?[\dA-Fa-f]){0,40}?)\s*+\)?\s*+(?:_\s*+\{?\s*+\(?\s*+(\d{1,2}|[a-z]+)\s*+\)?\s*+\}?"
    r"|\(?\s*+(?:in )?base\s++(\d{1,2}|[a-z]+)\s*+\)?)"
)
_REMAINDER = re.compile(r"(?:\w\s*+(?:\\equiv|=))?\s*+(-?\d{1,50})\s*+\(?\\pmod\s*+\{?\s*+(\d{1,50})\s*+\}?\)?")
_TO = re.compile(r"(?<=\d)\s*+(?:\\text\s*+\{\s*+)?\bto\b\s*+\}?\s*+(?=\d)")
_MATRIX = re.compile(r"\\begin\s*+\{([pb]?(?:small)?matrix|array)\}(?:\s*+\{[^{}]*\})?(.*)\\end\s*+\{\1\}", re.DOTALL)
_LETTER = r"\\?[A-Za-z]+(?:_\{?\w+\}?)?"
_NAMED = re.compile(
    rf"\s*+(?:(?:{_LETTER}(?:\^\s*+\{{?-?\w+\}}?)?|\\(?:vec|overrightarrow)\s*+\{{\w+\}})\s*+=|{_LETTER}\s*+\\in(?![A-Za-z])"
    rf"|(\(\s*+{_LETTER}(?:\s*+,\s*+{_LETTER})*\s*+\))\s*+(?:=|\\in(?![A-Za-z]))|[A-Za-z](?=\s*+[(\[]))\s*+"
)
_TRANSPOSED = re.compile(r"\^\s*+\{?\s*+(?:\\?T|\\top|\\text\s*+\{\s*+T\s*+\})\s*+\}?\Z")
_SCALED = re.compile(r"\s*+(-|-?(?:\d+|\\frac\s*+\{[^{}]*\}\s*+\{[^{}]*\}))\s*+(\\begin.*)", re.DOTALL)


@lru_cache(maxsize=4096)
def read_value(text: str) -> Value:
    """The typed value of a tidied answer."""
    if exact := _read_exact(text):
        return exact
    names, text = _split_names(text)
    if rows := parse_matrix(text):
        shape = "column" if len(rows[0]) == 1 else "row" if len(rows) == 1 else f"{len(rows[0])} columns"
        return Group([cell for row in rows for cell in row], shape)
    if _REGION.search(text) and (region := _read_region(text)):
        return region
    if amount := _read_compound(text):
        return amount
    items = split_elements(text)
    if is_set(text):  # one matrix in braces is itself
        return read_value(items[0]) if len(items) == 1 and parse_matrix(items[0]) else Group(items, "{}")
    if len(items) > 1:
        return _read_named(items)
    if group := split_brackets(text):
        opening, parts, closing = group
        named = _read_named(parts)
        return named._replace(brackets=opening + closing, names=names if len(names) == len(parts) else named.names)
    if RELATION.search(text):
        return read_relation(text)
    if len(sides := split_top(text, "=")) > 1:
        return Relation(sides, ["="] * (len(sides) - 1))
    if len(parts := split_top(_TO.sub(":", text), ":")) > 1:
        quotients = [rf"\frac{{{part}}}{{{parts[-1]}}}" for part in parts[:-1]]
        return Group(quotients, ":")
    number, unit = (text, "") if OF_ANGLE.search(text) else split_unit(text)  # \\sin 30° is a number
    return Amount(number, read_unit(unit))


def _read_exact(text: str) -> Exact | None:
    """`10:30`, `5 p.m.`, `12:00 noon`; `1011_2`, `1011 (base two)`; `3 \\pmod 7`."""
    words = unwrap_text(text)
    if (clock := _CLOCK.fullmatch(words.strip("()"))) and int(clock[1]) <= 24:
        half, minutes = (clock[3] or "").lower(), int(clock[2] or 0)
        hours = int(clock[1]) % 12 + 12 * (half == "p") if half in ("a", "p") else int(clock[1])
        is_ratio = ":" in text and not half and math.gcd(int(clock[1]), minutes) == 1  # has no other form, so may be one
        return Exact("clock", (60 * hours + minutes,), rf"\frac{{{clock[1]}}}{{{minutes}}}" if is_ratio else "")
    if base := _BASE.fullmatch(words):
        name, digits = base[2] or base[3], base[1].replace(" ", "").upper()
        number = int(name) if name.isdigit() else NUMERALS.get(name, 0)
        return Exact("base", (digits, number), digits if number == 10 else "")
    if remainder := _REMAINDER.fullmatch(text):
        modulus = int(remainder[2]) or 1
        number = int(remainder[1]) % modulus
        return Exact("remainder", (number, modulus), str(number) if str(number) in text else "")
    return None


def read_relation(text: str) -> Relation:
    parts = [part.strip() for part in RELATION.split(text)]
    return Relation(parts[::2], parts[1::2])


def _read_compound(text: str) -> Amount | None:
    """Two quantities of one kind as one: `5 feet 6 inches`, `5 dollars and 50 cents`, `30° 15'`."""
    match = _COMPOUND.fullmatch(unwrap_text(text))
    if match is None:
        return None
    first, second = read_unit(match[2]), read_unit(match[4])
    if first.measured != second.measured or first.size <= second.size:
        return None
    return Amount(str(Fraction(match[1]) + Fraction(match[3]) * second.size / first.size), first)


_COMPOUND = re.compile(r"(\d{1,9}) ?(°|[a-z]{1,9}),?(?: and)? ?(\d{1,9}(?:\.\d{1,9})?) ?('|[a-z]{1,9})\.?")


def _split_names(text: str) -> tuple[list[str], str]:
    """A tuple, interval, set or matrix without the name before it; the names of the items of a tuple."""
    match = _NAMED.match(text)
    if match is None:
        return [], text
    rest = text[match.end() :]
    listed = split_top(rest, ",;")
    whole = bool(listed) and all(split_brackets(part) for part in listed)
    if not whole and not rest.startswith((r"\{", r"\begin")):
        return [], text
    return split_top(match[1].strip()[1:-1], ",") if match[1] and len(listed) == 1 else [], rest


def _read_named(items: list[str]) -> Group:
    """A list whose items may have a name each: `x = 1, y = 2`."""
    sides = [split_top(item, "=") for item in items]
    names = {normalise(parts[0]) for parts in sides if len(parts) == 2 and is_name(parts[0])}
    if len(names) == len(items):
        return Group([parts[-1] for parts in sides], "", [parts[0] for parts in sides])
    return Group(items)


def parse_matrix(text: str) -> list[list[str]] | None:
    """The rows of a matrix: in LaTeX, as `[[1, 2], [3, 4]]`, with a factor before it or transposed."""
    if transposed := _TRANSPOSED.search(text):
        text = text[: transposed.start()].strip()
        row = split_brackets(text)
        rows = [row[1]] if row else parse_matrix(text)
        return [list(column) for column in zip(*rows, strict=False)] if rows else None
    if (scaled := _SCALED.fullmatch(text)) and (unscaled := parse_matrix(scaled[2])):
        factor = "-1" if scaled[1] == "-" else scaled[1]
        return [[rf"({factor}) \cdot ({cell})" for cell in row] for row in unscaled]
    if match := _MATRIX.fullmatch(text.strip("()[]| ")) if "\\begin" in text else None:
        lines = [row for row in re.split(r"\\\\(?:\s*+\[[^\]]*\])?|\\cr(?![a-z])", match[2]) if row.strip()]
        return [[cell.strip() for cell in row.split("&")] for row in lines]
    outer = split_brackets(text)
    if outer and all(part.startswith("[") and find_closing(part, 0) == len(part) - 1 for part in outer[1]):
        rows = [split_top(part[1:-1], ",;") for part in outer[1]]
        return rows if outer[0] == "[" or max(map(len, rows)) == 1 else None
    return None


# Regions of the real line

RELATION = re.compile(r"(\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])|[<>])")
MIRRORED = {"=": "=", r"\le": r"\ge", r"\ge": r"\le", "<": ">", ">": "<", r"\ne": r"\ne"}
_REGION = re.compile(rf"{RELATION.pattern}|\\(?:cup|cap|setminus|backslash|notin)(?![A-Za-z])|\\mathbb\s*+\{{?R|\\infty.*or")
_UNKNOWN = re.compile(r"[A-Za-z](?:_\{?\w+\}?)?'*(?:\s*+\([A-Za-z]\))?")
_REALS = re.compile(r"\\mathbb\{R\}\s*+([\^_](?=.*(?:[+>]|\\ge))[{}+\s\d]*+(?:>|\\g?eq?)?[{}+\s\d]*+)?")
_BUILDER = re.compile(r"^\\\{\s*+[A-Za-z]\s*+(?:\\in\s*+\\mathbb\s*+\{?R\}?\s*+)?(?::|\|)\s*+(.*)\\\}$")  # {x | …}
_WITHOUT = re.compile(r"\\(?:setminus|backslash)(?![A-Za-z])|-(?=\s*+\\\{)")
_OR = re.compile(r"\\text\s*+\{\s*+,?\s*+or\s*+\}|,?\s*+(?<![\\A-Za-z])or(?![A-Za-z])|\\(?:vee|lor|cup)(?![A-Za-z])|或")
_ALSO = re.compile(r"\\text\s*+\{\s*+,?\s*+and\s*+\}|,?\s*+(?<![\\A-Za-z])and(?![A-Za-z])|\\(?:wedge|land|cap)(?![A-Za-z])")
_SIZE = re.compile(r"\|\s*+([A-Za-z])\s*+(?:([-+])\s*+([^|]+))?\|")


def _read_region(text: str) -> Region | None:
    """The region that a union, an inequality in one unknown or a set of the reals describes; None for anything else."""
    text = _BUILDER.sub(r"\1", text).strip()
    for pattern, join in ((_OR, Union), (_WITHOUT, Complement), (_ALSO, Intersection)):
        pieces = [piece for piece in pattern.split(text, maxsplit=join is Complement) if piece and piece.strip()]
        if len(pieces) > 1:
            parts = list(map(_read_region, pieces))
            if join is Complement and parts[1] is None:
                parts[1] = make_points(split_elements(pieces[1]))
            return _join(join, parts)
    pieces = split_top(text, ",;")
    if len(pieces) > 1 and (RELATION.search(pieces[0]) or r"\in" in pieces[0]):
        if r"\ne" in pieces[0] and not any(map(RELATION.search, pieces[1:])):
            return _join(Complement, [_read_inequality(pieces[0]), make_points(pieces[1:])])
        both = _join(Intersection, map(_read_region, pieces))  # of two that cannot both hold, one does
        return _join(Union, map(_read_region, pieces)) if both and both.numbers.is_empty else both
    if named := re.fullmatch(r"[A-Za-z]\w?\s*+(=|\\in(?![A-Za-z])|\\notin(?![A-Za-z]))\s*+(.+)", text):
        region = _read_region(named[2]) or (make_points([named[2]]) if named[1] == "=" else None)
        return _join(Complement, [Region(S.Reals), region]) if named[1] == r"\notin" else region
    if reals := _REALS.fullmatch(text):
        low, brackets = ("0", "[)" if "e" in reals[1] else "()") if reals[1] else (r"-\infty", "()")
        return make_interval([low, r"\infty"], brackets)
    if text.startswith(r"\{") and text.endswith(r"\}"):
        return make_points(split_elements(text))
    if (group := split_brackets(text)) and len(group[1]) == 2:
        return make_interval(group[1], group[0] + group[2])
    return _read_inequality(text)


def make_interval(ends: list[str], brackets: str) -> Region | None:
    low, high = map(evaluate, ends)
    numbers = None if low is None or high is None else Interval(low, high, *(bracket in "()" for bracket in brackets))
    return None if numbers is None or numbers.is_empty else Region(numbers)


def make_points(items: Sequence[str]) -> Region | None:
    ends = list(map(evaluate, items))
    return None if None in ends else Region(FiniteSet(*ends))


def _join(operation: Callable[..., Any], parts: Iterable[Region | None]) -> Region | None:
    """The union, intersection or difference of parts that have at most one unknown."""
    parts = list(parts)
    regions = [part for part in parts if part is not None]
    unknowns = {part.unknown for part in regions} - {""}
    if len(regions) < len(parts) or len(unknowns) > 1:
        return None
    return Region(operation(*(part.numbers for part in regions)), min(unknowns, default=""))


def _read_inequality(text: str) -> Region | None:
    """An inequality in one unknown: `x > 2`, `0 < x \\le 1`, `x \\ne 1`, `|x - 2| < 1`; None if nothing fulfils it."""
    parts = [part.strip() for part in RELATION.split(text)]
    if len(parts) not in (3, 5):
        return None
    region = _join(Intersection, [_read_link(*parts[place : place + 3]) for place in range(0, len(parts) - 2, 2)])
    return None if region and region.numbers.is_empty else region


def _read_link(left: str, sign: str, right: str) -> Region | None:
    if not _UNKNOWN.fullmatch(left) and not _SIZE.fullmatch(left):
        left, right, sign = right, left, MIRRORED[sign]
    size = _SIZE.fullmatch(left)
    middle = (f"-({size[3]})" if size[2] == "+" else size[3] or "0") if size else ""
    low, high = (evaluate(f"{middle} {way} ({right})") for way in "-+") if size else (-oo, evaluate(right))
    if low is None or high is None or _UNKNOWN.fullmatch(right) or not (size or _UNKNOWN.fullmatch(left)):
        return None
    is_open = sign in ("<", r"\ge")  # x ≥ 2 is all but x < 2
    numbers = FiniteSet(low, high) if sign == r"\ne" else Interval(low, high, is_open, is_open)
    return Region(numbers if sign in ("<", r"\le") else S.Reals - numbers, size[1] if size else left)


# Names and numbers in words

_ONE_NAME = re.compile(r"\s*+(\\?[A-Za-z]+)\s*+(?:_\s*+(\{[^{}]*\}|\w))?\s*+('*)\s*+(?:\(([^()]*)\))?\s*+$")
_INDEX = re.compile(
    r"(?<=[\w}])\s*+(?:_\s*+(?:\{[^{}]*\}|\w)|\((?>(?:[^()=]|\([^()=]*+\))*)\)|')"
)  # indices, arguments, primes
_NAMES = re.compile(r"(?=.*[A-Za-z])(?!.*\\(?:sqrt|infty))[A-Za-z\\+ |:/\[\]{}]+")
_RATIO = re.compile(r"[:/]|\\frac")
_TEENS = "thir four fif six seven eigh nine"
_WORDS = "zero one two three four five six seven eight nine ten eleven twelve " + "teen ".join(_TEENS.split()) + "teen"
NUMERALS = {word: number for number, word in enumerate(_WORDS.split())}
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
NUMERALS |= {ten: 10 * number for number, ten in enumerate(_TENS, 2)}
NUMERALS |= {f"{ten}-{word}": NUMERALS[ten] + NUMERALS[word] for ten in _TENS for word in _WORDS.split()[1:10]}
_FRACTIONS = "half=2 halve=2 third=3 quarter=4 fourth=4 fifth=5 sixth=6 seventh=7 eighth=8 ninth=9 tenth=10"
_PARTS = dict(pair.split("=") for pair in _FRACTIONS.split())
_NUMERAL = re.compile(r"([A-Za-z]+(?:-(?!hal|third|quart)[a-z]+)?)(?:[\s-]+([a-z]+?)s?\b)?(.*)")
_TWICE = re.compile(r"(\w+) \((\w+)\)")


def is_name(text: str, ratio: bool = False) -> bool:
    """Whether one side of an equation names what the other is: `x`, `f(x)`, `P(A)`, `|z|`, `m + n`, `Area`; not `2x` or `x^2`.

    With `ratio` also a ratio of such: `a : b`, `AB/BC`, `[ABC]:[DEF]` or `\\frac{x}{y}`.
    """
    plain = unwrap_text(text)
    while (shorter := _INDEX.sub("", plain)) != plain:
        plain = shorter
    return _NAMES.fullmatch(plain) is not None and (ratio or not _RATIO.search(plain))


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


def order_names(names: Sequence[str]) -> list[int]:
    """The order in which values are listed: `x, y` and the like by the alphabet, a Greek letter last; other names as they are."""
    order = sorted(range(len(names)), key=lambda place: (names[place].startswith("\\"), names[place]))
    letters = "".join(names[place] for place in order if not names[place].startswith("\\"))
    return order if letters in ascii_letters and len(names) - len(letters) < 2 else list(range(len(names)))


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
