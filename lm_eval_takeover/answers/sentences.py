"""Sentences with their values masked: each value is one character, so that a grammar of words reads `pays V in all`.

A value is mathematics between delimiters, a plain number with its currency, fraction, percent sign or power, a tuple, a short
expression in single letters, or `x = 5`.
"""

import re
from typing import NamedTuple

from lm_eval_takeover.answers.calculations import COMPUTED, drop_calculations

VALUE = "\ue000"  # stands for a value in a masked sentence
OPAQUE = "\ue001"  # digits that are part of a word: 5th, B12
_BOLD_OPEN, _BOLD_CLOSE = "\ue002", "\ue003"

MAX_SENTENCE = 400  # characters of a sentence that is read as a conclusion

MATHS = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<!\\)\$((?:\\.|[^$\\])+)\$(?!\d)", re.DOTALL)
_PROSE = re.compile(  # a product of two letters is none
    r"(?<![\\A-Za-z{])(?=[A-Z]*[a-z])(?:[A-Za-z]{3,}|a[mnst]|b[ey]|do|go|he|i[nst]|m[ey]|no|o[fnr]|so|to|up|us|we)\b(?!\})"
)
_WRAPPED = re.compile(r"\\(?:text\w*|math(?:rm|bf|it)|mbox)\s*\{[^{}]*\}|\\[A-Za-z]+")

# 1,234.5 and 1234.5; with a decimal comma, or spaces between thousands, as other languages write them
_DIGITS = (
    r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?: \d{3})+(?!\d)|\d+(?!\d*,\d{1,2}(?![\d,])))(?:\.\d+(?!,\d))?|\.\d+"
    r"|(?:\d{1,3}(?:[. ]\d{3})+|\d+),\d{1,2}(?![\d,])"
)
_CURRENCY = r"(?:\\?\$|(?:US|R)\$|[€£¥₹₽]|Rs\.?|USD|EUR)"
_NUMBER = (
    rf"(?:[-−+]|(?:minus|negative)\s)?\s?{_CURRENCY}?\s?[-−]?(?:{_DIGITS})"
    r"(?:\s\d+\s?/\s?\d+(?!\d)|\s?/\s?\d+(?!\d)|(?:\s?:\s?\d+(?!\d))+|(?:\s?(?:×|x|\\times)\s?10)?\^\{?-?\d+\}?"
    r"|\s?√\s?\(?\d+\)?|\s?π)?"
    r"(?:\s?\\?[%％]|\s?[€£¥₽¢°](?:[CF]\b)?)?"
)
_LATEX = (
    r"[-−]?\d*(?:\.\d+)?\s?(?:\\[dtc]?frac\s*\{[^{}]*\}\s*\{[^{}]*\}|\\sqrt(?:\[\d\])?\s*\{[^{}]*\}"
    r"|√\d+|\\pi(?![A-Za-z])|π)+"
)
_PLAIN = rf"[-−]?(?:{_LATEX}|{_DIGITS})(?:\s?/\s?\d+)?"
_TUPLE = rf"(?:[(\[]\s*{_PLAIN}(?:\s*,\s*{_PLAIN})+\s*[)\]]|\{{\s*{_PLAIN}(?:\s*,\s*{_PLAIN})+\s*\}})"
_ATOM = r"(?:(?:\d+(?:\.\d+)?)?(?<![A-Za-z])[A-Za-z](?![A-Za-z'’])|\d+(?:\.\d+)?(?!\s?[A-Za-z]{2})|√)"
_FACTOR = rf"(?:{_ATOM}|\((?:{_ATOM}|\s?[-+*/^−]\s?)+\))(?:\^\{{?[-\w]+\}}?)?"
_EXPRESSION = rf"[-−]?{_FACTOR}(?:(?:\s?[-+*/−]\s?|){_FACTOR})*"
_NAMED = rf"[A-Za-z](?:_\w)?(?:\([a-z]\))?\s?=\s?(?:{_TUPLE}|{_LATEX}|{_NUMBER}(?!\s?[-+*/×=^]\s?\d))"

