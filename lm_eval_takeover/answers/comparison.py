"""Compares one gold answer with one answer: takes lists, intervals, matrices, equations and units apart, down to expressions."""

import re
from fractions import Fraction

from lm_eval_takeover.answers import normalisation, notation
from lm_eval_takeover.answers.expressions import OF_ANGLE, Unparsed, find_factor, is_same_value, parse_expression
from lm_eval_takeover.answers.normalisation import normalise, parse_rational, split_brackets, split_elements, split_top

_OR_LIST = re.compile(r"\d,\d{3}(?!\d)")  # 100,200 may be a list of two
_DECIMAL = re.compile(r"-?(\d*)\.(\d+)")
_MANY_DIGITS = 7  # significant ones: so many make a decimal equal to the fraction that it rounds
_MAX_ELEMENTS = 16  # a list with more surplus elements than this is wrong without a comparison


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
        """By the first kind that one of the two is of; each `_compare_*` returns None where neither is of its kind."""
        if not gold or not answer:
            return False
        verdict = equal_by_text(gold, answer, self.tolerance)
        if verdict is not None:
            return verdict
        for compare in (
            self._compare_tuple_with_list, self._compare_unnamed, self._compare_unions, self._compare_lists,
            self._compare_intervals, self._compare_matrices, self._compare_tuples, self._compare_equations,
            self._compare_ratios, self._compare_percentages, self._compare_units, self._compare_bases,
        ):  # fmt: skip
            verdict = compare(gold, answer)
            if verdict is not None:
                return verdict
        return self._compare_expressions(gold, answer)

    def _compare_tuple_with_list(self, gold: str, answer: str) -> bool | None:
        """`(p, q) = (3, 4)` is the list `3, 4`, in this order; so is a tuple without names that can be no interval."""
        for swapped, (whole, other) in enumerate(((gold, answer), (answer, gold))):
            bare, listed = notation.strip_name(whole), split_elements(other)
            group, named = split_brackets(bare), bare != whole and whole[0] == "("
            if group and group[0] == "(" and len(group[1]) == len(listed) and (named or _must_be_tuple(group[1], listed)):
                return self._are_same_parts(*((listed, group[1]) if swapped else (group[1], listed)))
        return None

    def _compare_unnamed(self, gold: str, answer: str) -> bool | None:
        """`x \\in [-2, 7]` is `[-2, 7]`, `(x, y) = (3, 2)` and `P(3, 2)` are `(3, 2)`."""
        left, right = notation.strip_name(gold), notation.strip_name(answer)
        return self.equal(left, right) if (left, right) != (gold, answer) and left and right else None

    def _compare_unions(self, gold: str, answer: str) -> bool | None:
        left, right = (notation.split_union(text) for text in (gold, answer))
        if left is None and right is None:
            return None
        return self._are_same_sets(left or [notation.to_interval(gold)], right or [notation.to_interval(answer)])

    def _compare_lists(self, gold: str, answer: str) -> bool | None:
        """Lists and sets match as sets; `1,234` is a number or a list of two, whichever matches."""
        whole = normalisation.strip_thousands(gold), normalisation.strip_thousands(answer)
        if whole != (gold, answer) and all(len(split_elements(text)) == 1 for text in whole) and self.equal(*whole):
            return True
        left, right = split_elements(gold), split_elements(answer)
        if len(left) < 2 and len(right) < 2 and [gold] == left and [answer] == right:
            return None
        if len(left) == len(right) == 1:
            return self.equal(left[0], right[0])
        if not left or not right:
            return False
        names = {split_top(part, "=")[0] for part in left if "=" in part}
        if len(names) == len(left) == len(right) and not any("=" in part for part in right):
            return self._are_same_parts(left, right)  # `x = 1, y = 2` answered by `1, 2`: in this order
        return self._are_same_sets(left, right)

    def _are_same_sets(self, left: list[str], right: list[str]) -> bool:
        if len(right) > len(left) + _MAX_ELEMENTS:
            return False
        if 1 < len(set(map(normalise, left))) < len(left):  # the gold repeats an element: multisets
            rest = list(right)
            for part in left:
                match = next((other for other in rest if self.equal(part, other)), None)
                if match is None:
                    return False
                rest.remove(match)
            return not rest
        answered = all(any(self.equal(a, b) for b in right) for a in left)
        return answered and all(any(self.equal(a, b) for a in left) for b in right)

    def _compare_intervals(self, gold: str, answer: str) -> bool | None:
        """An inequality in one unknown is an interval: `0 \\le x < 1` is `[0, 1)`."""
        if not any(notation.RELATION.search(text) or notation.REALS.fullmatch(text) for text in (gold, answer)):
            return None
        left, right = notation.to_interval(gold), notation.to_interval(answer)
        if (left, right) == (gold, answer) or (notation.RELATION.search(left) or notation.RELATION.search(right)):
            return self._compare_relations(gold, answer)
        if left != gold and right != answer and notation.find_unknown(gold) != notation.find_unknown(answer):
            return False
        return self.equal(left, right)

    def _compare_relations(self, gold: str, answer: str) -> bool:
        """Inequalities that are no intervals: the same parts in the same or the mirrored order, or a multiple."""
        left, right = ([part.strip() for part in notation.RELATION.split(text)] for text in (gold, answer))
        if len(left) == len(right) == 1 or len(left) != len(right):
            return False
        if left[1::2] == right[1::2] and self._are_same_parts(left[::2], right[::2]):
            return True
        if len(left) == 3:  # a negative factor turns the sign
            factor = find_factor(left[0], left[-1], right[0], right[-1])
            real = factor is not None and factor.is_extended_real
            return bool(real and right[1] == (left[1] if factor > 0 else notation.MIRRORED[left[1]]))
        return False

    def _compare_tuples(self, gold: str, answer: str) -> bool | None:
        """Tuples and intervals match part by part; brackets tell open from closed where there are two parts."""
        left, right = split_brackets(gold), split_brackets(answer)
        if left is None and right is None:
            return None
        if left is None or right is None:
            groups = (left, gold), (right, answer)
            vectors = [group[1] if group else notation.parse_vector(text) for group, text in groups]
            return vectors[0] is not None and vectors[1] is not None and self._are_same_parts(vectors[0], vectors[1])
        brackets = [group[0] + group[2] for group in (left, right)]
        if brackets[0] != brackets[1] and (len(left[1]) == 2 or not set(brackets) <= {"()", "[]"}):
            return False
        return self._are_same_parts(left[1], right[1])

    def _are_same_parts(self, left: list[str], right: list[str]) -> bool:
        return len(left) == len(right) and all(self.equal(a, b) for a, b in zip(left, right, strict=True))

    def _compare_matrices(self, gold: str, answer: str) -> bool | None:
        left, right = notation.parse_matrix(gold), notation.parse_matrix(answer)
        bracketed = split_brackets(gold) or split_brackets(answer)
        if (left is None and right is None) or (bracketed and (left is None or right is None)):
            return None
        if left is None or right is None or [len(row) for row in left] != [len(row) for row in right]:
            return False
        return all(self._are_same_parts(a, b) for a, b in zip(left, right, strict=True))

    def _compare_equations(self, gold: str, answer: str) -> bool | None:
        """`x = 5` answers 5; two equations are equal if they say the same name's value, or differ by a factor."""
        left, right = split_top(gold, "="), split_top(answer, "=")
        if len(left) < 2 and len(right) < 2:
            return None
        if len(left) < 2:
            return self._gives_value(right, gold)
        if len(right) < 2:
            return self._gives_value(left, answer, swapped=True)
        if notation.is_name(left[0]) and notation.is_name(right[0]):
            argument, other = (notation.NAME.fullmatch(side) for side in (left[0], right[0]))
            if argument and other and argument[1] and other[1] and argument[1] != other[1]:  # f(z) = z is f(x) = x
                letters = [name[1] for name in (argument, other)]
                if all(len(letter) == 1 for letter in letters) and letters[0] not in right[-1]:
                    right = [re.sub(rf"(?<![\\A-Za-z]){letters[1]}(?![A-Za-z])", letters[0], part) for part in right]
            return notation.is_same_name(left[0], right[0]) and self.equal(left[-1], right[-1])
        return find_factor(left[0], left[-1], right[0], right[-1]) is not None

    def _gives_value(self, parts: list[str], value: str, swapped: bool = False) -> bool:
        """Whether an equation gives this value: to a name (`x = 5`, `m + n = 5`, `5 = x`), or by a true chain (`2 + 3 = 5`)."""

        def same(part: str) -> bool:
            return self.equal(part, value) if swapped else self.equal(value, part)

        if notation.is_name(parts[-1]) and not notation.is_name(parts[0]):
            parts = parts[::-1]
        return same(parts[-1]) and all(notation.is_name(part, ratio=True) or same(part) for part in parts[:-1])

    def _compare_ratios(self, gold: str, answer: str) -> bool | None:
        """Ratios of three or more are proportional: `2:3:4` is `4:6:8`, and not `2:4:3`, which divides to the same number."""
        left, right = split_top(gold, ":"), split_top(answer, ":")
        if max(len(left), len(right)) < 3:
            return None
        pairs = [(parse_rational(a), parse_rational(b)) for a, b in zip(left, right, strict=False)]
        if len(left) != len(right) or not all(a and b for a, b in pairs):
            return self._are_same_parts(left, right)
        return len({a / b for a, b in pairs if a and b}) == 1

    def _compare_percentages(self, gold: str, answer: str) -> bool | None:
        """28% is 28 and 0.28; a number is itself with or without the sign, and the fraction that its percentage is."""
        if not gold.endswith("%") and not answer.endswith("%"):
            return None
        left, right = gold.removesuffix("%").strip(), answer.removesuffix("%").strip()
        if left.endswith("°") or right.endswith("°"):
            return False
        numbers = parse_rational(left), parse_rational(right)
        small = not gold.endswith("%") and numbers[0] is not None and abs(numbers[0]) < 1  # 0.28 is no percentage
        if not small and self.equal(left, right):
            return True
        if gold.endswith("%") and answer.endswith("%"):
            return False
        number, fraction = numbers if gold.endswith("%") else numbers[::-1]
        if number is None or fraction is None:
            return False
        return abs(number / 100 - fraction) <= Fraction(self.tolerance) / 100

    def _compare_units(self, gold: str, answer: str) -> bool | None:
        """A unit may be left out, but not be another one. Degrees equal the radians that are written with a π."""
        if OF_ANGLE.search(gold) or OF_ANGLE.search(answer):
            return None  # \\sin 30° is a number
        split = (normalisation.split_unit(text) for text in (gold, answer))
        sides = [(value.removesuffix("°").strip(), "°" if value.endswith("°") else unit) for value, unit in split]
        (left, unit), (right, other) = sides
        if (left, right) == (gold, answer):
            return None
        units = {unit, other}
        if units == {"°", "radian"} or ("°" in units and len(units) > 1 and r"\pi" in (right if unit == "°" else left)):
            angle, radians = (left, right) if unit == "°" else (right, left)
            return self._compare_expressions(rf"\frac{{({angle}) \pi}}{{180}}", radians)
        may_be_left_out = not (unit and other) or ("°" in units and units & {"celsius", "fahrenheit"})
        measures = normalisation.is_measure(unit) + normalisation.is_measure(other)
        longer = unit.startswith(other) or other.startswith(unit)  # 10 inches long
        if unit != other and not may_be_left_out and (measures == 2 or (measures and not longer)):
            return False
        return self.equal(left, right)

    def _compare_bases(self, gold: str, answer: str) -> bool | None:
        """`204_5` may be written as `204`, but not in another base."""
        left, right = notation.parse_base(gold), notation.parse_base(answer)
        if left and right:
            return left == right
        if left:
            return left[0] == answer.strip()
        return right == (gold.strip(), 10) if right else None

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


def _must_be_tuple(parts: list[str], listed: list[str]) -> bool:
    """Whether a list without brackets can only be the tuple `parts`: it names its values, has three, or descends."""
    if all("=" in part for part in listed) or len(parts) > 2:
        return True
    values = [parse_rational(part) for part in parts]
    return values[0] is not None and values[1] is not None and values[0] > values[1]


def _lower_letters(text: str) -> str | None:
    """Lower-case letters, commands as they are: R and r may be one letter. None for a text that has both of one."""
    letters = set(re.sub(r"\\[A-Za-z]+", "", text))
    if any(letter.isupper() and letter.lower() in letters for letter in letters):
        return None
    return re.sub(r"\\[A-Za-z]+|[A-Z]", lambda match: match[0] if len(match[0]) > 1 else match[0].lower(), text)
