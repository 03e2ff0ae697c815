"""The final answer of a response to a problem of mathematics: the first of an ordered list of rules (`RULES`) that finds one.

The first three read a box, what a marker introduces, and a reply that is nothing but an answer. The others read a sentence: the
one that a marker introduces, else the last one with a value. The problem's text tells the answer from the question's numbers.
Of two that could be meant none is guessed where the response denies or doubts.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple

from lm_eval_takeover.answers.boxes import BARE_BOX, EMPTY_BOX, LEAD, are_joined, find_boxes, join_last
from lm_eval_takeover.answers.response import PICTURE, TAIL, drop_second_round, find_tagged, find_tags, strip_thinking
from lm_eval_takeover.answers.sentences import (
    DOUBTED,
    MATHEMATICAL,
    MAX_LOOSE,
    NUMBER,
    RESULT,
    SO,
    TEXT_COMMAND,
    WORDS,
    Sentence,
    find_ends,
    find_maths,
    identify,
    strip_markup,
)

_MARKER = re.compile(
    r"[aA#](?=[nN][sS]|##)(?:(?<=\b[aA])(?i:(?<!if the .)(?<!suppose the .)ns(?:wers?)?\b"
    r"(?>\s++(?:to|of|for)\s[^.\n:]{0,80}?(?=\s(?:is|are)\b|:)|)(?>\s\((?-i:[a-z])[^()\n]{2,40}\)|)[\s*_]*+"
    r"(?:\b(?:is|are|should be|would be|must be|will be|equals)\b|[:=]|\n|(?=\$[^$\n]{1,80}\$[ .]*+(?:\n|\Z)))"
    r"(?!\s++(?:correct|right|valid|consistent|reasonable|wrong|incorrect)\b)(?>\s*+(?:therefore|thus|indeed|simply|then|hence)\b,?|))"
    r"|(?<=#)###)[\s*_:}]*+"
)
_DIRECT = re.compile(r"[-+−(\[{]*+\\?[\d$\\(√π€£]|\.\d")
_ASIDE = re.compile(
    r"\s\((?!mod\b|(?:in )?base\b)(?=[^()\\]*[A-Za-z]{2}|=)|\s\[(?=[A-Za-z]{2})|\s(?:rather than|instead of|and not"
    r"|because|since|as (?:there|we|it|required|expected|desired|shown)|when|in (?=\d)|for (?=\d))\b"
    rf"|[,;]\s(?!{SO}|(?:or|no|wait)\b(?! so\b)|respectively\b)(?:and not\b|(?=[A-Za-z]{{2}}|I\b|i\.e|e\.g))"
)
_REFUSED = re.compile(rf"[$\s)\]]*+(?:(?:is|was)\s(?:not|wrong|incorrect|impossible)\b|{DOUBTED.pattern})")
# Names and words that are mathematics, a sign in words, and numbers with words between them: `8 pens will cost $12`.
_EXPRESSED = re.compile(
    r"(?i)(?<![\\A-Za-z])(?:(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|ln|log(?: base \w+ of)?|exp|sqrt|pi|theta|alpha|beta|gamma"
    r"|minus|negative|(?:the )?(?:square|cube)(?: root)? of|squared|cubed)(?![A-Za-z])"
)
_SIGN = re.compile(r"(?:(?<=\b[iI]s )|(?<=\bto )|(?<=\bby )|(?<=\bof ))(?:minus|negative) (?=[\d$\\])")
_SAYS = re.compile(r"\d\s++(?>(?:(?!and\b|or\b)[^\W\d_]++\s++){2,})\D*\d")
_STATED = re.compile(
    r"(?:\b(?:is|are|was|were|be|equals?|comes? to)\b|=)(?>\s++(?:exactly|only|about|therefore|indeed|thus|then)\b|)"
    r"[\s*$\\(\[]*+\Z"
)
_COMPUTED = re.compile(r"=\s*+(?:\\?\$\s*+)?(-?\d[\d,]*+(?:\.\d++)?)")
_ASKED = re.compile(r"(?i)\bhow many ((?:[\w-]++\W){1,3})")


class ExtractedAnswer(NamedTuple):
    """The answer of a response, None if it gives none; whether it stands in a box; whether thinking never ends."""

    answer: str | None
    boxed: bool = False
    unclosed: bool = False


def read_answer(response: str, truncated: bool = False, problem: str = "") -> ExtractedAnswer:
    """The final answer in LaTeX or plain text.

    `truncated`: the token limit is known to have ended the response. `problem`: its text, where it is known.
    """
    text = strip_thinking(response)
    unclosed, tagged = bool(find_tags(text)), find_tagged(text)
    text = BARE_BOX.sub(r"\\boxed{\1}", tagged or text)
    boxes, cut = find_boxes(text)
    if cut is not None:  # off in its last box
        text, boxes = LEAD.sub("", text[:cut]), []
    if boxes and not _REFUSED.match(text, boxes[-1][1]):
        return ExtractedAnswer(join_last(text, boxes), True, unclosed)
    if boxes or (unclosed and not tagged):  # behind a refused box, or in thinking, nothing is an answer
        return ExtractedAnswer(None, False, unclosed)
    sentences = list_sentences(text, cut is not None or (truncated and not tagged), problem)
    found = (rule(sentence) for sentence in sentences for rule in RULES)
    return ExtractedAnswer(next(filter(None, found), None), False, unclosed)


def list_sentences(text: str, truncated: bool, problem: str) -> Iterator[Sentence]:
    """What may give the answer: texts behind markers, the whole text, its sentences; each from the last one on."""
    first = drop_second_round(text, problem)
    start = max(0, max(map(first.rfind, "0123456789")) - TAIL)  # a loop of words may follow the last number
    tail = PICTURE.sub(" ", first[start : start + 2 * TAIL]).strip()
    tail = _SIGN.sub("-", tail) if "minus" in tail or "negative" in tail else tail
    tail = EMPTY_BOX.sub(" ", tail).strip() if "box" in tail else tail
    ends = find_ends(tail)
    for start, end in reversed(_find_marked(tail, ends)):
        yield Sentence(tail, start, end, problem, marked=True)
    if truncated and first == text:
        return
    yield Sentence(tail, 0, len(tail), problem, whole=True)
    before_question = False
    for start, end in zip([*ends[-2::-1], -1], reversed(ends), strict=True):
        sentence, asks = Sentence(tail, start + 1, end, problem), tail[end : end + 1] == "?"
        number = sentence.written.lstrip("*")  # 2. How many are left? **5. Format:**
        of_list = number.isdigit() and (before_question or number != sentence.written)
        before_question = asks
        if end - start > 1 and not (asks or of_list or sentence.is_copied):
            yield sentence


def _find_marked(text: str, ends: list[int]) -> list[tuple[int, int]]:
    """Where texts behind markers begin and end. A cut-off copy of the one before, a question and a doubt are none."""
    found: dict[int, int] = {}  # end of a sentence: end of its last marker
    for match in _MARKER.finditer(text):
        found[ends[bisect_left(ends, match.end())]] = match.end()
    spans = [(start, end) for end, start in found.items() if text[end : end + 1] != "?"]
    if len(spans) > 1 and spans[-1][1] == len(text):
        before, last = (text[start:end] for start, end in spans[-2:])
        spans = spans[:-1] if before.startswith(last) else spans
    return [span for span in spans if not DOUBTED.search(text, *span)]


def read_leading(sentence: Sentence) -> str | None:
    """The value right behind a marker, without an aside; not one of the problem's where another one is new."""
    text = sentence.written
    if not sentence.marked or not _DIRECT.match(text):
        return None
    maths, plain = find_maths(text), _ASIDE.split(text, maxsplit=1)[0]
    part = Sentence(plain, 0, len(plain), sentence.problem, marked=True)
    if maths and maths[0][0] == 0:
        apart = (n for n in range(1, len(maths)) if not are_joined(text, maths[n - 1][1], maths[n][0]))
        value: str | None = ", ".join(content for _, _, content in maths[: next(apart, len(maths))])
    else:
        number = None if "=" in plain else NUMBER.match(plain)
        said = RESULT.search(plain, number.end()) if number else None
        value = said[1].strip() if said else read_alone(part) or (number[0].strip() if number else part.last)
    return None if value and sentence.is_given(value) and part.new else value


