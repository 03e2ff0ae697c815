"""Sentences of a text and the values in them: mathematics between its delimiters, and numbers.

Every regular expression here is atomic or bounded, so time is linear in the length of the text.
"""

import re
from decimal import Decimal
from functools import cached_property, lru_cache

from lm_eval_takeover.answers.boxes import Span, join_last
from lm_eval_takeover.answers.normalisation import split_top
from lm_eval_takeover.answers.response import PICTURE

MAX_LOOSE = 300  # characters of an answer without a box

_STOP = r"(?<!\\.)(?<!approx.)(?<!\bca.)(?<!i\.e.)(?<!\b[MD][rs].)(?<!\bMrs.)(?=[\s*\"'”)`]|$)"
_SENTENCE_END = re.compile(rf"\.{_STOP}|\?{_STOP}|。{_STOP}|!(?!\s*+[-+=*/^<>×·]){_STOP}|\n")  # by first characters: fast
MATHEMATICAL = re.compile(r"[\d$\\]")
WORDS = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{2,}")
TEXT_COMMAND = re.compile(r"\\(?:text\w*+|math(?:rm|bf|it)|mbox|begin|end)\s*+\{[^{}]*+\}|\\[A-Za-z]++")
_ENVIRONMENT = r"\s*+\{(?:align|equation|gather|eqnarray|multline|split)(?:ed)?\*?\}"
# Between two dollar signs stands no word, as the angle ABC, and no space only at the end: `$20 - $8` and `$5 and $6` are prices.
MATHS = re.compile(
    r"\\\\|\\\$|\\\((?>(?:[^\\]|\\[^()])+)\\\)|\\\[(?>(?:[^\\]|\\[^\[\]])+)\\\]|\$\$(?>(?:(?!\$\$).)+)\$\$"
    rf"|\\begin{_ENVIRONMENT}(?>(?:(?!\\(?:begin|end){_ENVIRONMENT}).)+)\\end{_ENVIRONMENT}"
    rf"|\$(?!\$)(?>(\s)?)(?>(?:{TEXT_COMMAND.pattern}|\\[^()\[\]A-Za-z]|[^$\\A-Za-z]++|(?![A-Za-z][a-z]{{2}})[A-Za-z])+)(?(1)|(?<!\s))\$(?!\d)",
    re.DOTALL,
)
_EDGES = re.compile(r"^(?:\$\$?+|\\[(\[]|\\begin\s*+\{[^{}]*\})|(?:\$\$?+|\\[)\]]|\\end\s*+\{[^{}]*\})$")
_BOLD = re.compile(r"\*\*([^*\n]++)\*\*")
_FOR_ALL = re.compile(r"(?<=[$)]),? for (?:all|every|any)\b[^$()\n]{0,40}(?:\$[^$\n]{1,60}\$|\\\([^()\n]{1,60}\\\))[\s.]*+$")
_UNKNOWN = re.compile(r"\\?(?!pi)[A-Za-z]++")
_DIGITS = r"(?>\d{1,3}+(?>(?:,\d{3})+)(?!\d)|\d++)(?>\.\d++|)|\.\d++"
_PLAIN = rf"[-−]?+(?:{_DIGITS})(?>\s?/\s?\d++(?![\d.])|)"
NUMBER = re.compile(
    rf"(?:(?<![\w)\]}}%])[-−]|(?<![\d.,A-Za-z_]))(?:[(\[{{]\s?+{_PLAIN}(?>(?:,\s?+{_PLAIN})+)\s?+[)\]}}]"
    rf"|(?>\\?\$|[€£¥₹])\s?+\d{{1,3}}(?>(?: \d{{3}})+)(?![\d.])"
    rf"|(?>\\?\$|[€£¥₹]|)\s?+{_PLAIN}(?>:\d++|\^\d++|\s?π|\s?\\?%|))(?![A-Za-z]*\d)"
)


