"""One spelling of an answer in LaTeX or plain text, its value as a plain number, its unit, its elements. Evaluates nothing."""

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from unicodedata import normalize

from lm_eval_takeover.answers.units import find_name

MAX_LENGTH = 2000  # characters of an answer that is compared as more than text
MAX_DIGITS = 100  # longer numbers are compared as text only

_SYMBOLS = "times cdot cdot cdot pi infty le ge le ge ne cup cap in pm mp theta ldots lfloor rfloor lceil rceil emptyset sqrt"
_PLAIN = str.maketrans(
    {zero + digit: str(digit) for zero in (0x0660, 0x06F0, 0x0966) for digit in range(10)}
    | dict(zip("−–—﹣÷⁄∕、。٫٬º˚′’‘“”`\u00a0\u2009\u202f", "----///,..,°°'''\"\"'   ", strict=True))
    | {mark: rf"\{name} " for mark, name in zip("×·⋅∙π∞≤≥⩽⩾≠∪∩∈±∓θ…⌊⌋⌈⌉∅√", _SYMBOLS.split(), strict=True)}
    | {mark: rf"\mathbb{{{name}}}" for mark, name in zip("ℝℤℕℚℂ", "RZNQC", strict=True)}
    | dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff✓✔✅", "")
    | {mark: rf"\frac{{{a}}}{{{b}}}" for mark, a, b in zip("½⅓⅔¼¾⅕⅙⅛", "11213111", "23344568", strict=True)}
)
_SMALL = str.maketrans("⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉", "-+01234567890123456789")
_NAMES = (
    r"dfrac=\frac tfrac=\frac cfrac=\frac sfrac=\frac leq=\le leqslant=\le geq=\ge geqslant=\ge neq=\ne lt=< gt=> lbrace=\{ "
    r"rbrace=\} langle=( rangle=) dots=\ldots cdots=\ldots dotsc=\ldots lg=\log_{10} infin=\infty infinity=\infty deg=° "
    r"textdegree=° dbinom=\binom tbinom=\binom degree=° degrees=° therefore= tiny= small= normalsize= large= Large= LARGE= "
    r"huge= Huge= displaystyle= textstyle= limits= mathstrut= varnothing=\{\} emptyset=\{\} imath=i surd=\sqrt "
    r"bmod=\pmod mod=\pmod lvert=| rvert=| vert=| mid=| nicefrac=\frac scriptstyle= ensuremath= lbrack=[ rbrack=] "
    r"bigcup=\cup square= checkmark= Bbb=\mathbb mathds=\mathbb unit=\text si=\text R=\mathbb{R} Z=\mathbb{Z} N=\mathbb{N}"
)
_RENAMED = dict(pair.split("=", 1) for pair in _NAMES.split())
_SIGNS = {"<=": r"\le ", ">=": r"\ge ", "!=": r"\ne ", "..": r"\ldots "}
_NESTED = r"\{((?>(?:[^{}]++|\{(?>(?:[^{}]++|\{[^{}]*+\})*)\})*))\}"  # braces in braces in braces
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,2}(?:,\d\d)+,\d{3}|\d{1,3}(?: \d{3})+(?![\d/])|\d+(?:\.\d*)?|\.\d+)"
_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp|max|min|gcd|lcm|floor|ceil|cis"
_MAGNITUDES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "lakh": 5, "crore": 7}
_MAGNITUDE_WORDS = "|".join(_MAGNITUDES)
_CURRENCY = r"(?:(?:US\s?)?\\\$|USD?\b\$?|[€£¥₹]|Rs\b\.?)"


def _list_cases(match: re.Match[str]) -> str:
    return ", ".join(row.strip(" &,") for row in match[1].replace("&", " ").split("\\\\"))