# An expression counts only with a letter and a digit, power or operator: `2x + 3`, not `a` or `5`.
_TOKEN = re.compile(
    r"(?P<hyphened>(?<![\w\\])[A-Za-z]-(?=[a-z]{3})[a-z]+)"  # `x-axis`, `n-gon`
    rf"|(?P<named>(?<![\d\\+*/^)∩∪-]\s)(?<![\w\\+*/^)-]){_NAMED})"
    rf"|(?P<expression>(?<![\w\\.])(?=[^\s°]*[A-Za-z])(?=\S*\d|\S*\^|\S\s?[-+*/]\s?\S){_EXPRESSION}(?![\w(]))"
    rf"|(?P<tuple>(?<!\w){_TUPLE})|(?P<latex>(?<![\w\\]){_LATEX})"
    rf"|(?P<number>(?<![A-Za-z\d_.,/^]){_NUMBER}(?![A-Za-z\d_^])(?!\.\d))"
    r"|(?P<opaque>[A-Za-z\d_]*\d[A-Za-z\d_]*)"
)
_BOLD = re.compile(
    r"\*\*(?!\s)([^*\n]+?)(?<!\s)\*\*|__(?!\s)([^_\n]+?)(?<!\s)__|<b>([^<\n]+)</b>|<strong>([^<\n]+)</strong>"
)
_HYPHENED = re.compile(r"\$([A-Za-z])\$-(?=[a-z]{3})")  # `$x$-axis`
_STOP_WITHIN = re.compile(r"\s*([.,;])\s*$")
_UNKNOWN = re.compile(r"\s*[A-Za-z]\s*")  # `$n$` beside numbers names something
_BOLD_SPAN = re.compile(f"{_BOLD_OPEN}([^{_BOLD_CLOSE}]*){_BOLD_CLOSE}")
_MOST_BOLD_WORDS = 4  # beside a bold value


class Sentence(NamedTuple):
    """A sentence in lower case with `VALUE` for each of `values`; `bold` are the indices of those that stand bold."""

    text: str
    values: list[str]
    bold: list[int]


def is_maths(found: re.Match[str]) -> bool:
    """Whether what stands between two dollar signs is mathematics, not the words between two prices."""
    return found[4] is None or not _PROSE.search(_WRAPPED.sub(" ", found[4]))


def mask_values(sentence: str) -> Sentence:
    """The sentence with its values masked, without markup."""
    values: list[str] = []
    has_number = re.search(r"\d", sentence) is not None

    def keep(value: str) -> str:
        values.append(value.strip())
        return VALUE

    def keep_maths(found: re.Match[str]) -> str:
        if not is_maths(found):
            return found[0]
        content = next(group for group in found.groups() if group is not None)
        stop = _STOP_WITHIN.search(content)  # of the sentence: `$x = 5.$`
        if stop is not None:
            return (content if _UNKNOWN.fullmatch(content[: stop.start()]) else keep(content[: stop.start()])) + stop[1]
        return content if has_number and _UNKNOWN.fullmatch(content) else keep(content)

    def keep_token(found: re.Match[str]) -> str:
        leading = found[0][: len(found[0]) - len(found[0].lstrip())]
        if found.lastgroup == "hyphened":
            return found[0]
        return OPAQUE if found.lastgroup == "opaque" else leading + keep(_read_number(found[0]))

    sentence = _HYPHENED.sub(
        r"\1-", re.sub(f"[{VALUE}-{COMPUTED}]", " ", sentence)
    )  # a response may hold the marks themselves
    text = _BOLD.sub(lambda found: f"{_BOLD_OPEN}{next(filter(None, found.groups()))}{_BOLD_CLOSE}", sentence)
    pieces, end = [], 0
    for found in MATHS.finditer(text):
        if is_maths(found):
            pieces += [_TOKEN.sub(keep_token, _tidy_words(text[end : found.start()])), keep_maths(found)]
            end = found.end()
    pieces.append(_TOKEN.sub(keep_token, _tidy_words(text[end:])))
    text = "".join(pieces).lower()
    bold = []
    for span in _BOLD_SPAN.finditer(text):
        if span[1].count(VALUE) == 1 and len(re.findall(r"[a-z]+", span[1])) <= _MOST_BOLD_WORDS:
            bold.append(text.count(VALUE, 0, span.start()))
    text = re.sub(f'[{_BOLD_OPEN}{_BOLD_CLOSE}`"“”]', "", text)
    text = re.sub(rf"(?<={VALUE},)(?=[a-z])", " ", text)  # a display ends with a comma
    return Sentence(re.sub(r"\s+", " ", text).strip(), values, bold)


