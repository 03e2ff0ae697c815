"""Whether an answer is the gold answer: exact text, then rational value, then math_verify behind a guard.

Lists, sets, tuples, intervals, matrices, unions, equations and units are taken apart by text first, so that math_verify sees
one expression at a time. Plain expressions go through a small grammar of ours that writes them as LaTeX, and number literals
are made without `sympify`: no text of an answer reaches `eval`, `exec`, `parse_expr` or `sympify`. A *correct* of math_verify
passes a guard, because it takes some unequal numbers and expressions for equal.

`verify` runs in the calling process without a time limit; `judging.Judge` runs it in workers with one.
"""

import logging
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from lm_eval_takeover.normalisation import (
    bracketed,
    elements,
    is_measure,
    may_be_list,
    money,
    normalise,
    plain,
    rational,
    split_top,
    split_unit,
    tidy,
    without_thousands,
)

Reason = Literal["unparsed", "timed_out"]

MAX_LENGTH = 2000  # characters of an answer that is compared as more than text
MAX_NESTING = 20
MAX_NUMBER = 100  # digits in a row
PRECISION = 1e-6  # relative, for numbers that math_verify calls equal


class Verdict(NamedTuple):
    """Whether an answer is correct, and if it could not be judged, why."""

    correct: bool
    reason: Reason | None = None


class Unparsed(Exception):
    """An answer that math_verify cannot read."""


def verdict_by_text(gold: str, answer: str, tolerance: float = 0.0) -> Verdict | None:
    """The verdict where text or rational values decide, which is cheap and cannot hang; None where they do not."""
    if gold == answer:
        return Verdict(True)
    if too_large(answer):
        return Verdict(False, "unparsed")
    if normalise(gold) == normalise(answer):
        return Verdict(True)
    left, right = rational(gold), rational(answer)
    if left is None or right is None:
        return None
    correct = abs(left - right) <= Fraction(tolerance)
    return None if not correct and (may_be_list(gold) or may_be_list(answer)) else Verdict(correct)


def too_large(answer: str) -> bool:
    """Whether an answer is over the limits on length, nesting or digits that apply before anything is parsed."""
    if len(answer) > MAX_LENGTH or re.search(rf"\d{{{MAX_NUMBER + 1}}}", answer):
        return True
    depth = deepest = 0
    for character in answer:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, abs(depth))
    return deepest > MAX_NESTING


def verify(gold: str, answer: str, tolerance: float = 0.0) -> Verdict:
    """The verdict on `answer`. What cannot be parsed or raises is incorrect, with a reason. `tolerance` is absolute."""
    verdict = verdict_by_text(gold, answer, tolerance)
    if verdict is not None:
        return verdict
    if {money(gold), money(answer)} == {"dollar", "cent"}:
        return Verdict(False)
    comparison = _Comparison(tolerance)
    if _same_words(gold, answer):
        return Verdict(True)
    left, right = (_unconditional(tidy(text)) for text in (gold, answer))
    if too_large(right):  # a fraction may be one character
        return Verdict(False, "unparsed")
    try:
        correct = comparison.equal(left, right)
    except Exception:  # math_verify and sympy raise their own kinds; whatever fails is not a correct answer
        return Verdict(False, "unparsed")
    return Verdict(correct, "unparsed" if comparison.unparsed and not correct else None)