def read_alone(sentence: Sentence) -> str | None:
    """What is nothing but an answer: mathematics with at most three words of unit, or one word."""
    line = sentence.written.strip(" *")
    if not (sentence.marked or sentence.whole) or len(line) > MAX_LOOSE or "\n" in line or line.endswith("?"):
        return None
    masked = _EXPRESSED.sub(lambda match: "0" * len(match[0]), line)
    plain = TEXT_COMMAND.sub(lambda match: " " * len(match[0]), masked)
    first = MATHEMATICAL.search(masked)
    words = [match.start() for match in WORDS.finditer(plain)]
    if first is None:
        alone = len(words) <= (" " not in line and len(line) < 25) and any(map(str.isalpha, line))
    else:
        alone = len(words) <= 3 and line.count("=") <= 1 + line.count(",") and all(at > first.start() for at in words)
    return strip_markup(line) if alone and not _SAYS.search(plain) else None


def read_equation(sentence: Sentence) -> str | None:
    """The value right behind the last equals sign."""
    value, (_, sign, behind) = sentence.last, sentence.text.rpartition("=")
    return value if sign and value and behind.lstrip(" &\n$\\([{").startswith(value.lstrip("$\\([{")) else None


def read_stated(sentence: Sentence) -> str | None:
    """The last value, if it stands behind `is`, `are` or `equals`."""
    start, _, value = sentence.values[-1] if sentence.values else (0, 0, "")
    given = "=" in sentence.text and sentence.is_given(value)
    return value if _STATED.search(sentence.text[:start]) and not given else None


def read_asked(sentence: Sentence) -> str | None:
    """The only new value before a word that stands behind the problem's `how many`."""
    asked = _ASKED.findall(sentence.problem)
    stems = tuple(word[:5].lower() for word in asked[-1].split() if word[0].isalpha()) if asked else ()
    counted = [value for _, end, value in sentence.new if sentence.text[end:].lstrip(" $*").lower().startswith(stems)]
    return counted[0] if len(counted) == 1 else None


def read_new(sentence: Sentence) -> str | None:
    """The only value that the problem does not have."""
    return sentence.new[0][2] if len(sentence.new) == 1 else None


def read_computed(sentence: Sentence) -> str | None:
    """The value that the last calculation before the sentence gave, where the last value is the problem's."""
    if sentence.last is None or not sentence.is_given(sentence.last):
        return None
    results = _COMPUTED.findall(sentence.source, 0, sentence.start) or [""]
    return next((value for _, _, value in sentence.values if identify(value) == identify(results[-1])), None)


def read_last(sentence: Sentence) -> str | None:
    """The last value, without clauses that explain or suppose."""
    return sentence.last


RULES: tuple[Callable[[Sentence], str | None], ...] = (
    read_leading, read_alone, read_stated, read_equation, read_asked, read_new, read_computed, read_last,
)  # fmt: skip