# Words that lead to the value of a sentence.
VERBS = r"\b(?:is|are|was|were|(?:equal|mean|make|give|leave|bring|round|need)s?|comes? to|has|have|left with|thus|so)\b"
SO = (
    r"(?:so(?! that)|thus|hence|therefore|then|leaving|making|giving|meaning|bringing|for a total|and(?! not)|but"
    rf"|which\s{VERBS}(?! (?:not|more|less|\W?\d++ (?:more|less))\b)(?=\D{{0,25}}\d))\b"
)
# What explains or supposes, up to what concludes; a result behind a verb; numbers that are denied.
_CLAUSE = re.compile(
    r"(?s)(?:,\s(?:including|excluding|not|rather|instead|plus|compared|as|who|whose|where)\b"
    rf"|,\s(?!{SO})which\b|\b(?:out of|rather than|instead of|if|because|since|when|while|after|before|until|once"
    rf"|in (?=(?:19|20)\d\d\b)|for (?=\d))|\s\((?=[^()=]*\d)).*?(?=,\s{SO}|$)"
)
RESULT = re.compile(
    rf"(?:=|{VERBS})\s(?:only |about |a total of )?({NUMBER.pattern})(?!\s?[-+*/×·]|\s(?:more|less|fewer|times|out of|of)\b)"
)
DOUBTED = re.compile(r", (?:but|though|yet) (?:that|this|it)(?:['’]s| is| was| would be) (?:wrong|incorrect|impossible)\b")
_VALUE = rf"(?:\$[^$\n]{{1,40}}\$|{NUMBER.pattern})"
_DENIED = re.compile(
    r"(?i)(?:\b(?:not|never|nor|(?<!\d\s)(?:more|less|fewer|greater|larger|smaller) than|rule out|exclude|exceeds?|cannot|over"
    rf"|anything but|doubt (?:that )?it is|(?:either|between|neither)\s{_VALUE}\s(?:and|or|nor))|n['’]t)\s(?:be\s)?{_VALUE}"
    rf"|{_VALUE},?\s(?:(?:is|was)(?:(?:\snot|n['’]t)\s(?:the|right|correct)|\s(?:the\s)?(?:too|wrong|incorrect|impossible))"
    r"|does not work|cannot be)\b"
    rf"|{_VALUE}{DOUBTED.pattern}"
)
_SUPPOSED = re.compile(r"\A\s*+If\b(?>(?:\$[^$\n]*+\$|\([^()\n]*+\)|[^,\n$(])+),\s(?=.*\d)")
_NAMES = re.compile(r"(?<![\\A-Za-z])(?!pi)[A-Za-z]{1,3}")
_EQUALS = re.compile(r"=|\\equiv(?![A-Za-z])")
_NO_VALUE = re.compile(r"(?s)(?:\\approx(?![A-Za-z])|≈|\\pmod(?![A-Za-z])|\\end\s*+\{(?:aligned|gathered|split)\}).*+")


_PLACE = re.compile(r"\A\s*+(?:(?:step\s)?\d++\s?[:.)]|[-*•])\s++(?=[^\W\d_]|[*$\\(])", re.IGNORECASE)  # of a step or an item
_COPIED = 4  # words of a sentence that nobody writes by chance as the problem does
_WRITTEN = re.compile(r"\s|\\(?:left|right)(?![A-Za-z])")


def find_maths(text: str) -> list[Span]:
    """Spans between delimiters of mathematics."""
    found = [(match.span(), _EDGES.sub("", match[0]).strip()) for match in MATHS.finditer(text) if len(match[0]) > 2]
    return [(*span, content.rstrip(".,;").rstrip()) for span, content in found if content]  # no line break, no `\\$`


def find_ends(text: str) -> list[int]:
    """Where the sentences of a text end. Full stops within mathematics end none."""
    return [*(match.start() for match in _SENTENCE_END.finditer(mask_maths(text))), len(text)]


def mask_maths(text: str) -> str:
    """The text with an `x` for each character of mathematics."""
    return MATHS.sub(lambda match: "x" * len(match[0]) if len(match[0]) > 2 else match[0], text)


def after_equals(maths: str) -> str:
    """The last side of an equation, the exact one where an approximate one follows; `x - y = 0` and `x = 1, y = 2` stay."""
    if sum("=" in part for part in split_top(maths, ",")) > 1:
        return maths
    sides = [_NO_VALUE.sub("", side).strip(" \n&") for side in _EQUALS.split(maths)]
    if len(sides) > 1 and _NAMES.fullmatch(sides[-1]) and not _NAMES.search(sides[-2]):  # 5 = x
        sides.pop()
    value = re.sub(r"(?>(?:[\s.,;]|\\\\|\\(?=\s*$))+)$", "", sides[-1])
    return maths if value == "0" and len(sides) == 2 else value