# What an answer says about its letters beside its value: for all x; k an integer; n at least 2; only.
_CONDITIONS = [
    re.compile(r"\s*,?\s*\\text\s*\{\s*,?\s*(?:for|where|with)\b[^{}]*\}[^,{]*?(?=,|\\text|\s+or\b|\s+and\b|$)"),
    re.compile(r"(?<=[^\s,])\s*,?\s*(?:\bfor (?:all|any|every)\b.*|\\forall.*)$"),
    re.compile(r"(?<=[^\s,])\s*,?\s*\(?\s*[A-Za-z]\s*\\in\s*\\mathbb\s*\{?\s*[ZNR]\s*\}?\s*(?:\^\+|_\+)?\)?$"),
    re.compile(r"(?<=[^\s,])\s*\(\s*[A-Za-z]\s*(?:\\[gln]e(?![a-z])|[<>])[^()]*\)$"),
    re.compile(r"^([^<>]*[^<>,\s])(?<!\\[gln]e)\s*,\s*[A-Za-z]\s*(?:\\ge|>)\s*\d+$"),
    re.compile(r"\s*\\text\s*\{\s*only\s*\}$|\s+only$"),
    re.compile(r"^\\text\s*\{\s*[Aa]ll\b[^{}]*\}\s*"),
]
_RELATION = re.compile(r"(\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])|[<>])")
_UNION = re.compile(r"\\cup(?![A-Za-z])")
_MEMBER = re.compile(r"\s*[A-Za-z](?:_\{?\w+\}?)?\s*\\in(?![A-Za-z])\s*")
_MATRIX = re.compile(r"\\begin\s*\{([pb]?(?:small)?matrix|array)\}(?:\s*\{[^{}]*\})?(.*)\\end\s*\{\1\}", re.DOTALL)
_UNKNOWN = re.compile(r"[A-Za-z](?:_\{?\w+\}?)?'*")
_NAME = re.compile(
    r"\\?[A-Za-z]+\s*(?:_\s*(?:\{[^{}]*\}|\w)\s*)*'*\s*(?:\(\s*([A-Za-z](?:\s*,\s*[A-Za-z])*)\s*\))?|\\angle\s*[\w{} ]+"
)
_BASE = re.compile(
    r"\(?\s*(\d+)\s*\)?\s*(?:_\s*\{?\s*\(?\s*(\d{1,2}|[a-z]+)\s*\)?\s*\}?|\(?\s*base\s+(\d{1,2}|[a-z]+)\s*\)?)"
)
_REALS = re.compile(r"\\mathbb\s*\{?\s*R\s*\}?|\\R(?![A-Za-z])")
_MAX_ELEMENTS = 16  # more elements than the gold has, before a list counts as wrong unread


def _unconditional(text: str) -> str:
    for condition in _CONDITIONS:
        if condition.groups:
            found = condition.fullmatch(text)
            text = found[1] if found and not _RELATION.search(found[1]) else text
        else:
            text = condition.sub("", text)
    return text


_CHOICE = re.compile(r"\(?([A-Z])\)(?:\s.*)?|(?i:graph|option|choice|answer)\s+\(?([A-Z])\)?")
_NEUTRAL = {"a", "an", "the", "is", "it", "f", "graph", "curve", "figure", "function", "answer", "due"}


def _same_words(gold: str, answer: str) -> bool:
    """A word or the letter of a choice, with words beside it that say nothing else: `Graph C`, `due east`, `an ellipse`."""
    word = re.fullmatch(r"\\text\s*\{\s*(\(?)([A-Za-z]+)\)?\s*\}", gold.strip().strip("$"))
    if word is None:
        return False
    said = plain(tidy(answer))
    if word[1] and len(word[2]) == 1:
        found = _CHOICE.fullmatch(said)
        return found is not None and (found[1] or found[2]) == word[2]
    words = [one.casefold() for one in re.findall(r"[A-Za-z]+", said)]
    return len(word[2]) > 1 and words.count(word[2].casefold()) == 1 and set(words) - {word[2].casefold()} <= _NEUTRAL


