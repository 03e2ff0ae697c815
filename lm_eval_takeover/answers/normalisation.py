"""One spelling of an answer in LaTeX or plain text, its value as a plain number, its unit, its elements. Evaluates nothing."""

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

MAX_LENGTH = 2000  # characters of an answer that is compared as more than text
MAX_DIGITS = 100  # longer numbers are compared as text only

_SYMBOLS = "times cdot cdot cdot pi infty le ge le ge ne cup cap in pm mp theta ldots lfloor rfloor lceil rceil"
_UNICODE = str.maketrans(
    dict(zip("−–—÷⁄，％（）º˚\u00a0\u2009\u202f", "---//,%()°°   ", strict=True))
    | {mark: rf"\{name} " for mark, name in zip("×·⋅∙π∞≤≥⩽⩾≠∪∩∈±∓θ…⌊⌋⌈⌉", _SYMBOLS.split(), strict=True)}
    | dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", "")
    | {mark: rf"\frac{{{a}}}{{{b}}}" for mark, a, b in zip("½⅓⅔¼¾⅕⅙⅛", "11213111", "23344568", strict=True)}
)
_SMALL = str.maketrans("⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉", "-+01234567890123456789")
_NAMES = (
    r"dfrac=\frac tfrac=\frac cfrac=\frac leq=\le leqslant=\le geq=\ge geqslant=\ge neq=\ne lt=< gt=> lbrace=\{ rbrace=\} "
    r"langle=( rangle=) dots=\ldots cdots=\ldots dotsc=\ldots lg=\log_{10} infin=\infty infinity=\infty textdegree=° "
    r"dbinom=\binom tbinom=\binom degree=° degrees=° therefore= tiny= small= normalsize= large= Large= LARGE= huge= Huge="
)
_RENAMED = dict(pair.split("=") for pair in _NAMES.split())
_SIGNS = {"<=": r"\le ", ">=": r"\ge ", "!=": r"\ne ", "..": r"\ldots "}
_NESTED = r"\{((?:[^{}]++|\{(?:[^{}]++|\{[^{}]*+\})*+\})*+)\}"  # braces in braces in braces
_REWRITTEN: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile("[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+"), lambda match: f"^{{{match[0].translate(_SMALL)}}}"),
    (re.compile("[₀-₉]+"), lambda match: f"_{{{match[0].translate(_SMALL)}}}"),
    (re.compile(r"√\s*+(?=\()"), "sqrt"),
    (re.compile(r"√\s*+(\d+|[A-Za-z])"), r"\\sqrt{\1}"),
    (re.compile(r"(?<=\d)(?:\{,\}|,\s?\\!|\\!|\\,)\s*+(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\\$|\$|(?<!\\)\\[()\[\]]|^\s*+\*\*(?=[^*]*\*\*)|(?<!\*)\*\*\s*+$|[€£¥₹₽]|\bUSD\b\s*+(?=\d)"), ""),
    (re.compile(r"^\s*+(?:\\approx(?![A-Za-z])|≈)"), ""),
    (re.compile(r"^\s*+(?:negative|minus)\s++(?=\S)", re.IGNORECASE), "-"),
    (re.compile(r"^\s*+\](?=[^\[\],]+,[^\[\],]+[\[\]]\s*+$)"), "("),  # ]0, 1[
    (re.compile(r"^(\s*+[\[(][^\[\],]+,[^\[\],]+)\[\s*+$"), r"\1)"),
    (re.compile(r"(?<!\\)\\(?:[!,;:>]|q?quad(?![A-Za-z])| )|~|\\(?:hspace|hskip|vspace)\s*+\{[^{}]*\}"), " "),
    (re.compile(r"\\(?:left|right|[bB]ig[lr]?)(?![A-Za-z])\s*+\.?"), ""),
    (re.compile(r"\\(?:(?:display|text)style|limits|mathstrut)(?![A-Za-z])"), ""),
    (re.compile(r"\\(?:textcolor\s*+\{[^{}]*\}|underline|mathbf|boldsymbol|bm)\s*+" + _NESTED), r"\1"),
    (re.compile(r"^\s*+\\text\s*+\{[^{}]*(?::|\b(?:is|are))\s*+\}(?=.)"), ""),  # \text{The answer is } 5
    (re.compile(r"\\(?:color|[hv]?phantom)\s*+\{[^{}]*\}|\\(?:bf|it|rm)(?![A-Za-z{])|\\\\\s*+$"), ""),
    (re.compile(r"\\([A-Za-z]++)"), lambda match: _RENAMED.get(match[1], match[0])),
    (re.compile(r"[<>!]=|\.{3,}"), lambda match: _SIGNS[match[0][:2]]),
    (re.compile(r"\\equiv(?![A-Za-z])(?!.*mod)"), "="),
    (re.compile(r"\s*+\^\s*+(?:\{\s*+(?:\\circ|°)\s*+\}|\\circ(?![A-Za-z])|°)"), "°"),
    (re.compile(r"(?<=\d)\s*+°\s*+(?:\\(?:text|math)(?:rm)?\s*+\{\s*+)?C\}?[\s.]*$"), r"\\text{ celsius}"),
    (re.compile(r"(?<=\d)\s*+°\s*+(?:\\(?:text|math)(?:rm)?\s*+\{\s*+)?F\}?[\s.]*$"), r"\\text{ fahrenheit}"),
    (re.compile(r"\s*+(?:\\%|\\text\{\s*+\\?%\s*+\})"), "%"),
    (re.compile(r"(?<![\\A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])"), r"\\infty "),
    (re.compile(r"\\frac\s*+(\d)\s*+(?=[\d{])"), r"\\frac{\1}"),
    (re.compile(r"\\frac\s*+(\{[^{}]*\})\s*+([\dA-Za-z])"), r"\\frac\1{\2}"),
    (re.compile(r"\\sqrt(?:\s++(\d{2,})|\s*+([\dA-Za-z]))"), r"\\sqrt{\1\2}"),
]
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|normal|sf|tt)?|math(?:rm|bf|it|sf|tt)|mbox|operatorname|emph|bf|rm)\*?\s*+\{([^{}]*)\}"
)
_AND = re.compile(
    r"\\text\w*\s*+\{\s*+,?\s*+(?:and|or)\s*+\}|,?\s*+(?<![\\A-Za-z])(?:and|or)(?![A-Za-z])\s*+|\\(?:vee|lor|land|wedge)(?![A-Za-z])"
)

