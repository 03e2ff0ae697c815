"""Compares one gold answer with one answer: both are read as values (`values`), and each type has one comparison."""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, ClassVar

from lm_eval_takeover.answers import notation
from lm_eval_takeover.answers.expressions import Unparsed, find_factor, is_same_value, parse_expression
from lm_eval_takeover.answers.normalisation import normalise, parse_rational, split_top, strip_thousands
from lm_eval_takeover.answers.values import (
    MIRRORED,
    Amount,
    Clock,
    Equation,
    Group,
    InBase,
    Matrix,
    Ratio,
    Region,
    Relation,
    Remainder,
    Value,
    is_ratio,
    list_points,
    make_interval,
    make_points,
    read_relation,
    read_value,
)

_OR_LIST = re.compile(r"\d,\d{3}(?!\d)")  # 100,200 may be a list of two
_DECIMAL = re.compile(r"-?(\d*)\.(\d+)")
_CALL = re.compile(r"[^()]*\(\s*+([A-Za-z])\s*+\)")
_MANY_DIGITS = 7  # significant ones: so many make a decimal equal to the fraction that it rounds
_MAX_ELEMENTS = 16  # a list with more surplus elements than this is wrong without a comparison
_LEAST_PERCENTAGE = 4  # from here on a number may be a percentage without its sign; 1 is not 1%
_FULL_TURN = 7  # a larger number without a π is no angle in radians


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