class _Comparison:
    """One gold answer against one answer, both tidied; remembers whether a part of the answer could not be read."""

    def __init__(self, tolerance: float):
        self.tolerance = tolerance
        self.unparsed = False

    def equal(self, gold: str, answer: str) -> bool:
        if not gold or not answer:
            return False
        if normalise(gold) == normalise(answer):
            return True
        left, right = rational(gold), rational(answer)
        if left is not None and right is not None:
            if abs(left - right) <= Fraction(self.tolerance):
                return True
            if not (may_be_list(gold) or may_be_list(answer)):
                return False
        for compare in (self._members, self._unions, self._lists, self._intervals, self._matrices, self._tuples):
            verdict = compare(gold, answer)
            if verdict is not None:
                return verdict
        for compare in (self._equations, self._percentages, self._units, self._bases):
            verdict = compare(gold, answer)
            if verdict is not None:
                return verdict
        return self._expressions(gold, answer)

    def _members(self, gold: str, answer: str) -> bool | None:
        """`x \\in [-2, 7]` is `[-2, 7]`, `(x, y) = (3, 2)` and `P(3, 2)` are `(3, 2)`."""
        left, right = _unnamed(gold), _unnamed(answer)
        return self.equal(left, right) if (left, right) != (gold, answer) and left and right else None

    def _unions(self, gold: str, answer: str) -> bool | None:
        left, right = (_union(text) for text in (gold, answer))
        if left is None and right is None:
            return None
        return self._same_sets(left or [_as_interval(gold)], right or [_as_interval(answer)])

    def _lists(self, gold: str, answer: str) -> bool | None:
        """Lists and sets match as sets; `1,234` is a number or a list of two, whichever matches."""
        whole = without_thousands(gold), without_thousands(answer)
        if whole != (gold, answer) and all(len(elements(text)) == 1 for text in whole) and self.equal(*whole):
            return True
        left, right = elements(gold), elements(answer)
        if len(left) < 2 and len(right) < 2 and [gold] == left and [answer] == right:
            return None
        if len(left) == len(right) == 1:
            return self.equal(left[0], right[0])
        if not left or not right:
            return False
        tuple_ = bracketed(gold)
        if (
            len(left) == 1
            and tuple_
            and tuple_[0] == "("
            and len(tuple_[1]) == len(right)
            and _in_order(tuple_[1], right)
        ):
            return self._same_parts(tuple_[1], right)
        names = {split_top(part, "=")[0] for part in left if "=" in part}
        if len(names) == len(left) == len(right) and not any("=" in part for part in right):
            return self._same_parts(left, right)  # x = 1, y = 2 as values alone: in their order
        return self._same_sets(left, right)

    def _same_sets(self, left: list[str], right: list[str]) -> bool:
        if len(right) > len(left) + _MAX_ELEMENTS:
            return False
        if 1 < len(set(map(normalise, left))) < len(left):  # a gold list that repeats some of its elements, counts them
            rest = list(right)
            for part in left:
                match = next((other for other in rest if self.equal(part, other)), None)
                if match is None:
                    return False
                rest.remove(match)
            return not rest
        return all(any(self.equal(a, b) for b in right) for a in left) and all(
            any(self.equal(a, b) for a in left) for b in right
        )

    def _intervals(self, gold: str, answer: str) -> bool | None:
        """An inequality in one unknown is an interval: `0 \\le x < 1` is `[0, 1)`."""
        if not any(_RELATION.search(text) or _REALS.fullmatch(text) for text in (gold, answer)):
            return None
        left, right = _as_interval(gold), _as_interval(answer)
        if (left, right) == (gold, answer) or (_RELATION.search(left) or _RELATION.search(right)):
            return self._relations(gold, answer)
        if left != gold and right != answer and _unknown(gold) != _unknown(answer):
            return False
        return self.equal(left, right)

    def _relations(self, gold: str, answer: str) -> bool:
        """Inequalities that are no intervals: the same parts in the same or the mirrored order."""
        mirrored = {r"\le": r"\ge", r"\ge": r"\le", "<": ">", ">": "<", r"\ne": r"\ne"}
        left, right = ([part.strip() for part in _RELATION.split(text)] for text in (gold, answer))
        if len(left) == len(right) == 1 or len(left) != len(right):
            return False
        if left[1::2] == right[1::2]:
            return all(self.equal(a, b) for a, b in zip(left[::2], right[::2], strict=True))
        return [mirrored[sign] for sign in reversed(right[1::2])] == left[1::2] and all(
            self.equal(a, b) for a, b in zip(left[::2], reversed(right[::2]), strict=True)
        )

    def _tuples(self, gold: str, answer: str) -> bool | None:
        """Tuples and intervals match part by part; brackets tell open from closed where there are two parts."""
        left, right = bracketed(gold), bracketed(answer)
        if left is None and right is None:
            return None
        if left is None or right is None:
            vectors = [group[1] if group else _vector(text) for group, text in ((left, gold), (right, answer))]
            return vectors[0] is not None and vectors[1] is not None and self._same_parts(vectors[0], vectors[1])
        brackets = [group[0] + group[2] for group in (left, right)]
        if brackets[0] != brackets[1] and (len(left[1]) == 2 or not set(brackets) <= {"()", "[]"}):
            return False
        return self._same_parts(left[1], right[1])

    def _same_parts(self, left: list[str], right: list[str]) -> bool:
        return len(left) == len(right) and all(self.equal(a, b) for a, b in zip(left, right, strict=True))

    def _matrices(self, gold: str, answer: str) -> bool | None:
        left, right = _matrix(gold), _matrix(answer)
        if (left is None and right is None) or (
            (left is None or right is None) and (bracketed(gold) or bracketed(answer))
        ):
            return None
        if left is None or right is None or [len(row) for row in left] != [len(row) for row in right]:
            return False
        return all(self._same_parts(a, b) for a, b in zip(left, right, strict=True))

    def _equations(self, gold: str, answer: str) -> bool | None:
        """`x = 5` answers 5; two equations are equal if they say the same name's value, or differ by a factor."""
        left, right = split_top(gold, "="), split_top(answer, "=")
        if len(left) < 2 and len(right) < 2:
            return None
        if len(left) < 2:
            return self._value_of(right, gold)
        if len(right) < 2:
            return self._value_of(left, answer, swapped=True)
        if _is_name(left[0]) and _is_name(right[0]):
            argument, other = (_NAME.fullmatch(side) for side in (left[0], right[0]))
            if argument and other and argument[1] and other[1] and argument[1] != other[1]:  # f(z) = z and f(x) = x
                letters = [name[1] for name in (argument, other)]
                if all(len(letter) == 1 for letter in letters) and letters[0] not in right[-1]:
                    right = [re.sub(rf"(?<![\\A-Za-z]){letters[1]}(?![A-Za-z])", letters[0], part) for part in right]
            return _same_name(left[0], right[0]) and self.equal(left[-1], right[-1])
        try:
            return _proportional(left[0], left[-1], right[0], right[-1])
        except Unparsed:
            self.unparsed = True
            return False

    def _value_of(self, parts: list[str], value: str, swapped: bool = False) -> bool:
        """Whether an equation gives this value: to a name (`x = 5`, `m + n = 5`, `5 = x`), or by a true chain (`2 + 3 = 5`)."""

        def same(part: str) -> bool:
            return self.equal(part, value) if swapped else self.equal(value, part)

        if _is_name(parts[-1]) and not _is_name(parts[0]):
            parts = parts[::-1]
        return same(parts[-1]) and all(_is_name(part) or same(part) for part in parts[:-1])

    def _percentages(self, gold: str, answer: str) -> bool | None:
        """28% is 28 and 0.28; a number is itself with or without the sign, and the fraction that its percentage is."""
        if not gold.endswith("%") and not answer.endswith("%"):
            return None
        left, right = gold.removesuffix("%").strip(), answer.removesuffix("%").strip()
        numbers = rational(left), rational(right)
        small = not gold.endswith("%") and numbers[0] is not None and abs(numbers[0]) < 1  # 0.28 is no percentage
        if not small and self.equal(left, right):
            return True
        if gold.endswith("%") and answer.endswith("%"):
            return False
        if None in numbers:
            return False
        number, fraction = numbers if gold.endswith("%") else numbers[::-1]
        assert number is not None and fraction is not None
        return abs(number / 100 - fraction) <= Fraction(self.tolerance) / 100

    def _units(self, gold: str, answer: str) -> bool | None:
        """A unit may be left out, but not be another one. Degrees equal the radians that are written with a π."""
        if _OF_ANGLE.search(gold) or _OF_ANGLE.search(answer):
            return None  # \\sin 30° is a number
        (left, unit), (right, other) = split_unit(gold), split_unit(answer)
        left, right, degrees = (
            left.removesuffix("°"),
            right.removesuffix("°"),
            (left.endswith("°"), right.endswith("°")),
        )
        if (left, right) == (gold, answer):
            return None
        unit, other = ("°" if flag else name for flag, name in zip(degrees, (unit, other), strict=True))
        turned = {unit, other} == {"°", "radian"} or (
            (unit == "°") != (other == "°") and r"\pi" in (right if unit == "°" else left)
        )
        if turned:
            angle, radians = (left, right) if unit == "°" else (right, left)
            return self._expressions(rf"\frac{{({angle}) \pi}}{{180}}", radians)
        if unit and other and unit != other and is_measure(unit) and is_measure(other):
            return False
        return self.equal(left.strip(), right.strip())

    def _bases(self, gold: str, answer: str) -> bool | None:
        """`204_5` may be written as `204`, but not in another base."""
        left, right = _in_base(gold), _in_base(answer)
        if left is None and right is None:
            return None
        if left is not None and right is not None:
            return left == right
        if left is not None:
            return left[0] == answer.strip()
        return right is not None and right[1] == 10 and right[0] == gold.strip()

    def _expressions(self, gold: str, answer: str) -> bool:
        if r"\ldots" in gold or r"\ldots" in answer:
            return False  # math_verify drops an ellipsis; such answers match as text or not at all
        if self._same_expressions(gold, answer):
            return True
        # R and r may be one letter, but not where an expression has both.
        if (gold == gold.lower() and answer == answer.lower()) or any(_has_both_cases(text) for text in (gold, answer)):
            return False
        return self._same_expressions(_lower(gold), _lower(answer))

    def _same_expressions(self, gold: str, answer: str) -> bool:
        try:
            right = _parsed(answer, gold)
        except Unparsed:
            self.unparsed = True
            return False
        try:
            return _same_value(_parsed(gold, answer), right, self.tolerance)
        except Unparsed:
            return False