_SET = re.compile(r"((?:^|=)\s*+)\{([^{},\\]*,[^{}\\]*)\}$")  # braces that TeX would not print
_COMMAS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_SPACES = re.compile(r"(?<!\d)\s++|\s++(?!\d|\\frac|\s)")  # between two digits a space has a meaning
_BRACED = re.compile(r"([_^])\{([^{}\\])\}")
_WORD = re.compile(r"[A-Za-z]{3,}")
_LETTER = re.compile(r"\(([A-Z])\)")
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)"
_POWER_OF_TEN = (
    r"(?:\s*+(?:\\times|\\cdot|\*)\s*+10\s*+\^\s*+(?:\{\s*+([-+]?\d{1,3})\s*+\}|([-+]?\d{1,3}))|[eE]([-+]?\d{1,3}))?"
)
_NUMBER = re.compile(rf"([-+]?)\s*+({_DIGITS}){_POWER_OF_TEN}")
_QUOTIENT = re.compile(r"([-+]?)\s*+\(?\s*+([-+]?\d+)\s*+\)?\s*+/\s*+\(?\s*+([-+]?\d+)\s*+\)?")
_MIXED = re.compile(r"([-+]?)\s*+(\d{1,9})(?:\s++(\d{1,9})\s*+/\s*+|\s*+\\frac\s*+\{(\d{1,9})\}\s*+\{)(\d{1,9})\}?")
_MAGNITUDE = re.compile(r"(?<=\d)\s++(hundred|thousand|million|billion|trillion)s?$", re.IGNORECASE)
_MAGNITUDES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_FRACTION = re.compile(r"([-+]?)\s*+\\frac\s*+\{\s*+([-+]?\d+)\s*+\}\s*+\{\s*+([-+]?\d+)\s*+\}")
_REPEATING = re.compile(r"([-+]?)\s*+(\d*)\.(\d*)\\(?:overline|bar)\s*+\{\s*+(\d{1,20})\s*+\}")
_GROUPED = re.compile(r"\{([^{}]*)\}|\(([^(),]*)\)")
_SPELLINGS = (  # of each unit of measure, the short name first
    "in inch inches,ft foot feet,yd yard,mi mile,cm centimeter centimetre,mm,km kilometer kilometre,m meter metre,dm,nm,g gram,"
    "kg kilogram,mg milligram,lb pound,oz ounce,ton,L l liter litre,ml milliliter millilitre,gallon,s second sec,min minute,"
    "h hour hr,day,week,month,year,cent,rupee,euro,mih mph,kmh kph kmph,rpm,hz,ev,joule,newton,watt,volt,amp,kelvin,celsius,"
    "fahrenheit,° degree,radian rad"
)
_UNIT_NAMES = {name: words.split()[0] for words in _SPELLINGS.split(",") for name in words.split()}
_MEASURES = frozenset(_UNIT_NAMES.values())
_UNIT_NAMES |= dict.fromkeys(("dollar", "buck", "usd", "unit", "per"), "")
_UNIT_NAMES |= {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}
_TRAILING = re.compile(r"(.*[\d})\]%])\s*+((?![A-KM-Zmgl](?![A-Za-z/]))[A-Za-z](?:[A-Za-z./^{} ]|(?<! )\d)*)")  # 5m: 5 times m
_TEXT_UNIT = re.compile(
    r"(?:[\s/*]*(?:\\cdot\s*+)?\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it)|mbox|rm)\s*+\{[^{}]*\}\s*+(?:\^\s*+\{?\s*+-?\d\s*+\}?)?)+"
)
_COUNTED = re.compile(rf"([-+]?{_DIGITS}(?:/\d+)?%?)(\s++[^\W\d_](?:[^\W\d_]|[' -])+|\s*+[一-鿿]+)")  # 18 eggs, 18元
# Words after a number that change its value or make it more than a number.
_MEANT = re.compile(
    r"n['’]t\b|[十百千万亿半多余不非]|\b(?:hundred|thousand|[a-z]*illion(?:th)?s?|dozen|score|gross|lakhs?|crores?|hal(?:f|ves)|thirds?|quarters?|(?:four|fif|six|seven|eigh|nin|ten)ths?|over|"
    r"hundredths?|thousandths?|tenths?|more|less|fewer|greater|larger|smaller|least|most|below|above|negative|fold|am|pm|th|"
    r"squared|cubed|factorial|times|plus|minus|divided|by|to|mod|modulo|choose|pi|sqrt|root|roots|not|if|wrong|incorrect|"
    r"false|maybe|base|and|or|e|i|x|y|n|k|d[rtuxyz])\b",
    re.IGNORECASE,
)
_OPEN, _CLOSE = "([{", ")]}"