_RULES: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [  # each pattern and what stands for it, in their order
    ("[！-～\U0001d400-\U0001d7ffℎℯ]+", lambda match: normalize("NFKC", match[0]).translate(_PLAIN)),  # full width, 𝑥, ℯ, 𝟓
    ("[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda match: f"^{{{match[0].translate(_SMALL)}}}"),
    ("[₀-₉]+", lambda match: f"_{{{match[0].translate(_SMALL)}}}"),
    (r"(?<=\d)(?:\{\\?,\}|\\text\{,\}|,\s?\\!|\\!(?:,\\!)?|\\,|\\ |')\s*+(?=\d{3}(?!\d))", ""),
    (
        rf"(?:\\text\s*+\{{\s*+(?={_CURRENCY}\s*+\}}))?({_CURRENCY})(?:\s*+\}})?\s*+(?:\\,\s*+)?"
        rf"({_DIGITS}(?:\s*+(?:{_MAGNITUDE_WORDS})\b|\s*+\\text\s*+\{{\s*+(?:{_MAGNITUDE_WORDS})\s*+\}})?)",
        r"\2 \1",
    ),
    (r"(?<=[\d}])\s*+(?:US\s?)?\\\$", " dollar"),
    (r"\\\$|\$|(?<!\\)\\[()\[\]]|^\s*+\*\*(?=[^*]*\*\*)|(?<!\*)\*\*\s*+$", ""),
    (r"^\s*+(['\"])([^'\"]*+)\1\s*+$", r"\2"),
    (r"(?<=\d)\{([:.])\}", r"\1"),
    (r"^\s*+(?:\\approx(?![A-Za-z])|≈)", ""),
    (r"(?i)^\s*+(?:\{-\}|(?:negative|minus)\s++)(?=\S)", "-"),
    (r"(?i)^(?:a |one )?half$", r"\\frac{1}{2}"),
    (r"(?i)\b(?:the )?square root of (\w++)", r"\\sqrt{\1}"),
    (r"(?i)\b(?:the )?cube root of (\w++)", r"\\sqrt[3]{\1}"),
    (r"(?i)^(?:the )?square of (\w++)$|^(\w++) squared$", r"\1\2^2"),
    (r"(?i)^(?:the )?cube of (\w++)$|^(\w++) cubed$", r"\1\2^3"),
    (r"(?<![\\A-Za-z])log base (\w++) of (\w++)", r"\\log_{\1} \2"),
    (r"(?<![\\A-Za-z])log(\d++)(?=\s*+\()", r"\\log_{\1}"),
    (r"(?<=\d)(?:st|nd|rd|th)(?: place)?$", ""),
    (r"(?:\\q?quad)?\s*+\(\\text\s*+\{\s*+(?:since|because)\b.*+$", ""),
    (r"(?<!\\)\\(?:[!,;:>]|q?quad(?![A-Za-z])| |$)|~|\\(?:hspace|hskip|vspace)\s*+\{[^{}]*\}", " "),
    (r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\s*+\.?", ""),
    (r"(^|\\cup)\s*+\](?=[^\[\],;]+[,;][^\[\],;]+[\[\]]\s*+(?:\\cup|$))", r"\1("),  # ]0, 1[
    (r"((?:^|\\cup)\s*+[\[(][^\[\],;]+[,;][^\[\],;]+)\[\s*+(?=\\cup|$)", r"\1)"),
    (r"(?<=[)\]])\s*+U\s*+(?=[(\[])", r"\\cup "),
    (r"\\mathb(?:b|f(?=\s*+\{?[RZN]\}?\s*+$))\s*+\{?([A-Z])\}?", r"\\mathbb{\1}"),
    (r"\\(?:SI|qty)\s*+(?:\[[^\]]*\])?\s*+\{([^{}]*)\}\s*+\{\\?([^{}]*)\}", r"\1\\text{ \2}"),
    (r"\\text\s*+\{\s*+(\\frac\s*+\{[^{}]*\}\s*+\{[^{}]*\})\s*+\}", r"\1"),
    (r"(?s)\\begin\s*+\{cases\}(.*)\\end\s*+\{cases\}", _list_cases),
    (r"\\(?:begin|end)\s*+\{(?:aligned|gathered|split|align|equation)\*?\}", ""),
    (r"\\(?:textcolor\s*+\{[^{}]*\}|underline|mathbf|boldsymbol|bm|num)\s*+" + _NESTED, r"\1"),
    (rf"\\(?:operatorname|(?:mathrm|text)(?!\s*+\{{\s*+m))\*?\s*+\{{\s*+({_FUNCTIONS})\s*+\}}", r"\\\1 "),
    (r"^\s*+\\text\s*+\{(?:[^{}]*(?::|\b(?:is|are))|\s*+(?:only|exactly))\s*+\}(?=.)", ""),  # \text{The answer is } 5
    (r"\\(?:color|[hv]?phantom)\s*+\{[^{}]*\}|\\(?:bf|it|rm)(?![A-Za-z{])|\\\\\s*+$", ""),
    (r"\\([A-Za-z]++)", lambda match: _RENAMED.get(match[1], match[0])),
    (r"[<>]=|(?<!\d)!=|\.{3,}", lambda match: _SIGNS[match[0][:2]]),
    (r"\\equiv(?![A-Za-z])(?!.*mod)", "="),
    (r"\s*+\^\s*+(?:\{\s*+(?:\\circ|°)\s*+\}|\\circ(?![A-Za-z])|°)", "°"),
    (r"(?<=\d)\s*+\^\s*+(?:\{\s*+o\s*+\}|o(?!\w))", "°"),
    (r"(?<=\d)\s*+°\s*+(?:\\(?:text|math)(?:rm)?\s*+\{\s*+)?([CF])\}?[\s.]*$", r"\\text{ deg\1}"),
    (r"\s*+(?:\\%|\\text\{\s*+(?:\\?%|per\s?cent)\s*+\})|(?<=\d)\s*+\bper\s?cent\b", "%"),
    (r"(?<![\\A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])", r"\\infty "),
    (r"\\(frac|binom)\s*+(\w)(?=\s*+[\w{])", r"\\\1{\2}"),
    (r"\\(frac|binom)\s*+(\{[^{}]*\})\s*+(\w)", r"\\\1\2{\3}"),
    (r"\\root\s*+(\d)\s*+\\of\s*+(\w)", r"\\sqrt[\1]{\2}"),
    (r"\\sqrt(\s*+\[\s*+\w\s*+\])?(?:\s++(\d{2,})|\s*+([\dA-Za-z]))", r"\\sqrt\1{\2\3}"),
    (r"(?:\{\}\s*+)?[_^]\s*+\{?(\d{1,3}|n)\}?\s*+C\s*+_?\s*+\{?(\d{1,3}|k|r)\}?(?![\w.])", r"\\binom{\1}{\2}"),
    (r"(?<![\w\\}_^])(\d{1,3}|n)\}?\s*+C\s*+_?\s*+\{?(\d{1,3}|k|r)\}?(?![\w.])", r"\\binom{\1}{\2}"),
    (r"(?<![\w\\])C\s*+\(\s*+(\w{1,3})\s*+,\s*+(\w{1,3})\s*+\)", r"\\binom{\1}{\2}"),
    (r"^\s*+(?:\{\})?\s*+\^\s*+\{?(\d+)\}?\s*+/\s*+_\s*+\{?(\d+)\}?\s*+$", r"\1/\2"),  # ⁹⁄₇
    (r"\\cis\s*+\{?(\d+(?:\.\d+)?)\s*+°\}?", r"e^{i \\pi \1/180}"),
    (r"\\cis\s*+(\\frac\s*+\{[^{}]*\}\s*+\{[^{}]*\}|\([^()]*\))", r"e^{i \1}"),
    (r"\\log\s*+_\s*+\{?\s*+e\s*+\}?(?![A-Za-z])", r"\\ln "),
    (r"\\?(?<![A-Za-z])abs\s*+\(([^()]*+)\)", r"|\1|"),
    (r"\\dot\s*+\{?(\d)\}?(?:(\d{0,9})\\dot\s*+\{?(\d)\}?)?", r"\\overline{\1\2\3}"),
    (r"(?<![\d.])(\d{0,9}\.\d{0,9}?)(?:(\d)\2{2,20}|(\d{2,6}?)\3{1,9})\s*+\\ldots\s*+$", r"\1\\overline{\2\3}"),
    (r"(?<=\d)\s*+\((\w{1,3})\)\s*+$", lambda match: match[0] if match[1].isascii() else match[1]),  # 12(个)
]
_REWRITTEN = [(re.compile(pattern), replacement) for pattern, replacement in _RULES]
_TEXT = re.compile(r"\\(?:(?:text|math)(?:bf|it|rm|normal|sf|tt)?|[mh]box|operatorname|emph|bf|rm)\*?\s*+\{([^{}]*)\}")
_AND = re.compile(
    r"\\text\w*\s*+\{\s*+,?\s*+(?:and|or|[和或与及])\s*+\}|,?\s*+(?<![\\A-Za-z])(?:and|or)(?![A-Za-z])\s*+|\\(?:vee|lor|land|wedge)(?![A-Za-z])|[和或与及]"
)
_SET = re.compile(r"((?:^|=)\s*+)\{([^{},\\]*,[^{}\\]*)\}$")  # braces that TeX would not print
_SPACES = re.compile(r"(?<!\d)\s++|\s++(?!\d|\\frac|\s)")  # between two digits a space has a meaning
_BRACED = re.compile(r"([_^])\{([^{}\\])\}")
_WORD = re.compile(r"[A-Za-z]{3,}")
_POWER_OF_TEN = (
    r"(?:\s*+(?:\\times|\\cdot|\*|[xX](?= ?10 ?\^))\s*+10\s*+"
    r"\^\s*+(?:\{\s*+([-+]?\d{1,3})\s*+\}|([-+]?\d{1,3}))|\s?[eE]\s?([-+]?\d{1,3}))?"
)
_NUMBER = re.compile(rf"([-+]?)\s*+({_DIGITS}){_POWER_OF_TEN}")
_QUOTIENT = re.compile(  # or a mixed number
    r"([-+]?)\s*+(?:(\d{1,9})\s++(?:and\s++)?(?=\d))?\(?\s*+([-+]?\d+)\s*+\)?\s*+/\s*+\(?\s*+([-+]?\d+)\s*+\)?"
)
_MAGNITUDE = re.compile(rf"(?<=\d)\s++({_MAGNITUDE_WORDS})$", re.IGNORECASE)
_FRACTION = re.compile(r"\s*+\\frac\s*+\{\s*+([-+]?\d+)\s*+\}\s*+\{\s*+([-+]?\d+)\s*+\}")
_REPEATING = re.compile(r"([-+]?)\s*+(\d*)\.(\d*)\\(?:overline|bar)\s*+\{\s*+(\d{1,20})\s*+\}")
_TRAILING = re.compile(  # 5m is 5 times m
    r"(.*[\d})\]%])(?:\s++(?![^\W\d_hsLmglJNTVW](?![A-Za-z/]))|(?![^\W\d_hsL](?![A-Za-z/])))"
    r"([A-Za-z](?:[A-Za-z./^{} -]|(?<! )\d)*)"
)
_TEXT_UNIT = re.compile(
    r"(?:[\s/*]*(?:\\cdot\s*+)?(?:\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it)|mbox|rm)\s*+\{(?:[^{}]|\{[^{}]*\})*\}|\\Omega)\s*+(?:\^\s*+\{?\s*+-?\d\s*+\}?)?)+"
)
_COUNTED = re.compile(
    rf"([-+]?{_DIGITS}(?:/\d+)?(?: (?:{_MAGNITUDE_WORDS}))?%?)(\s++[^\W\d_](?:[^\W\d_]|[' -])+|\s*+[一-鿿]+|\s*+[¢€£¥₹][a-z ]*+)"
)  # 18 eggs, 18元
# Words after a number that change its value, make it more than a number, or doubt it.
_MEANT = re.compile(
    r"n['’]t\b|\bcannot\b|[十百千万亿半多余不非]|\b(?:(?:hundred|thousand|[a-z]*illion(?:th)?|ten|dozen|score|gross|lakh|crore|third|quarter|"
    r"(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand)th|fail|root)s?|hal(?:f|ves)|over|"
    r"more|less|fewer|greater|larger|smaller|least|most|below|above|short|shy|failed|negative|fold|am|pm|th|"
    r"squared|cubed|factorial|times(?! (?:per|a) [a-z]++$)|plus|"
    r"minus|divided|by|to|mod|modulo|choose|pi|sqrt|not|if|too|wrong|incorrect|error|invalid|impossible|"
    r"false|maybe|perhaps|base|and|or|(?-i:e|i|x|y|n|k)|d[rtuxyz])\b",
    re.IGNORECASE,
)
_SQUARED = re.compile(r"\s*+[a-z]+(?: per [a-z]+)? (?:squared|cubed)")
_OPEN, _CLOSE = "([{", ")]}"


@lru_cache(maxsize=4096)  # normalise, parse_rational and each step of a comparison call it with the same text
def tidy(answer: str) -> str:
    """The answer without maths delimiters, currency signs, spacing commands and `\\left`; one name for each relation."""
    text = answer.translate(_PLAIN)
    while text.startswith("{{") and find_closing(text, 0, "{", "}") == len(text) - 1:
        text = text[1:-1]
    for pattern, replacement in _REWRITTEN:
        text = pattern.sub(replacement, text)
    if (whole := _TEXT.fullmatch(text.strip())) and re.search(r"[=\d]", whole[1]):
        text = whole[1]
    text = re.sub(r"\s++", " ", text).strip()
    text = re.sub(r"(?>(?:(?<!\\)[.,;:]|\s)+)$", "", text)
    return _SET.sub(r"\1\\{\2\\}", text.removeprefix("=").strip())


def unwrap_text(answer: str) -> str:
    """A tidied answer with `\\text{…}` and its like replaced by what they hold."""
    return re.sub(r"\s++", " ", _TEXT.sub(r" \1 ", answer)).strip()


def normalise(answer: str) -> str:
    """The text under which two spellings of one answer meet: no spaces, no `\\text`."""
    text = unwrap_text(tidy(answer))
    text = _BRACED.sub(r"\1\2", _SPACES.sub("", text))
    text = re.sub(r"\\(?:cdot|times)(?![A-Za-z])", "*", text)
    return text.casefold() if _WORD.fullmatch(text) else text


def parse_rational(answer: str) -> Fraction | None:
    """The value of `-3`, `.5`, `1,234`, `3/4`, `\\frac{3}{4}`, `1.5 \\times 10^3`; None for all else, also over 100 digits."""
    text = unwrap_text(tidy(answer))
    if len(text) > MAX_DIGITS:
        return None
    text = _FRACTION.sub(r" \1/\2 ", _MAGNITUDE.sub(lambda match: f"e{_MAGNITUDES[match[1].lower()]}", text)).strip()
    if match := _NUMBER.fullmatch(text):
        sign, digits, *powers = match.groups()
        power = int(next(filter(None, powers), "0"))
        value = Fraction(digits.replace(",", "").replace(" ", "")) * Fraction(10) ** power
    elif (match := _QUOTIENT.fullmatch(text)) and int(match[4]):
        sign, value = match[1], Fraction(int(match[3]), int(match[4]))
        if match[2] and not 0 <= value < 1:
            return None  # 4 10/3
        value += int(match[2] or 0)
    elif match := _REPEATING.fullmatch(text):
        sign, whole, fixed, period = match.groups()
        start = Fraction(int(f"0{whole}{fixed}"), 10 ** len(fixed))
        value = start + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))
    else:
        return None
    return -value if sign == "-" else value