_TERM = r"\\?[A-Za-z]+(?:_\{?\w+\}?)?"
_SUM_OF_NAMES = re.compile(rf"{_TERM}(?:(?:\s*\+\s*|\s+|(?=\\)){_TERM})*")
_LABEL = re.compile(
    r"\\?[A-Za-z]+(?:\s*_\s*(?:\{[^{}]*\}|\w))*'*\s*\([^()=]*\)|\|[A-Za-z]+\||\\(?:max|min|angle)\s*[\w{}() ]+"
)


def _is_name(text: str) -> bool:
    """Whether one side of an equation names what the other is: `x`, `f(x)`, `P(A)`, `|z|`, `m + n`, `Area`; not `2x` or `x^2`."""
    return any(pattern.fullmatch(plain(text)) for pattern in (_NAME, _SUM_OF_NAMES, _LABEL))


def _same_name(left: str, right: str) -> bool:
    """`M` and `M_{\\min}`, `f(x)` and `f`, `P(x)` and `p(x)`; `y` may stand for any function of `x`. Not `x_1` and `x_2`."""
    if normalise(left) == normalise(right):
        return True
    parts = [
        re.match(r"\s*(\\?[A-Za-z]+)\s*(?:_\s*(\{[^{}]*\}|\w))?\s*('*)\s*(?:\(([^()]*)\))?\s*$", side)
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


def _in_order(parts: list[str], listed: list[str]) -> bool:
    """Whether a list without brackets can only be the tuple `parts`: it names its values, has three, or descends."""
    if all("=" in part for part in listed) or len(parts) > 2:
        return True
    values = [rational(part) for part in parts]
    return values[0] is not None and values[1] is not None and values[0] > values[1]


_NUMERALS = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_WORDS = {word: number for number, word in enumerate(_NUMERALS.split(), 2)}


def _in_base(text: str) -> tuple[str, int] | None:
    """The digits and the base of `204_5`, `204_{\\text{five}}`, `(204)_5` and `204 (base 5)`."""
    found = _BASE.fullmatch(plain(text))
    if found is None:
        return None
    base = found[2] or found[3]
    return found[1], int(base) if base.isdigit() else _WORDS.get(base, 0)


def _has_both_cases(text: str) -> bool:
    letters = set(re.sub(r"\\[A-Za-z]+", "", text))
    return any(letter.upper() in letters and letter.lower() in letters for letter in letters if letter.isalpha())


def _lower(text: str) -> str:
    """Lower-case letters, commands as they are."""
    return re.sub(r"\\[A-Za-z]+|[A-Z]", lambda found: found[0] if len(found[0]) > 1 else found[0].lower(), text)


_NAMED = re.compile(
    r"\s*(?:(?:\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\^\s*\{?\w+\}?)?|\\(?:vec|overrightarrow)\s*\{\w+\}|\(\s*\\?[A-Za-z]+(?:_\d)?(?:\s*,\s*\\?[A-Za-z]+(?:_\d)?)*\s*\))"
    r"\s*(?:=|\\in(?![A-Za-z]))|[A-Za-z](?=\s*[(\[]))\s*"
)
_BUILDER = re.compile(r"\\\{\s*[A-Za-z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?:\\mid|:|\|)\s*(.*)\\\}")


def _unnamed(text: str) -> str:
    """A tuple, interval, set or matrix without the name before it, and a set of all x such that … as its condition."""
    if builder := _BUILDER.fullmatch(text):
        return builder[1].strip()
    text = _MEMBER.sub("", text) if _MEMBER.match(text) else text
    found = _NAMED.match(text)
    if found is None:
        return text
    rest = text[found.end() :]
    listed = split_top(rest, ",;")
    whole = bool(listed) and all(bracketed(part) for part in listed)
    return rest if whole or rest.startswith((r"\{", r"\begin")) else text


def _unknown(text: str) -> str:
    return next((part.strip() for part in _RELATION.split(text)[::2] if _UNKNOWN.fullmatch(part.strip())), "")


def _union(text: str) -> list[str] | None:
    """The pieces of a union, of `x \\ne a`, of the reals without a point or of two inequalities; None for anything else."""
    pieces = [piece.strip() for piece in _UNION.split(text)]
    if len(pieces) > 1:
        return [_as_interval(piece) for piece in pieces]
    parts = _RELATION.split(text)
    hole = parts[2].strip() if len(parts) == 3 and parts[1] == r"\ne" and _UNKNOWN.fullmatch(parts[0].strip()) else None
    without = re.fullmatch(rf"(?:{_REALS.pattern})\s*(?:\\setminus|\\backslash|-|\\)\s*\\\{{([^{{}},]*)\\\}}", text)
    if without:
        hole = without[1].strip()
    reals = re.fullmatch(rf"(?:{_REALS.pattern})\s*(?:\\setminus|\\backslash)\s*([\[(])([^,]+),([^,]+)([\])])", text)
    if reals:
        opening, closing = ")" if reals[1] == "[" else "]", "(" if reals[4] == "]" else "["
        return [rf"(-\infty,{reals[2]}{opening}", rf"{closing}{reals[3]},\infty)"]
    holed = re.fullmatch(
        r"(.+?)\s*(?:(?:\\setminus|\\backslash)\s*\\\{([^{},]*)\\\}|,\s*[A-Za-z]\s*\\ne\s*([^,]+))", text
    )
    interval = bracketed(_as_interval(_unnamed(holed[1].strip()))) if holed else None
    if holed and interval and len(interval[1]) == 2:
        point = (holed[2] or holed[3]).strip()
        return [f"{interval[0]}{interval[1][0]},{point})", f"({point},{interval[1][1]}{interval[2]}"]
    if hole:
        return [rf"(-\infty,{hole})", rf"({hole},\infty)"]
    alternatives = [_piece(piece) for piece in _OR.split(text)]
    if len(alternatives) > 1 and all(alternatives) and not all(r"\{" in str(piece) for piece in alternatives):
        return [piece for piece in alternatives if piece]
    both = [piece.strip() for piece in re.split(rf"{_ALSO.pattern}|,", text) if piece.strip()]
    if len(both) == 2 and all(_RELATION.search(piece) for piece in both) and _unknown(both[0]) == _unknown(both[1]):
        ends = [_as_interval(piece) for piece in both]
        lower = next((end for end in ends if end.endswith(r"\infty)")), None)
        upper = next((end for end in ends if end.startswith(r"(-\infty")), None)
        if lower and upper:
            first, last = lower[: -len(r",\infty)")], upper[len(r"(-\infty,") :]
            values = rational(first[1:]), rational(last[:-1])
            if _ALSO.search(text) or None in values or values[0] < values[1]:  # type: ignore[operator]
                return [f"{first},{last}"]
            return ends
    return None


_OR = re.compile(r"\\text\s*\{\s*,?\s*or\s*\}|,?\s*(?<![\\A-Za-z])or(?![A-Za-z])|\\(?:vee|lor)(?![A-Za-z])")
_ALSO = re.compile(r"\\text\s*\{\s*,?\s*and\s*\}|,?\s*(?<![\\A-Za-z])and(?![A-Za-z])|\\(?:wedge|land)(?![A-Za-z])")


def _piece(text: str) -> str | None:
    """One alternative of a union: an inequality or interval, or `x = 1` as `\\{1\\}`; None for anything else."""
    text = text.strip()
    if _RELATION.search(text):
        return _as_interval(text)
    sides = split_top(text, "=")
    if len(sides) == 2 and _UNKNOWN.fullmatch(sides[0]):
        return rf"\{{{sides[1]}\}}"
    group = bracketed(text)
    return text if group and len(group[1]) == 2 and r"\infty" in text else None


def _as_interval(text: str) -> str:
    """The interval that an inequality in one unknown describes; any other text as it is."""
    if _REALS.fullmatch(text.strip()):
        return r"(-\infty,\infty)"
    if absolute := re.fullmatch(r"\|\s*[A-Za-z]\s*\|\s*(<|\\le)\s*([^|]+)", text):
        first, last = ("[", "]") if "e" in absolute[1] else ("(", ")")
        return f"{first}-{absolute[2]},{absolute[2]}{last}"
    parts = [part.strip() for part in _RELATION.split(text)]
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
        left, right, sign = right, left, {r"\le": r"\ge", r"\ge": r"\le", "<": ">", ">": "<"}[sign]
    if not _UNKNOWN.fullmatch(left):
        return text
    if sign in (r"\ge", ">"):
        return rf"{'[' if 'e' in sign else '('}{right},\infty)"
    return rf"(-\infty,{right}{']' if 'e' in sign else ')'}"


def _matrix(text: str) -> list[list[str]] | None:
    """The rows of a matrix: in LaTeX, or as `[[1, 2], [3, 4]]`."""
    scaled = re.fullmatch(r"\s*(-|-?(?:\d+|\\frac\s*\{[^{}]*\}\s*\{[^{}]*\}))\s*(\\begin.*)", text, re.DOTALL)
    if scaled and (rows_ := _matrix(scaled[2])):
        factor = "-1" if scaled[1] == "-" else scaled[1]
        return [[rf"({factor}) \cdot ({cell})" for cell in row] for row in rows_]
    if found := _MATRIX.fullmatch(text.strip("()[]| ")) if "\\begin" in text else None:
        rows = [row for row in re.split(r"\\\\(?:\s*\[[^\]]*\])?|\\cr(?![a-z])", found[2]) if row.strip()]
        return [[cell.strip() for cell in row.split("&")] for row in rows]
    outer = bracketed(text)
    if outer and all(re.fullmatch(r"\[[^\[\],]+\]", part) for part in outer[1]):
        return [[part[1:-1].strip()] for part in outer[1]]
    if outer and outer[0] == "[":
        inner = [row for part in outer[1] if (row := bracketed(part)) is not None and row[0] == "["]
        if len(inner) == len(outer[1]):
            return [cells for _, cells, _ in inner]
    return None


def _vector(text: str) -> list[str] | None:
    """The cells of a matrix of one row or one column."""
    rows = _matrix(text)
    return [cell for row in rows for cell in row] if rows and (len(rows) == 1 or len(rows[0]) == 1) else None


_OF_ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp|sqrt|pi|theta|alpha|beta|gamma"
_FUNCTION = re.compile(rf"(?<![\\A-Za-z])({_FUNCTIONS})(?![A-Za-z])")
_LONG_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{5,}")
_MARKUP = re.compile(
    r"[<>=]|\\(?:begin|end|le|ge|ne|in|cup|cap|text\w*|mbox|Rightarrow|to|implies)(?![A-Za-z])|[^\x20-\x7e°]"
)


def to_latex(expression: str) -> str:
    """Plain mathematics as LaTeX: `sqrt(2)*sin(x)**2` as `\\sqrt{2}\\cdot \\sin(x)^{2}`; LaTeX stays what it is."""
    text = plain(expression).replace("**", "^")
    text = re.sub(r"\*", r"\\cdot ", text)
    text = _FUNCTION.sub(lambda found: f"\\{found[1]} ", text)
    text = re.sub(r"\\exp\s*\(", "e^(", text)
    text = re.sub(r"(?<![\w)])(\w+)!\s*\^", r"(\1!)^", text)
    if _OF_ANGLE.search(text):
        text = re.sub(r"(\d+(?:\.\d+)?)\s*°", r"(\\frac{\1 \\pi}{180})", text)
    text = re.sub(r"\^\s*(-?\d{2,}|-\s*[A-Za-z\d])", r"^{\1}", text)
    for opener in (r"\\sqrt\s*\(", r"\^\s*\("):
        while found := re.search(opener, text):
            start = found.end() - 1
            end = _matching(text, start)
            if end < 0:
                raise Unparsed(expression)
            text = f"{text[: found.end() - 1].rstrip()}{{{text[start + 1 : end]}}}{text[end + 1 :]}"
    return text


def _matching(text: str, start: int) -> int:
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return position
    return -1


@lru_cache(maxsize=1)
def _converter() -> type[Any]:
    """latex2sympy's converter, with number literals made by their class and not by `sympify`, which would `eval` them."""
    import sympy
    from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)

    class Converter(_Latex2Sympy):  # type: ignore[misc]
        def parse_number(self, text: str) -> Any:
            digits = text.replace(",", "").replace(" ", "")
            return sympy.Integer(int(digits)) if digits.isdigit() else sympy.Float(digits)

    return Converter