@lru_cache(maxsize=4096)  # normalise, parse_rational and each step of a comparison call it with the same text
def tidy(answer: str) -> str:
    """The answer without maths delimiters, currency signs, spacing commands and `\\left`; one name for each relation."""
    text = answer.translate(_UNICODE)
    for pattern, replacement in _REWRITTEN:
        text = pattern.sub(replacement, text)
    if (whole := _TEXT.fullmatch(text.strip())) and re.search(r"[=\d]", whole[1]):
        text = whole[1]
    text = re.sub(r"\s++", " ", text).strip()
    while text.endswith((".", ",", ";", ":")) and not text.endswith(r"\,"):
        text = text[:-1].rstrip()
    return _SET.sub(r"\1\\{\2\\}", text.removeprefix("=").strip())


def unwrap_text(answer: str) -> str:
    """A tidied answer with `\\text{…}` and its like replaced by what they hold."""
    return re.sub(r"\s++", " ", _TEXT.sub(r" \1 ", answer)).strip()


def normalise(answer: str) -> str:
    """The text under which two spellings of one answer meet: no spaces, no `\\text`, no thousands separators."""
    text = unwrap_text(tidy(answer))
    if _COMMAS.fullmatch(text.lstrip("-+")):
        text = text.replace(",", "")
    text = _BRACED.sub(r"\1\2", _SPACES.sub("", text))
    text = re.sub(r"\\(?:cdot|times)(?![A-Za-z])", "*", text)
    if letter := _LETTER.fullmatch(text):
        return letter[1]
    return text.casefold() if _WORD.fullmatch(text) else text


def parse_rational(answer: str) -> Fraction | None:
    """The value of `-3`, `.5`, `1,234`, `3/4`, `\\frac{3}{4}`, `1.5 \\times 10^3`; None for all else, also over 100 digits."""
    text = unwrap_text(tidy(answer))
    if len(text) > MAX_DIGITS:
        return None
    text = _MAGNITUDE.sub(lambda match: f"e{_MAGNITUDES[match[1].lower()]}", text)
    if grouped := _GROUPED.fullmatch(text):
        text = (grouped[1] or grouped[2] or "").strip()
    try:
        if match := _NUMBER.fullmatch(text):
            sign, digits, *powers = match.groups()
            power = int(next(filter(None, powers), "0"))
            value = Fraction(digits.replace(",", "")) * Fraction(10) ** power
        elif match := _QUOTIENT.fullmatch(text) or _FRACTION.fullmatch(text):
            sign, value = match[1], Fraction(int(match[2]), int(match[3]))
        elif (match := _MIXED.fullmatch(text)) and (part := Fraction(int(match[3] or match[4]), int(match[5]))) < 1:
            sign, value = match[1], int(match[2]) + part  # 5 1/2
        elif match := _REPEATING.fullmatch(text):
            sign, whole, fixed, period = match.groups()
            start = Fraction(int(f"0{whole}{fixed}"), 10 ** len(fixed))
            value = start + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))
        else:
            return None
    except ZeroDivisionError:
        return None
    return -value if sign == "-" else value