class Comparison:
    """One gold answer against one answer, both tidied; remembers whether a part of the answer could not be read."""

    def __init__(self, tolerance: float):
        self.tolerance = tolerance
        self.unparsed = False

    def equal(self, gold: str, answer: str) -> bool:
        """Whether two texts are one answer: as text, as numbers, or as values of one type."""
        if not gold or not answer:
            return False
        verdict = equal_by_text(gold, answer, self.tolerance)
        if verdict is not None:
            return verdict
        whole = strip_thousands(gold), strip_thousands(answer)
        if whole != (gold, answer) and not any(split_top(text, ",;")[1:] for text in whole) and self.equal(*whole):
            return True
        left, right = read_value(gold), read_value(answer)
        if type(left) is type(right):
            return bool(compare(self, left, right)) if (compare := self._comparisons.get(type(left))) else left == right
        if isinstance(left, InBase) and left.digits == answer.strip():  # the base may be left out
            return True
        return self._equal_across(left, gold, right, answer) or self._equal_across(right, answer, left, gold)

    def _equal_across(self, value: Value, text: str, other: Value, answer: str) -> bool:
        """Two values of different types, the first read as the type of the second, where it can be."""
        match value, other:
            case (Equation(), Group(_, _, [_, *_])) | (Group(_, _, [_, *_]), Equation()):
                return False  # one of several named values
            case Equation(sides), _:
                given = self._find_given(sides)
                return given is not None and self.equal(given, answer)
            case Group(items, brackets, None), Region():
                is_interval = len(items) == 2 and brackets not in ("", "{}")
                region = make_interval(items, brackets) if is_interval else make_points(items)
                return region is not None and self._compare_regions(region, other)
            case Group(items, brackets), Matrix(rows) if brackets not in ("", "{}"):
                return 1 in (len(rows), len(rows[0])) and self._are_same_parts(items, [cell for row in rows for cell in row])
            case Group(items, "" | "{}"), _ if items:
                return all(self.equal(item, answer) for item in items)
            case Region(), Relation():
                return self._compare_relations(read_relation(text), other)
            case Clock(_) | Ratio([_, _]), Amount() if is_ratio(text):
                return self.equal("\\frac{{{}}}{{{}}}".format(*split_top(text, ":")), answer)
            case InBase(digits, base), Amount(number, _):
                return base == 10 and self.equal(digits, number)
            case Remainder(number, _), Amount(plain, _):
                return str(number) in text and self.equal(str(number), plain)
        return False

    # One comparison for each type

    def _compare_amounts(self, left: Amount, right: Amount) -> bool:
        """A unit may be left out, but not be another one. 28% is 28 and 0.28. Degrees equal radians that are written with a π."""
        (a, unit), (b, other) = left, right
        both = unit.is_given and other.is_given
        if _PERCENT in (unit.measured, other.measured) and unit.measured != other.measured:
            percent, plain = (a, b) if unit.measured == _PERCENT else (b, a)
            return not both and self._is_percentage(percent, plain)
        if _DEGREE in (unit.measured, other.measured) and unit.measured != other.measured:
            angle, radians, its_unit = (a, b, other) if unit.measured == _DEGREE else (b, a, unit)
            if its_unit.measured == _RADIAN or (not its_unit.is_given and r"\pi" in radians):
                return self._compare_expressions(rf"\frac{{({angle}) \pi}}{{180}}", radians)
            both = both and its_unit.measured not in _TEMPERATURES
        elif _RADIAN in (unit.measured, other.measured) and not both:
            number = parse_rational(a)
            if number is not None and abs(number) >= _FULL_TURN:
                return False
        if both and not unit.includes(other):
            return False
        if both and unit.size != other.size:
            a = _multiply(a, unit.size / other.size)
        return self._compare_expressions(a, b) if not (unit.is_given or other.is_given) else self.equal(a, b)

    def _is_percentage(self, percent: str, plain: str) -> bool:
        number = parse_rational(percent)
        if number is not None and abs(number) >= _LEAST_PERCENTAGE and self.equal(percent, plain):
            return True
        return Comparison(self.tolerance / 100).equal(_multiply(percent, Fraction(1, 100)), plain)

    def _compare_groups(self, left: Group, right: Group) -> bool:
        """Lists and sets match as sets, tuples in order; names say which value is which."""
        if left.names and right.names:
            order = [_find_place(name, right.names) for name in left.names]
            return None not in order and self._are_same_parts(left.items, [right.items[place or 0] for place in order])
        if left.names or right.names:
            named, other = (left, right) if left.names else (right, left)
            names = named.names or []
            if other.brackets == "{}" or (not other.brackets and len({name.partition("_")[0] for name in names}) == 1):
                return self._are_same_sets(left, right)
            items = [named.items[place] for place in notation.order_names(names)]
            return self._are_same_parts(*((items, other.items) if left.names else (other.items, items)))
        tuples = [group.brackets not in ("", "{}") for group in (left, right)]
        if all(tuples):
            brackets = {left.brackets, right.brackets}
            if len(brackets) > 1 and (len(left.items) == 2 or not brackets <= {"()", "[]"}):
                return False
            return self._are_same_parts(left.items, right.items)
        if not any(tuples):
            return self._are_same_sets(left, right)
        whole = left if tuples[0] else right
        listed = {left.brackets, right.brackets} == {"", "()"}
        return listed and _must_be_tuple(whole.items) and self._are_same_parts(left.items, right.items)

    def _are_same_sets(self, left: Group, right: Group) -> bool:
        if abs(len(right.items) - len(left.items)) > _MAX_ELEMENTS:
            return False
        counted = left.brackets == right.brackets == "" and all(
            len(set(map(normalise, group.items))) > 1 for group in (left, right)
        )
        if counted and len(left.items) != len(right.items):
            return False
        rest = list(right.items)
        for part in left.items:
            match = next((other for other in rest if self._is_same_item(part, other)), None)
            if match is None and (counted or not any(self._is_same_item(part, other) for other in right.items)):
                return False
            if match is not None:
                rest.remove(match)
        return all(any(self._is_same_item(part, other) for part in left.items) for other in rest)

    def _is_same_item(self, left: str, right: str) -> bool:
        """Within a set, `\\{1\\}` is not 1."""
        return left.startswith(r"\{") == right.startswith(r"\{") and self.equal(left, right)

    def _are_same_parts(self, left: Sequence[str], right: Sequence[str]) -> bool:
        return len(left) == len(right) and all(self.equal(a, b) for a, b in zip(left, right, strict=True))

    def _compare_regions(self, left: Region, right: Region) -> bool:
        """Two regions are equal if they hold the same of their ends and of the gaps between these."""
        if left.unknown and right.unknown and left.unknown != right.unknown:
            return False
        return all(left.holds(at) == right.holds(at) for at in list_points(*left.ends, *right.ends))

    def _compare_relations(self, left: Relation, right: Relation) -> bool:
        """The same parts in the same or the mirrored order, or a multiple; a negative factor turns the sign."""
        mirrored = Relation(right.sides[::-1], [MIRRORED[sign] for sign in right.signs[::-1]])
        for other in (right, mirrored):
            if left.signs == other.signs and self._are_same_parts(left.sides, other.sides):
                return True
        if len(left.sides) == len(right.sides) == 2:
            factor = find_factor(*left.sides, *right.sides)
            real = factor is not None and factor.is_extended_real
            return bool(real and right.signs[0] == (left.signs[0] if factor > 0 else MIRRORED[left.signs[0]]))
        return False

    def _compare_equations(self, left: Equation, right: Equation) -> bool:
        """Two equations are equal if they say the same name's value, or if one is a multiple of the other."""
        a, b = left.sides, right.sides
        other = _rename(a, b)
        named = notation.is_name(a[0]) and notation.is_name(b[0]) and notation.is_same_name(a[0], other[0])
        if named and self._find_given(a) and self._find_given(b) and self.equal(a[-1], other[-1]):
            return True
        return len(a) == len(b) == 2 and find_factor(*a, *b) is not None

    def _find_given(self, sides: list[str]) -> str | None:
        """The value that an equation gives: to a name (`x = 5`, `m + n = 5`, `5 = x`), or by a true chain (`2 + 3 = 5`)."""
        if notation.is_name(sides[-1]) and not notation.is_name(sides[0]):
            sides = sides[::-1]
        value = sides[-1]
        named = all(notation.is_name(side, ratio=True) or self.equal(side, value) for side in sides[:-1])
        return value if named else None

    def _compare_matrices(self, left: Matrix, right: Matrix) -> bool:
        same = len(left.rows) == len(right.rows)
        return same and all(self._are_same_parts(a, b) for a, b in zip(left.rows, right.rows, strict=True))

    def _compare_ratios(self, left: Ratio, right: Ratio) -> bool:
        """Ratios are proportional: `2:3:4` is `4:6:8`, and not `2:4:3`, which divides to the same number."""
        a, b = left.parts, right.parts
        crossed = ([rf"({part}) \cdot ({first})" for part in parts] for parts, first in ((a, b[0]), (b, a[0])))
        return self._are_same_parts(*crossed)

    _comparisons: ClassVar[dict[type, Callable[[Any, Any, Any], bool]]] = {
        Amount: _compare_amounts,
        Group: _compare_groups,
        Region: _compare_regions,
        Relation: _compare_relations,
        Equation: _compare_equations,
        Matrix: _compare_matrices,
        Ratio: _compare_ratios,
    }  # the others are equal as they are; fmt: skip

    def _compare_expressions(self, gold: str, answer: str) -> bool:
        if r"\ldots" in gold or r"\ldots" in answer:
            return False  # math_verify drops an ellipsis; such answers match as text or not at all
        lowered = _lower_letters(gold), _lower_letters(answer)
        return self._are_same_expressions(gold, answer) or (
            lowered != (gold, answer) and None not in lowered and self._are_same_expressions(*lowered)  # type: ignore[arg-type]
        )

    def _are_same_expressions(self, gold: str, answer: str) -> bool:
        try:
            right = parse_expression(answer, gold)
        except Unparsed:
            self.unparsed = True
            return False
        try:
            return is_same_value(parse_expression(gold, answer), right, self.tolerance)
        except Unparsed:
            return False