@lru_cache(maxsize=1)
def _case_sensitive() -> Any:
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig

    return ConversionConfig(lowercase_symbols=False)


def _parsed(expression: str, other: str = "") -> Any:
    """The sympy expression of one side. `other` tells whether the two are about complex numbers.

    Raises Unparsed.
    """
    from math_verify.grader import should_treat_as_complex

    return _parse(expression, not (should_treat_as_complex(expression) or should_treat_as_complex(other)))


@lru_cache(maxsize=4096)
def _parse(expression: str, real: bool) -> Any:
    from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex

    if _LONG_WORD.search(plain(expression)) or _MARKUP.search(expression):
        raise Unparsed(expression)
    latex = to_latex(expression).replace("°", "")
    try:
        tidied = normalize_latex(latex, NormalizationConfig(malformed_operators=True, nits=True, boxed="none"))
        parsed = _converter()(is_real=real, config=_case_sensitive()).parse(tidied)
    except RecursionError as error:
        raise Unparsed(expression) from error
    except Exception as error:  # the grammar raises bare Exceptions
        raise Unparsed(expression) from error
    if parsed is None or not hasattr(parsed, "free_symbols"):
        raise Unparsed(expression)
    return parsed


def _same_value(left: Any, right: Any, tolerance: float) -> bool:
    """math_verify's verdict on two parsed expressions, behind the guard; most wrong answers differ in value and end here."""
    import math_verify
    import sympy

    sympy.core.random.seed(0)  # it tests identities at random points; the same answer must always get the same verdict
    unbounded = (sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)
    if left.has(*unbounded) or right.has(*unbounded):  # sympy's arithmetic with infinity is no proof of anything
        return left in (sympy.oo, -sympy.oo) and bool(left == right)
    if left.has(sympy.floor, sympy.ceiling) or right.has(sympy.floor, sympy.ceiling):
        return _same_on_integers(left, right)
    compared = _difference(left, right)
    if compared is not None:
        difference, size = compared
        if _is_number(left) and _is_number(right) and tolerance:
            return bool(difference <= tolerance)
        if difference > 1e3 * PRECISION * size:
            return False
    return bool(math_verify.verify(left, right, timeout_seconds=None)) and _alike(left, right)