@lru_cache(maxsize=64)  # a problem has many samples
def read_given(problem: str) -> tuple[frozenset[str], str]:
    """What a problem says: its numbers, and its text without spaces."""
    text = PICTURE.sub(" ", problem)
    return frozenset(map(identify, NUMBER.findall(text) + re.findall(r"\d++(?>\.\d++|)", text))), _WRITTEN.sub("", text)


def identify(value: str) -> str:
    """One text for all spellings of a number: `$1,200.00` and `1200`."""
    text = re.sub(r"[,$€£¥₹%°\\\s]", "", value)
    return (
        format(Decimal(text).normalize(), "f")
        if re.fullmatch(r"-?(?:\d++\.?\d*+|\.\d++)", text)
        else _WRITTEN.sub("", value.strip("$"))
    )


class Sentence:
    """A sentence of a text: its values in their order, what stands before it, and what the problem says.

    `text`: the sentence without denied numbers and its place in a list; of one with bold values the last of these.
    `marked`: a marker introduces it; `whole`: it is the whole text, of which no part is an answer.
    """

    def __init__(self, text: str, start: int, end: int, problem: str, marked: bool = False, whole: bool = False):
        self.source, self.start, self.problem, self.marked, self.whole = text, start, problem, marked, whole
        self.written = text[start:end].strip()
        said = _SUPPOSED.sub("", _DENIED.sub("", _FOR_ALL.sub("", "" if whole else text[start:end])))
        bold = [content for content in _BOLD.findall(said) if MATHEMATICAL.search(content)]
        self.text = _PLACE.sub("", bold[-1] if bold else said)

    @cached_property
    def maths(self) -> list[Span]:
        """Its mathematics, but for names of unknowns."""
        return [span for span in find_maths(self.text) if not _UNKNOWN.fullmatch(span[2])]

    @cached_property
    def values(self) -> list[Span]:
        """Each value, the last side of an equation."""
        sides = [(start, end, after_equals(content)) for start, end, content in self.maths]
        return sorted(sides + [(*match.span(), match[0].strip()) for match in NUMBER.finditer(mask_maths(self.text))])

    def is_given(self, value: str) -> bool:
        """Whether the problem has this value, or each of a list. A letter of the problem is none."""
        (numbers, words), text = read_given(self.problem), identify(value)
        if text in numbers or (len(text) > 2 and not text.isdigit() and text in words):
            return True
        return ", " in value and all(map(self.is_given, value.split(", ")))

    @property
    def is_copied(self) -> bool:
        """Whether the problem has this sentence, word by word."""
        return len(WORDS.findall(self.written)) > _COPIED and _WRITTEN.sub("", self.written) in read_given(self.problem)[1]

    @cached_property
    def new(self) -> list[Span]:
        """Each value that the problem does not have, once."""
        return list({identify(span[2]): span for span in self.values if not self.is_given(span[2])}.values())

    @cached_property
    def last(self) -> str | None:
        """The last mathematics, after its last `=`; else the number after the last `=`; else the last number."""
        if maths := self.maths:
            behind = self.text[maths[-1][1] :]
            if "=" in maths[-1][2] and (said := RESULT.search(_CLAUSE.sub("", behind))):  # For $n=6$ there are 36 outcomes.
                return said[1].strip()
            if len({content.rpartition("=")[0] for _, _, content in maths[-2:]}) > 1:
                maths = maths[-1:]  # `$x = 1$, $y = 2$` ends with one value, `$x = 1$ or $x = 2$` with two
            return join_last(self.text, [(start, end, after_equals(content)) for start, end, content in maths]) or None
        without = _CLAUSE.sub("", self.text)
        text = without if NUMBER.search(without) and without.count("=") == self.text.count("=") else self.text
        _, sign, after = text.rpartition("=")
        if sign and MATHEMATICAL.search(after) and not WORDS.search(TEXT_COMMAND.sub(" ", after)):  # without delimiters
            return strip_markup(after)
        numbers: list[str] = (NUMBER.findall(after)[:1] if sign else []) or NUMBER.findall(text)
        return numbers[-1].strip() if numbers else None


def strip_markup(text: str) -> str | None:
    """A text without marks of Markdown and the full stop at its end; None if nothing is left, or too much."""
    text = text.strip(" \t*_`#").rstrip(".").strip()
    return text if text and len(text) <= MAX_LOOSE else None
