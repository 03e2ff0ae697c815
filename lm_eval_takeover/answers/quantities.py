"""Quantities in words (`twelve`, `two thirds`, `one and a half`) and in several measures (`4 hours and 30 minutes`)."""

import re
from fractions import Fraction

_UNITS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen"""
_ONES = {word: value for value, word in enumerate(_UNITS.split())}
_DECADES = "twenty thirty forty fifty sixty seventy eighty ninety"
_TENS = {word: 10 * value for value, word in enumerate(_DECADES.split(), 2)}
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_PARTS = {
    "half": 2,
    "third": 3,
    "fourth": 4,
    "quarter": 4,
    "fifth": 5,
    "sixth": 6,
    "seventh": 7,
    "eighth": 8,
    "ninth": 9,
}
_PARTS["tenth"] = 10
_COUNT = rf"(?:{'|'.join((*_ONES, *_TENS, *_SCALES))})\b"
_NUMBER = rf"(?:an? (?={'|'.join(_SCALES)}))?+{_COUNT}(?:(?:[- ]|,? and ){_COUNT})*+"
_PART = rf"(?:{'|'.join(_PARTS)}|halve)s?"
_IN_WORDS = re.compile(
    rf"(?<![\w-])(?:(?P<numerator>an?|{_COUNT})[- ](?P<part>{_PART})|(?P<number>{_NUMBER})(?P<half> and a half\b)?+)(?![\w-])",
    re.IGNORECASE,
)
_SCALED = re.compile(rf"(\d[\d,]*(?:\.\d+)?) ({'|'.join(_SCALES)})(?![\w-])", re.IGNORECASE)
_ONE = re.compile(r"one(?![\w-])", re.IGNORECASE)


def read_number_words(text: str) -> str:
    """The text with numbers in words as digits: `twelve` as 12, `two thirds` as 2/3, `one and a half` as 1.5."""
    return _IN_WORDS.sub(_read, text)


def read_leading_words(answer: str) -> str:
    """An answer that begins with a number in words, with digits instead: `six eggs` as `6 eggs`, `one` as `1`."""
    if _ONE.fullmatch(answer):
        return "1"
    if scaled := _SCALED.match(answer):
        return str(Fraction(scaled[1].replace(",", "")) * _SCALES[scaled[2].lower()]) + answer[scaled.end() :]
    found = _IN_WORDS.match(answer)
    return _read(found) + answer[found.end() :] if found else answer


def _read(found: re.Match[str]) -> str:
    if found["part"]:
        part = found["part"].lower()
        denominator = 2 if part.startswith("hal") else _PARTS[part.removesuffix("s")]
        numerator = 1 if found["numerator"].lower() in ("a", "an") else _count(found["numerator"])
        return f"{numerator}/{denominator}"
    if found["half"]:
        return f"{_count(found['number'])}.5"
    if _ONE.fullmatch(found[0]):  # alone it is no number of its own in running text: the red one, one of them
        return found[0]
    return str(_count(found["number"]))


def _count(words: str) -> int:
    total = current = 0
    for word in re.findall(r"[a-z]+", words.lower()):
        if word in _SCALES:
            current = (current or 1) * _SCALES[word]
            if _SCALES[word] >= 1000:
                total, current = total + current, 0
        else:
            current += _ONES.get(word, 0) + _TENS.get(word, 0)
    return total + current


# Measures of one kind, in the smallest of them.
_KINDS = (
    {"second": 1, "sec": 1, "minute": 60, "min": 60, "hour": 3600, "hr": 3600, "h": 3600, "day": 86400, "week": 604800},
    {"month": 1, "year": 12},
    {"inch": 1, "in": 1, "foot": 12, "ft": 12, "yard": 36, "mile": 63360},
    {"ounce": 1, "oz": 1, "pound": 16, "lb": 16},
    {"cent": 1, "dollar": 100, "euro": 100},
    {"mm": 1, "cm": 10, "centimeter": 10, "m": 1000, "meter": 1000, "km": 10**6, "kilometer": 10**6},
)
_SINGULAR = {"inches": "inch", "feet": "foot"}
_MEASURED = re.compile(r"(\d+(?:\.\d+)?)\s*+([A-Za-z]+)\.?")
_JOINED = re.compile(r"(?:\s|,|\band\b)*")


def parse_compound(answer: str) -> tuple[int, Fraction, int] | None:
    """`(kind, quantity, measures)` of `4 hours and 30 minutes`, the quantity in the smallest measure of its kind; else None.

    Measures become smaller from the first to the last, and each but the first is less than one of the measure before it.
    """
    quantity, kind, end, count, larger = Fraction(0), -1, 0, 0, 0
    for found in _MEASURED.finditer(answer):
        name = found[2].lower()
        name = _SINGULAR.get(name, name.removesuffix("s"))
        of_kind = next((index for index, measures in enumerate(_KINDS) if name in measures), -1)
        if of_kind < 0 or kind not in (-1, of_kind) or not _JOINED.fullmatch(answer, end, found.start()):
            return None
        size = _KINDS[of_kind][name]
        if count and (size >= larger or Fraction(found[1]) * size >= larger):
            return None
        quantity, kind, end, count, larger = quantity + Fraction(found[1]) * size, of_kind, found.end(), count + 1, size
    return (kind, quantity, count) if count and not answer[end:].strip(" .") else None


def equal_compounds(gold: str, answer: str) -> bool | None:
    """Whether two quantities are equal, the gold one told in several measures; None where it is not."""
    right = parse_compound(gold)
    if right is None or right[2] < 2:
        return None
    said = parse_compound(answer)
    return said is not None and said[:2] == right[:2]