def split_unit(answer: str) -> tuple[str, str]:
    """A tidied answer as `(value, unit)`: `15\\mbox{ cm}^2`, `864 square inches`, `18 eggs`; an empty unit if there is none."""
    for words in _TEXT_UNIT.finditer(answer):
        value, unit = answer[: words.start()].strip(), unwrap_text(words[0])
        if words.end() == len(answer) and value and not _AND.search(words[0]) and not _MEANT.search(unit):
            return value, _unit_name(unit)
    text = unwrap_text(answer)
    if (counted := _COUNTED.fullmatch(text)) and not _MEANT.search(counted[2]):
        return counted[1], _unit_name(counted[2])
    last = _TRAILING.fullmatch(text)
    if last and all(_shorten(word) in _UNIT_NAMES.values() for word in re.findall("[A-Za-z]+", last[2])):
        return last[1].strip(), _unit_name(last[2])
    return answer, ""


def is_measure(unit: str) -> bool:
    """Whether a unit is one of measure: another unit is then another answer. `eggs` is none."""
    return unit.rstrip("^0123456789") in _MEASURES


def _shorten(word: str) -> str:
    """The short name of a unit; any other word in the singular."""
    word = word.lower()
    single = word.removesuffix("s")
    return _UNIT_NAMES.get(word, _UNIT_NAMES.get(single, single))


def _unit_name(unit: str) -> str:
    """Short, squares as exponents."""
    words = [_shorten(re.sub(r"[{}]", "", word)) for word in re.findall(r"[A-Za-z]+|\^\{?-?\d\}?", unit)]
    if words[1:] and words[0][:1] in ("^", "°"):  # square metres, degrees Celsius
        words = [*words[1:], words[0].strip("°")]
    return "".join(words)


def split_top(text: str, separators: str) -> list[str]:
    """The parts of a text between separators that stand outside all brackets."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in _OPEN:
            depth += 1
        elif character in _CLOSE:
            depth = max(0, depth - 1)
        elif depth == 0 and character in separators:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def split_elements(answer: str) -> list[str]:
    """The elements of a list or set, a `\\pm` as two: `{1 ± √5, -2}` has three; one element if it is neither."""
    text = _AND.sub(", ", answer).strip(" ,")
    if text.startswith(r"\{") and text.endswith(r"\}") and find_closing(text, 1) == len(text) - 1:
        text = text[2:-2]
    listed = split_top(text, ",;")
    return [sign for part in listed for sign in _split_signs(part)]


def _split_signs(part: str) -> list[str]:
    if r"\pm" not in part:
        return [part]
    upper, lower = (
        re.sub(r"\\mp(?![A-Za-z])", other, re.sub(r"\\pm(?![A-Za-z])", sign, part)).strip().removeprefix("+").strip()
        for sign, other in (("+", "-"), ("-", "+"))
    )
    return [upper, lower]


def split_brackets(answer: str) -> tuple[str, list[str], str] | None:
    """`(opening, elements, closing)` of a tuple, vector or interval; None for anything else."""
    if len(answer) < 2 or answer[0] not in "([" or answer[-1] not in ")]" or find_closing(answer, 0) != len(answer) - 1:
        return None
    parts = split_top(answer[1:-1], ",;")
    return (answer[0], parts, answer[-1]) if len(parts) > 1 else None


def find_closing(text: str, start: int, opening: str = _OPEN, closing: str = _CLOSE) -> int:
    """Where the bracket at `start` is closed; -1 if it is not."""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] in opening) - (text[position] in closing)
        if depth == 0:
            return position
    return -1


def strip_thousands(answer: str) -> str:
    """`70,000 dollars` as `70000 dollars`."""
    return _COMMAS.sub(lambda match: match[0].replace(",", ""), answer)


def canonicalise(answer: str) -> str:
    """The form under which votes are counted: no percent sign, no unit, a rational value as such."""
    if len(answer) > MAX_LENGTH:
        return answer
    value = split_unit(tidy(answer))[0].removesuffix("%").removesuffix("°").strip()
    number = parse_rational(value)
    return normalise(value) if number is None else str(number)