def split_unit(answer: str) -> tuple[str, str]:
    """A tidied answer as `(value, unit)`: `15\\mbox{ cm}^2`, `864 square inches`, `18 eggs`; an empty unit if there is none."""
    for words in _TEXT_UNIT.finditer(answer):
        value, unit = answer[: words.start()].strip(), unwrap_text(words[0]).strip()
        if words.end() == len(answer) and value and unit and not _AND.search(words[0]) and _is_unit(unit):
            value, more = split_unit(value)
            return value, f"{more} {unit}".strip()
    text = unwrap_text(answer)
    if (counted := _COUNTED.fullmatch(text)) and _is_unit(counted[2]):
        return counted[1], counted[2].strip()
    last = _TRAILING.fullmatch(text)
    if last and last[1].count("{") == last[1].count("}") and all(map(find_name, re.findall("[A-Za-z]+", last[2]))):
        return last[1].strip(), last[2]
    if answer.endswith(("°", "%")):
        return answer[:-1].strip(), answer[-1]
    return answer, ""


def _is_unit(words: str) -> bool:
    return not _MEANT.search(words) or _SQUARED.fullmatch(words) is not None


def split_top(text: str, separators: str) -> list[str]:
    """The parts of a text between separators that stand outside all brackets."""
    parts, depth = [""], 0
    for character in text:
        depth = max(0, depth + (character in _OPEN) - (character in _CLOSE))
        if depth == 0 and character in separators:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def split_elements(answer: str) -> list[str]:
    """The elements of a list or set, a `\\pm` as two: `{1 ± √5, -2}` has three; one element if it is neither."""
    text = _AND.sub(", ", answer).strip(" ,")
    listed = split_top(text[2:-2] if is_set(text) else text, ",;")
    signed = [(part, *signs) for part in listed for signs in ("+-", "-+")[: 1 + (r"\pm" in part)]]
    both = (re.sub(r"\\mp(?![A-Za-z])", b, re.sub(r"\\pm(?![A-Za-z])", a, part)) for part, a, b in signed)
    return [text.strip().removeprefix("+").strip() for text in both]


