"""Units: what each measures and its size. A unit is what it measures, its size in base units, and words that are no unit.

The table has the units of school mathematics and physics. A word that is not in it is a noun: `12 boys` are not `12 girls`.
"""

import re
from collections import Counter
from fractions import Fraction
from functools import cache, lru_cache
from typing import NamedTuple

# What is measured, the size of one, and the names; `*` before a name allows prefixes: `*m` is also `km` and `cm`. `1`: nothing.
_TABLE = """
L 1 *m *meter *metre;L 127/5000 in inch inches inche;L 381/1250 ft foot feet;L 1143/1250 yd yard;L 201168/125 mi mile
L3 1/1000 *L *l *liter *litre;L3 1/1000000 cc;L3 473176473/125000000000 gal gallon;L3 473176473/500000000000 quart qt
L3 473176473/1000000000000 pint;L3 473176473/2000000000000 cup;L3 473176473/32000000000000 tablespoon tbsp
L3 157725491/32000000000000 teaspoon tsp;L2 10000 ha hectare;L2 316160658/78125 acre
M 1/1000 *g *gram;M 45359237/100000000 lb pound;M 45359237/1600000000 oz ounce;ton 1 ton tonne
T 1 *s sec *second;T 60 min minute;T 3600 h hr hour;T 86400 day;T 604800 wk week;month 1 month mo;month 12 year yr
I 1 *A *amp *ampere;K 1 K *kelvin;N 1 *mol *mole;eV 1 *eV;cal 1 *cal *calorie;T-1 1 *Hz *hertz;rpm 1 rpm
M,L,T-2 1 *N *newton;M,L2,T-2 1 *J *joule;M,L2,T-3 1 *W *watt;M,L-1,T-2 1 *Pa *pascal;M,L2,T-3,I-1 1 *V *volt
M,L2,T-3,I-2 1 *Ω *Omega *ohm;I,T 1 *C *coulomb;tesla 1 *T *tesla;farad 1 *F *farad;bit 1 bit *b *bit;bit 8 *B *byte
L,T-1 1397/3125 mph mih;L,T-1 5/18 kmh kph kmph;knot 1 knot
$ 1 dollar usd buck;$ 1/100 cent penny ¢;€ 1 € euro eur;£ 1 £ gbp;¥ 1 ¥ yen;₹ 1 ₹ rs rupee inr
° 1 ° degree deg;° 1/60 ';rad 1 rad radian;℃ 1 celsius degC;℉ 1 fahrenheit degF;% 1/100 % percent
1 1 unit per square sq cubic cu squared cubed
"""
_PREFIXES = {"k": 3, "M": 6, "G": 9, "T": 12, "c": -2, "m": -3, "d": -1, "μ": -6, "u": -6, "n": -9, "p": -12, "h": 2} | {
    "kilo": 3, "mega": 6, "giga": 9, "tera": 12, "centi": -2, "milli": -3, "deci": -1, "micro": -6, "nano": -9, "pico": -12,
}  # fmt: skip
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
_EMPTY = {"of", "the", "a", "an", "each", "in", "i", "are", "total", "long", "left", "cdot", "text"}
_SCALE = re.compile(r"(?:°|\bdegrees?)\s*+(?=celsius|fahrenheit)", re.IGNORECASE)  # degrees Celsius
_FACTOR = re.compile(
    r"[\s(]*+(/|\bper\b)?[\s(]*+(?:\b(square|sq|cubic|cu)\b[.\s]*+)?([^\W\d_]++|[°%¢€£¥₹'])\)?"
    r"(?:\s*+(?:\^\s*+\{?\s*+)?(-?\d)|\s*+\b(squared|cubed)\b)?",
    re.IGNORECASE,
)

Dimensions = tuple[tuple[str, int], ...]  # (what, exponent), sorted


class Unit(NamedTuple):
    """What a unit measures, its size in base units, and the words of its name that are no unit."""

    measured: Dimensions = ()
    size: Fraction = Fraction(1)
    words: frozenset[str] = frozenset()
    is_given: bool = False


@cache
def _read_table() -> dict[str, tuple[Dimensions, Fraction]]:
    known: dict[str, tuple[Dimensions, Fraction]] = {}
    for row in _TABLE.strip().replace("\n", ";").split(";"):
        measured, size, *names = row.split()
        factors = tuple(sorted((what, int(number or 1)) for what, number in re.findall(r"([^\d,-]+)(-?\d)?", measured)))
        for name in names:
            plain = name.lstrip("*")
            for prefix, power in (("", 0), *_PREFIXES.items()):
                if not prefix or (plain != name and (len(prefix) > 1) == (len(plain) > 3)):
                    known.setdefault(prefix + plain, (factors, Fraction(size) * Fraction(10) ** power))
    return known


def find_name(word: str) -> str:
    """The name in the table under which a word is known; empty if it is none."""
    known, lower = _read_table(), word.lower()
    names = (word, lower, lower.removesuffix("s"), lower.removesuffix("es"))
    return next((name for name in names if name in known and (name == word or len(name) > 1)), "")


@lru_cache(maxsize=1024)
def read_unit(text: str) -> Unit:
    """`m/s^2`, `meters per second squared`, `square inches`, `red marbles`; an empty text is no unit."""
    measured: Counter[str] = Counter()
    size, words, sign = Fraction(1), set(), 1
    for per, before, word, exponent, after in _FACTOR.findall(_SCALE.sub("", text)):
        sign = -1 if per or (sign < 0 and "(" in text) else 1
        noun = word.lower().removesuffix("s")
        if name := find_name(word):
            meaning, one = _read_table()[name]
            power = sign * int(exponent or _POWERS.get((before or after).lower(), 1))
            measured.update({what: power * number for what, number in meaning})
            size *= one**power
        elif noun not in _EMPTY:
            words.add(("per " if sign < 0 else "") + noun)
    factors = tuple(sorted((what, number) for what, number in measured.items() if number))
    return Unit(factors, size, frozenset(words), bool(measured or words or size != 1))