def _tidy_words(text: str) -> str:
    text = re.sub(r"\\(?:text\w*|mbox|math(?:rm|bf))\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"(?<=\d)(?:\{,\}|\\,)(?=\d{3}(?!\d))", ",", text)
    return drop_calculations(re.sub(r"\\[,;: ]|~|\u00a0|\u202f", " ", text).replace("’", "'"))


def _read_number(value: str) -> str:
    """A number without a word for its sign and without spaces between its thousands."""
    value = re.sub(r"^\s*(?:minus|negative)\s+", "-", value)
    return re.sub(r"(?<=\d) (?=\d{3}(?!\d))", "", value)


def append_unit(value: str, unit: str) -> str:
    """`12 eggs`, `5 \\text{ m}`: a letter alone would read as an unknown."""
    if not unit:
        return value
    return (
        rf"{value} \text{{ {unit}}}"
        if re.fullmatch(r"[A-Za-z](?:\^\d|[²³]|/.*)?", unit) or value[-1:].isalpha() or re.search(r"[ ^]", value)
        else f"{value} {unit}"
    )


# A full stop after these ends no sentence.
_ABBREVIATION = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|st|no|vs|approx|sq|cu|ft|in|hr|hrs|min|mins|sec|etc|fig|eq|e\.g|i\.e|a\.m|p\.m|resp|ca)"
    r"|^\s*\d{1,2})$",
    re.I,
)
_STOP = re.compile(r"[.!?](?=(?:[\"'”’)\]*_]|\$\$?)*(?:\s|$))[\"'”’)\]*_]*|[。！？।؟]")
_SAYS = re.compile(r"[^\W_]|[$\\]")  # not an emoji alone
_GOES_ON = re.compile(r"\s*[=+*/×÷](?!\*)")  # `3! = 6`
_BULLET = re.compile(r"^\s*(?:[-*•>]\s+|#+\s*|\d{1,2}[.)]\s+)")
# Sentences at the end of a reply that say nothing of its answer.
_COURTESY = re.compile(
    r"\W*(?:i hope|hope(?:fully)? (?:this|that|it)|let me know|q\.?e\.?d|thank|good luck|done\b|great\b"
    r"|nice\b|that'?s (?:it|all)\b"
    r"|(?:and )?(?:so )?(?:that|this) is (?:the|our|my) (?:final )?answer\b|(?:and )?we(?:'re| are) done)[^\d?]*",
    re.IGNORECASE,
)
_NO_WORDS = re.compile(r"[\W\d_]*")


def split_sentences(line: str) -> list[str]:
    """The sentences of one line, each with its full stop; a stop within mathematics, a number or an abbreviation ends none."""
    inside = [found.span() for found in MATHS.finditer(line) if is_maths(found)]
    sentences, start = [], 0
    for stop in _STOP.finditer(line):
        if any(first < stop.start() < last - 1 for first, last in inside):
            continue
        if _GOES_ON.match(line, stop.end()):
            continue
        if stop[0].startswith(".") and stop.end() < len(line) and _ABBREVIATION.search(line[start : stop.start()]):
            continue
        sentences.append(line[start : stop.end()])
        start = stop.end()
    return [sentence for sentence in (*sentences, line[start:]) if _SAYS.search(sentence)]


_ALIGNED = re.compile(
    r"(?:\\\[\s*|\$\$\s*)?\\begin\{(align\*?|aligned|eqnarray\*?)\}(.*?)\\end\{\1\}(?:\s*\\\]|\s*\$\$)?", re.DOTALL
)
_CALCULATOR = re.compile(r"<<[^<>\n]*>>")  # of GSM8K's solutions: `$<<400+60=460>>460`
_ARROWS = re.compile(r"\\(?:Right|Long|right|long)\w*arrow|\\implies|\\q?quad|&|\\[;,:! ]")
_STOP_IN_DISPLAY = re.compile(r"([.!?])(\s*\\\]|\s*\\\)|\$\$)(?=\s|$|[A-Z])")


def _read_aligned(found: re.Match[str]) -> str:
    """A derivation of several lines as one equation: what its last left side is equal to in the end."""
    left = right = ""
    for row in re.split(r"\\\\(?:\[[^\]]*\])?", found[2]):
        first, sign, rest = _ARROWS.sub(" ", row).partition("=")
        left = first.strip() or left
        right = rest.rpartition("=")[2].strip() if sign else ""
    return f" \\[{left} = {right}\\] " if right else found[0]


def find_last_sentence(text: str) -> str:
    """The last sentence that is no courtesy, with a display or value on a line of its own joined to the words before it."""
    text = _STOP_IN_DISPLAY.sub(r"\2\1 ", _ALIGNED.sub(_read_aligned, _CALCULATOR.sub("", text)))
    text = re.sub(r"(\$\$|\\\[)\s*(.+?)\s*(\$\$|\\\])", lambda found: " ".join(found[0].split()), text, flags=re.DOTALL)
    lines = [line for line in text.splitlines() if line.strip(" *_#-=|\t") and not _COURTESY.fullmatch(line.strip())]
    sentence = ""
    while lines:
        sentences = split_sentences(_BULLET.sub("", lines.pop()))
        while sentences and _COURTESY.fullmatch(sentences[-1].strip()):
            sentences.pop()
        if not sentences:
            continue
        sentence = f"{sentences[-1].strip()} {sentence}".strip()
        continued = _NO_WORDS.fullmatch(MATHS.sub(" ", sentence)) or re.match(r"[a-z]{2,} ", sentence)
        if (
            len(sentences) > 1
            or not lines
            or not continued
            or re.search(r"[.!?。*]\W*$", lines[-1].rstrip())
            or len(sentence) > MAX_SENTENCE
        ):
            break
    return sentence if len(sentence) <= MAX_SENTENCE else ""
