"""Numbers in words: `twelve`, `two thirds`, `one and a half`."""

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
