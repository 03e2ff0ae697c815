"""Names and numerals in answers: what an equation may name, which names are one, numbers in words. Pure functions."""

import re
from string import ascii_letters

from lm_eval_takeover.answers.normalisation import normalise, unwrap_text

_ONE_NAME = re.compile(r"\s*+(\\?[A-Za-z]+)\s*+(?:_\s*+(\{[^{}]*\}|\w))?\s*+('*)\s*+(?:\(([^()]*)\))?\s*+$")
_INDEX = re.compile(r"(?<=[\w}])\s*+(?:_\s*+(?:\{[^{}]*\}|\w)|\((?:[^()=]|\([^()=]*+\))*+\)|')")  # indices, arguments, primes
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


def order_names(names: list[str]) -> list[int]:
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
