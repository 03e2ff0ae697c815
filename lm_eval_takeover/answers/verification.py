"""Whether an answer is the gold answer: by text (`text_verdicts`), else both are read as values (`values`), with one comparison
for each type. Loads sympy.

No text of an answer reaches `eval`, `exec`, `parse_expr` or `sympify`. `verify` has no time limit; `judging.Judge` has one.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from string import ascii_uppercase
from typing import Any

import math_verify

from lm_eval_takeover.answers import values
from lm_eval_takeover.answers.expressions import find_factor, is_same_value, lower_letters, parse_expressions
from lm_eval_takeover.answers.letters import read_letter
from lm_eval_takeover.answers.normalisation import normalise, parse_rational, split_top, tidy, unwrap_text
from lm_eval_takeover.answers.text_verdicts import Outcome, equal_by_text, is_too_large, verdict_by_text
from lm_eval_takeover.answers.values import MIRRORED, Amount, Exact, Group, Region, Relation, Value

# What an answer may add about its letters: for all x; k an integer; x at least 2; only.
_CONDITION = re.compile(
    r"\s*+,?\s*+\\text\s*+\{\s*+,?\s*+(?:for|where|with)\b[^{}]*\}[^,]*?(?=,|\\text|\s++or\b|\s++and\b|$)"
    r"|(?<=[^\s,])\s*+,?\s*+(?:\bfor (?:all|any|every)\b.*|\\forall.*)$"
    r"|(?<=[^\s,])\s*+,?\s*+\(?\s*+[A-Za-z]\s*+\\in\s*+\\mathbb\s*+\{?\s*+[ZNR]\s*+\}?\s*+(?:\^\+|_\+)?\)?$"
    r"|(?<=[^\s,])\s*+\(\s*+[A-Za-z]\s*+(?:\\[gln]e(?![a-z])|[<>])[^()]*\)$"
    r"|^((?:(?!\\[gln]e(?![a-z]))[^<>])+?)\s*+,\s*+[A-Za-z]\s*+(?:\\ge|>)\s*+\d+$"
    r"|\s*+\\text\s*+\{\s*+only\s*+\}$|\s++only$|^\\text\s*+\{\s*+[Aa]ll\b[^{}]*\}\s*+"
)
_LETTER = re.compile(r"\(?[A-Z]\)?")
_LABELLED = re.compile(r"(?:\([A-E]\)|[A-E][).:])\s++(\S.*)")  # the value after the label of its choice: (C) 10
_WORD = re.compile(r"\\text\s*+\{\s*+(\(?)([A-Za-z]+)\)?\s*+\}")
_NEUTRAL = {"a", "an", "the", "is", "it", "f", "graph", "curve", "figure", "function", "answer", "due", "x"}


def verify(gold: str, answer: str, tolerance: float = 0.0) -> Outcome:
    """The outcome of `answer`. What cannot be parsed or raises is `unparsed`. `tolerance` is absolute."""
    if outcome := verdict_by_text(gold, answer, tolerance):
        return outcome
    if _has_same_words(gold, answer) or _has_same_words(answer, gold):
        return "correct"
    left, right = (_CONDITION.sub(r"\1", values.name_sets(tidy(text))) for text in (gold, answer))
    if not _LETTER.fullmatch(unwrap_text(left)) and (labelled := _LABELLED.fullmatch(unwrap_text(right))):
        right = labelled[1]
    if is_too_large(right):  # a fraction may be one character
        return "unparsed"
    left, right = (values.read_numerals(a) if any(map(str.isdigit, b)) else a for a, b in ((left, right), (right, left)))
    comparison = _Comparison(tolerance)
    try:
        if comparison.equal(left, right):
            return "correct"
    except Exception:  # math_verify and sympy raise their own kinds; whatever fails is not a correct answer
        return "unparsed"
    return "unparsed" if comparison.unparsed else "incorrect"


def _has_same_words(gold: str, answer: str) -> bool:
    """Whether an answer is the gold word or letter, with words that change nothing: `Graph C`, `due east`, `an ellipse`."""
    if (match := _WORD.fullmatch(gold.strip().strip("$"))) is None:
        return False
    word, text = match[2].casefold(), unwrap_text(tidy(answer))
    if match[1] and len(word) == 1:
        return read_letter(rf"\boxed{{{answer}}}", letters=ascii_uppercase).answer == word.upper()
    words = re.findall(r"[a-z]+", text.casefold())
    return len(word) > 1 and words.count(word) == 1 and set(words) - {word} <= _NEUTRAL


@lru_cache(maxsize=256)
def _parse_stock(text: str) -> list[Any]:
    """The expressions that math_verify alone reads. It may call `eval`: use this in a worker only (`judging`)."""
    targets = [math_verify.LatexExtractionConfig(), math_verify.ExprExtractionConfig()]
    return list(math_verify.parse(text, targets, parsing_timeout=None))


def read_stock(response: str) -> str | None:
    """The answer of a response, as math_verify reads it."""
    parsed = _parse_stock(response)
    return str(parsed[-1]) if parsed else None


def verify_stock(gold: str, response: str) -> Outcome:
    """Whether math_verify finds the gold answer in a response."""
    parsed = _parse_stock(f"${gold.strip('$')}$")
    if not parsed:
        return "unparsed"
    return "correct" if math_verify.verify(parsed, _parse_stock(response), timeout_seconds=None) else "incorrect"


_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_CALL = re.compile(r"[^()]*\(\s*+([A-Za-z])\s*+\)")
_MAX_ELEMENTS = 16  # a list with more surplus elements than this is wrong without a comparison
_LEAST_PERCENTAGE = 4  # from here on a number may be a percentage without its sign; 1 is not 1%
_FULL_TURN = 7  # a larger number without a π is no angle in radians
_PERCENT, _DEGREE, _RADIAN = ((("%", 1),), (("°", 1),), (("rad", 1),))
_TEMPERATURES = ((("℃", 1),), (("℉", 1),))


class _Comparison:
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
        whole = [_THOUSANDS.sub(lambda match: match[0].replace(",", ""), text) for text in (gold, answer)]
        if whole != [gold, answer] and not any(split_top(text, ",;")[1:] for text in whole) and self.equal(*whole):
            return True
        left, right = values.read_value(gold), values.read_value(answer)
        if type(left) is type(right):
            return bool(getattr(self, f"_compare_{type(left).__name__.lower()}")(left, right))
        if isinstance(left, Exact) and left.value[0] == answer.strip():  # the base may be left out
            return True
        return self._equal_across(left, gold, right, answer) or self._equal_across(right, answer, left, gold)

    def _equal_across(self, value: Value, text: str, other: Value, answer: str) -> bool:
        """Two values of different types, the first read as the type of the second, where it can be."""
        match value, other:
            case (Relation(), Group(_, _, [_, *_])) | (Group(_, _, [_, *_]), Relation()):
                return False  # one of several named values
            case Relation(sides, ["=", *_]), _:
                given = self._find_given(sides)
                return given is not None and self.equal(given, answer)
            case Group(items, brackets, []), Region():
                is_interval = len(items) == 2 and brackets[:1] in ("(", "[")
                region = values.make_interval(items, brackets) if is_interval else values.make_points(items)
                return region is not None and self._compare_region(region, other)
            case Group(items, "" | "{}"), _ if items:
                return all(self.equal(item, answer) for item in items)
            case Region(), Relation(_, signs):
                relation = values.read_relation(text)
                return len(relation.signs) == len(signs) and self._compare_relation(relation, other)
            case ((Exact(_, _, number) | Group([number], ":")), Amount()):
                return self.equal(number, answer)
        return False

    def _compare_amount(self, left: Amount, right: Amount) -> bool:
        """A unit may be left out, but not be another one. 28% is 28 and 0.28. Degrees equal radians that are written with a π."""
        for (a, unit), (b, other) in ((left, right), (right, left)):
            if unit.measured == other.measured:
                break
            if unit.measured == _PERCENT:
                return not other.is_given and self._is_percentage(a, b)
            if unit.measured == _DEGREE and (other.measured == _RADIAN or (not other.is_given and r"\pi" in b)):
                return self._compare_expressions(rf"\frac{{({a}) \pi}}{{180}}", b)
            if unit.measured == _DEGREE and other.measured in _TEMPERATURES:
                return self.equal(a, b)
            if unit.measured == _RADIAN and not other.is_given and abs(parse_rational(a) or Fraction()) >= _FULL_TURN:
                return False
        (a, unit), (b, other) = left, right
        if unit.is_given and other.is_given:
            if unit.measured != other.measured or not (unit.words <= other.words or other.words <= unit.words):
                return False
            if unit.size != other.size:
                a = _multiply(a, unit.size / other.size)
        return self._compare_expressions(a, b) if not (unit.is_given or other.is_given) else self.equal(a, b)

    def _is_percentage(self, percent: str, plain: str) -> bool:
        number = parse_rational(percent)
        if number is not None and abs(number) >= _LEAST_PERCENTAGE and self.equal(percent, plain):
            return True
        return _Comparison(self.tolerance / 100).equal(_multiply(percent, Fraction(1, 100)), plain)

    def _compare_group(self, left: Group, right: Group) -> bool:
        """Lists and sets match as sets, tuples in order; names say which value is which."""
        if left.names and right.names:
            pairs, others = (list(zip(group.names, group.items, strict=True)) for group in (left, right))
            return len(pairs) == len(others) and all(
                any(values.is_same_name(name, other) and self.equal(value, same) for other, same in others)
                for name, value in pairs
            )
        if left.names or right.names:
            named, other = (left, right) if left.names else (right, left)
            if other.brackets == "{}" or (not other.brackets and len({name.partition("_")[0] for name in named.names}) == 1):
                return self._are_same_sets(left, right)
            items = [named.items[place] for place in values.order_names(named.names)]
            return self._are_same_parts(*((items, other.items) if left.names else (other.items, items)))
        brackets = {left.brackets, right.brackets}
        if brackets <= {"", "{}"}:
            return self._are_same_sets(left, right)
        if brackets == {"", "()"}:  # a tuple without its brackets: three values, or two that are no interval
            first, second, *more = map(parse_rational, left.items if left.brackets else right.items)
            allowed = bool(more) or (first is not None and second is not None and first > second)
        else:  # a tuple may be a column or a row
            allowed = len(brackets) == 1 or (brackets == {"()", "[]"} and len(left.items) != 2)
            allowed |= len(brackets & {"()", "[]"}) == len(brackets & {"column", "row"}) == 1
        return allowed and self._are_same_parts(left.items, right.items)

    def _are_same_sets(self, left: Group, right: Group) -> bool:
        if abs(len(right.items) - len(left.items)) > _MAX_ELEMENTS:
            return False
        counted = left.brackets == right.brackets == "" and all(
            len(set(map(normalise, group.items))) > 1 for group in (left, right)
        )
        rest = list(right.items)
        for part in left.items:
            match = next((other for other in rest if self._is_same_item(part, other)), None)
            if match is not None:
                rest.remove(match)
            elif counted or not any(self._is_same_item(part, other) for other in right.items):
                return False
        return not (counted and rest) and all(any(self._is_same_item(part, other) for part in left.items) for other in rest)

    def _is_same_item(self, left: str, right: str) -> bool:
        """Within a set, `\\{1\\}` is not 1."""
        return left.startswith(r"\{") == right.startswith(r"\{") and self.equal(left, right)

    def _are_same_parts(self, left: Sequence[str], right: Sequence[str]) -> bool:
        return len(left) == len(right) and all(self.equal(a, b) for a, b in zip(left, right, strict=True))

    def _compare_region(self, left: Region, right: Region) -> bool:
        return left.numbers == right.numbers and len({left.unknown, right.unknown} - {""}) < 2

    def _compare_relation(self, left: Relation, right: Relation) -> bool:
        """Equations by the value of one name, inequalities part by part, mirrored or not; else both by a factor."""
        a, b = left.sides, right.sides
        if left.signs[0] == right.signs[0] == "=":
            first, second = (_CALL.fullmatch(sides[0]) for sides in (a, b))
            if first and second and first[1] not in b[-1]:  # f(z) = z as f(x) = x
                b = [re.sub(rf"(?<![\\A-Za-z]){second[1]}(?![A-Za-z])", first[1], side) for side in b]
            named = values.is_name(a[0]) and values.is_name(b[0]) and values.is_same_name(a[0], b[0])
            if named and self._find_given(a) and self._find_given(b) and self.equal(a[-1], b[-1]):
                return True
        else:
            mirrored = Relation(b[::-1], [MIRRORED[sign] for sign in right.signs[::-1]])
            if any(left.signs == other.signs and self._are_same_parts(a, other.sides) for other in (right, mirrored)):
                return True
        factor = find_factor(*a, *b) if len(a) == len(b) == 2 else None
        return factor is not None and right.signs[0] == (left.signs[0] if factor.is_positive else MIRRORED[left.signs[0]])

    def _find_given(self, sides: list[str]) -> str | None:
        """The value that an equation gives: to a name (`x = 5`, `m + n = 5`, `5 = x`), or by a true chain (`2 + 3 = 5`)."""
        if values.is_name(sides[-1]) and not values.is_name(sides[0]):
            sides = sides[::-1]
        value = sides[-1]
        named = all(values.is_name(side, ratio=True) or self.equal(side, value) for side in sides[:-1])
        return value if named else None

    def _compare_exact(self, left: Exact, right: Exact) -> bool:
        return (left.kind, left.value) == (right.kind, right.value)

    def _compare_expressions(self, gold: str, answer: str) -> bool:
        """By value, as written and in lower case: lowered, `DR` is a differential to the parser."""
        if r"\ldots" in gold or r"\ldots" in answer:
            return False  # math_verify drops an ellipsis; such answers match as text or not at all
        for texts in dict.fromkeys([(gold, answer), lower_letters(gold, answer)]):
            left, right = parse_expressions(*texts)
            self.unparsed |= right is None
            if left is not None and right is not None and is_same_value(left, right, self.tolerance):
                return True
        return False


def _multiply(number: str, factor: Fraction) -> str:
    """A number times a rational, as text."""
    value = parse_rational(number)
    return rf"({number}) \cdot \frac{{{factor.numerator}}}{{{factor.denominator}}}" if value is None else str(value * factor)