def is_set(text: str) -> bool:
    """Whether braces that TeX prints stand around a text."""
    return text.startswith(r"\{") and text.endswith(r"\}") and find_closing(text, 1) == len(text) - 1


def split_brackets(answer: str) -> tuple[str, list[str], str] | None:
    """`(opening, elements, closing)` of a tuple, vector or interval; None for anything else."""
    if len(answer) < 2 or answer[0] not in "([" or answer[-1] not in ")]" or find_closing(answer, 0) != len(answer) - 1:
        return None
    parts = split_top(answer[1:-1], ",;")
    return (answer[0], parts, answer[-1]) if len(parts) > 1 else None


def find_closing(text: str, start: int, opening: str = _OPEN, closing: str = _CLOSE) -> int:
    """Where the bracket at `start` is closed; -1 if it is not."""
    depths = accumulate((character in opening) - (character in closing) for character in text[start:])
    return next((start + place for place, depth in enumerate(depths) if depth == 0), -1)


def canonicalise(answer: str) -> str:
    """The form under which votes are counted: no percent sign, no unit, a rational value as such."""
    if len(answer) > MAX_LENGTH:
        return answer
    value = split_unit(tidy(answer))[0].removesuffix("%").removesuffix("°").strip()
    number = parse_rational(value)
    return normalise(value) if number is None else str(number)