def _same_on_integers(left: Any, right: Any) -> bool:
    """Whether two expressions with floors or ceilings agree at 40 points of positive integers."""
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    for number in range(1, 41):
        point = {symbol: number + (3 * index + number * index) % 17 for index, symbol in enumerate(symbols)}
        compared = _difference(
            left.subs(point).doit(), right.subs(point).doit()
        )  # exact: a floor of 2.0 is either side of 2
        if compared is None or compared[0] > PRECISION * compared[1]:
            return False
    return True


def _difference(left: Any, right: Any) -> tuple[Any, Any] | None:
    """The absolute difference of two expressions where every symbol is some integer, and the larger absolute value.

    Integers, since identities of floors and factorials hold there only. None where a side has no finite value.
    """
    try:
        symbols = sorted(left.free_symbols | right.free_symbols, key=str)
        point = dict(zip(symbols, (7, 5, 11, 3, 13, 4, 17, 6), strict=False))
        a, b = (side.evalf(20, subs=point) for side in (left, right))
        difference, size = abs(a - b), max(abs(a), abs(b))
        return (difference, size) if difference.is_Float or difference == 0 else None
    except Exception:  # matrices, sets, relations, too many symbols, values out of range
        return None


def _is_number(side: Any) -> bool:
    return bool(getattr(side, "is_number", False))


def _alike(left: Any, right: Any) -> bool:
    """Guard: equal numbers agree to a relative precision, and equal expressions have the same free symbols."""
    if left.free_symbols != right.free_symbols:
        import sympy

        if sympy.simplify(left).free_symbols != sympy.simplify(right).free_symbols:
            return False
    if _is_number(left) and _is_number(right):
        return bool(abs((left - right).evalf(30)) <= PRECISION * max(abs(left.evalf(30)), abs(right.evalf(30))))
    return True


def _proportional(*sides: str) -> bool:
    """Whether two equations say the same: `a = b` and `c = d` where `(a - b) / (c - d)` is a number other than 0."""
    import sympy

    context = " ".join(sides)
    a, b, c, d = (_parsed(side, context) for side in sides)
    ratio = sympy.simplify((a - b) / (c - d))
    return _is_number(ratio) and bool(ratio.is_finite) and ratio != 0 and (a - b).free_symbols == (c - d).free_symbols