_PERCENT, _DEGREE, _RADIAN = ((("%", 1),), (("°", 1),), (("rad", 1),))
_TEMPERATURES = ((("℃", 1),), (("℉", 1),))


def _multiply(number: str, factor: Fraction) -> str:
    """A number times a rational, as text."""
    value = parse_rational(number)
    return rf"({number}) \cdot \frac{{{factor.numerator}}}{{{factor.denominator}}}" if value is None else str(value * factor)


def _find_place(name: str, names: list[str]) -> int | None:
    return next((place for place, other in enumerate(names) if notation.is_same_name(name, other)), None)


def _rename(left: list[str], right: list[str]) -> list[str]:
    """The right equation in the left one's argument: f(z) = z as f(x) = x."""
    first, second = (_CALL.fullmatch(sides[0]) for sides in (left, right))
    if not (first and second) or first[1] in right[-1]:
        return right
    return [re.sub(rf"(?<![\\A-Za-z]){second[1]}(?![A-Za-z])", first[1], side) for side in right]


def _must_be_tuple(parts: list[str]) -> bool:
    """Whether two values in brackets are no interval, so that they may be listed without: three, or descending."""
    values = [parse_rational(part) for part in parts]
    return len(parts) > 2 or (values[0] is not None and values[1] is not None and values[0] > values[1])


def _lower_letters(text: str) -> str | None:
    """Lower-case letters, commands as they are: R and r may be one letter. None for a text that has both of one."""
    letters = set(re.sub(r"\\[A-Za-z]+", "", text))
    if any(letter.isupper() and letter.lower() in letters for letter in letters):
        return None
    return re.sub(r"\\[A-Za-z]+|[A-Z]", lambda match: match[0] if len(match[0]) > 1 else match[0].lower(), text)
