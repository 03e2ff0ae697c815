"""The final answer of a response: its last `\\boxed{…}`, else what it states as its answer.

A reply without a box is not searched for numbers: only a sentence that says what the answer is, a reply that is nothing but
an answer, or a conclusion that ends in mathematics counts. Everything here is linear in the length of the response.
"""

import re

from lm_eval_takeover.answers.conclusions import find_conclusion, states_doubt
from lm_eval_takeover.answers.prompts import cut_run_on
from lm_eval_takeover.answers.sentences import MATHS

MAX_LOOSE = 300  # characters of an answer without a box
TAIL = 10_000  # characters at the end of a response in which an answer without a box is looked for

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_EMPTY_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{(?:[\s.…?]|\\(?:c?dots|ldots))*\}")
_BARE_BOX = re.compile(r"\\boxed\s*([^\s{}$\\.,;]+)")  # \boxed 5, which TeX accepts
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_EMPTY = re.compile(r"[\s.…]*|\\(?:c?dots|ldots)|\?+")
# What may stand between boxes of one list: an 'and', 'or', comma, gap or bullet, with maths delimiters and names of unknowns.
_FILLING = r"(?:\s|\$|\\[()\[\],;:! ]|~|\*\*|\\text\s*\{|\}|[A-Za-z](?:_\{?\w{1,3}\}?)?\s*=)"
_SEPARATOR = r"(?:,|;|\band\b(?:\s+also\b)?|\bor\b|&|\\q?quad(?![A-Za-z])|\n\s*(?:[-*•]|\d{1,2}[.)])\s)"
_JOIN = re.compile(rf"{_FILLING}*{_SEPARATOR}(?:{_FILLING}|{_SEPARATOR})*")
_MAX_JOIN = 60  # characters
_SAID = re.compile(
    r"(?:\bans(?:wers?)?\b(?:\s+(?:to|of(?=\s+(?:the|this|that|our)\b)|for)\s[^.\n]{0,80}?)?[\s*_]*"
    r"(?:\b(?:(?:is|are)(?!\s+(?:consistent|correct|in|valid|reasonable|given|expressed|unique)\b)|"
    r"(?:should|would|must|will) be|equals)\b(?:\s+(?:therefore|thus|indeed|simply|then|hence)\b,?)?|[:=]|\n+)|"
    r"####(?=\s*[-+$\\\d.]))[\s*_:]*",
    re.IGNORECASE,
)
# An answer that is not the one that is given.
_OTHER_ANSWER = re.compile(
    r"\b(?:wrong|incorrect|mistaken|false|previous|earlier|tempting|common|naive|approximate|rough|estimated|student'?s|someone|another"
    r"|an? (?:possible|other|plausible))\s+(?:[a-z]+\s+)?answer",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[-+]?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?")
_HEDGED = re.compile(r"\b(?:not|never|neither|between|least|most|more|less|than|or|about|if)\b|n't", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<!\\)[.!?](?=\s|$|\*)|\n")
_REASON = re.compile(
    r"(?<!\bor)(?:,\s+not(?= [-\d$\\])|,?\s+(?:because|since|which|where|as"
    r"|so(?! [-$\\]?\d)|for(?![^.\n]*, so [-$\\]?\d)|when|if|but))\b",
    re.IGNORECASE,
)
_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_ANY_WORDS = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{2,}")  # of any script
_LONGEST_WORD = 24  # letters of a word that is an answer
_SPEECH = re.compile(
    r"\b(?:I|we|you|not|know|cannot|sorry|let|if|suppose|assume|say|try|maybe|perhaps|about|nearly|almost|guess|case|one"
    r"|step|over|under|check|whether|test|verify|works?|does)\b",
    re.IGNORECASE,
)
_AFTER_MATHS = re.compile(r"(?:\s+[a-z]+(?:\^\d|²|³)?){0,3}[\s.!*]*", re.IGNORECASE)


def strip_thinking(response: str) -> str:
    """The response after its last `</think>`, without what it runs on into; an unclosed `<think>` is left as it is."""
    return cut_run_on(response).rpartition("</think>")[2]


def has_unclosed_think(response: str) -> bool:
    """Whether a `<think>` was opened and never closed."""
    return "<think>" in strip_thinking(response)


def extract_answer(response: str) -> str | None:
    """The final answer in LaTeX or plain text; None if the response gives none.

    The last complete, non-empty box counts, with the boxes before it that an 'and', 'or' or comma joins to it (as one list).
    In an unclosed `<think>` a box counts and nothing else does: thoughts name many numbers that are not the answer.
    """
    text = strip_thinking(response)
    if boxes := find_boxes(text):
        return _join_last_boxes(text, boxes)
    if bare := _BARE_BOX.findall(text):
        return str(bare[-1])
    return None if has_unclosed_think(response) else (_find_stated(_EMPTY_BOX.sub(" ", text[-TAIL:]).strip()) or None)


def find_boxes(text: str) -> list[tuple[int, int, str]]:
    """`(start, end, content)` of every complete outermost box, empty ones left out; `5` for `\\boxed{\\boxed{5}}`."""
    opening = {found.end() - 1: found.start() for found in _BOX.finditer(text)}
    if not opening:
        return []
    spans: list[tuple[int, int, int, int]] = []  # start and end of a box, start and end of what it holds
    opened: list[int] = []
    for brace in _BRACES.finditer(text, min(opening)):
        position = brace.start()
        if brace[0] == "{":
            opened.append(position)
        elif brace[0] == "}" and opened and (start := opened.pop()) in opening:
            inner = (start + 1, position)
            while spans and spans[-1][0] > start:  # a box around boxes takes their place
                first, end, *held = spans.pop()
                if not (text[start + 1 : first].strip() or text[end:position].strip()):
                    inner = (held[0], held[1])
            spans.append((opening[start], position + 1, *inner))
    boxes = [(start, end, text[first:last].strip()) for start, end, first, last in spans]
    return [box for box in boxes if not _EMPTY.fullmatch(box[2])]


def _join_last_boxes(text: str, boxes: list[tuple[int, int, str]]) -> str:
    answers = [boxes[-1][2]]
    for (_, end, content), (start, _, _) in zip(reversed(boxes[:-1]), reversed(boxes[1:]), strict=True):
        if not _are_of_one_list(text, end, start):
            break
        answers.append(content)
    return ", ".join(reversed(answers))


def _are_of_one_list(text: str, end: int, start: int) -> bool:
    """Whether what ends at `end` and what begins at `start` are of one list."""
    return start - end <= _MAX_JOIN and _JOIN.fullmatch(text, end, start) is not None


def _find_stated(text: str) -> str | None:
    """What a response without a box says that its answer is."""
    if said := [found.end() for found in _SAID.finditer(text) if not _is_doubted(text, found)]:
        mathematical = [end for end in said if re.match(r"[^.\n]{0,80}?[\d$\\]", text[end : end + 100])]
        return _read_sentence(text[(mathematical or said)[-1] :])
    if _is_bare(text) and not (_ANY_WORDS.search(text) or MATHS.search(text)):
        return _strip_markup(text)
    if conclusion := find_conclusion(text):
        return conclusion
    return _strip_markup(text) if _is_bare(text) else None


def _is_doubted(text: str, said: re.Match[str]) -> bool:
    """Whether the sentence that says `answer is` asks or supposes it."""
    start = max(
        text.rfind(stop, max(0, said.start() - MAX_LOOSE), said.start()) for stop in ("\n", ". ", "? ", "! ", ": ")
    )
    if _OTHER_ANSWER.search(text, max(start + 1, said.start() - MAX_LOOSE), said.start() + len("answer")):
        return True
    rest = text[said.end() : said.end() + MAX_LOOSE]
    end = _SENTENCE_END.search(rest)
    asked = end is not None and end[0] == "?"
    return asked or states_doubt(text[max(start + 1, said.start() - MAX_LOOSE) : said.end()].rstrip(" *_:=\n"))


def _read_sentence(text: str) -> str | None:
    found = MATHS.match(text)
    if found is not None:
        end, parts = found.end(), [_read_group(found)]
        while (following := MATHS.search(text, end)) and _are_of_one_list(text, end, following.start()):
            parts.append(_read_group(following))
            end = following.end()
        unit = _AFTER_MATHS.match(text, end)
        tail = unit[0].strip(" *.!\n") if unit is not None and _SENTENCE_END.match(text, unit.end() - 1) else ""
        return ", ".join(parts) + (f" {tail}" if tail else "")
    end_of_sentence = _SENTENCE_END.search(text)
    sentence = text[: end_of_sentence.start()] if end_of_sentence else text
    if re.search(r"\\boxed\s*\{", sentence):
        return None  # an unfinished box
    inner = list(MATHS.finditer(sentence))
    if inner and _AFTER_MATHS.fullmatch(sentence, inner[-1].end()) and not _HEDGED.search(sentence):
        return _join_last_maths(sentence, inner)
    if sentence.count("**") == 1:  # `**Answer: 25 students** prefer`
        sentence = sentence.partition("**")[0]
    sentence = re.sub(r"\s*\([^()]*\b(?:since|because|as)\b[^()]*\)?", "", sentence)
    reason = _REASON.search(sentence)
    sentence = sentence[: reason.start()] if reason else sentence
    numbers = _NUMBER.findall(sentence)
    if len(numbers) == 1 and len(sentence.split()) > 4 and not _HEDGED.search(sentence) and "\\" not in sentence:
        return str(numbers[0])  # Answer: Janet makes $18 every day
    return _strip_markup(sentence)


def _strip_markup(text: str) -> str | None:
    text = text.strip(" \t*_`").rstrip(".").strip()
    return text if text and len(text) <= MAX_LOOSE else None


def _is_bare(text: str) -> bool:
    """Whether a response is nothing but an answer: mathematics with at most three words of unit, or one word."""
    line = text.strip(" *")
    if len(line) > MAX_LOOSE or "\n" in line:
        return False
    maths = MATHS.search(line)
    if maths is not None and _WORDS.search(line, 0, maths.start()):
        return False
    count = len(_WORDS.findall(MATHS.sub(" ", line)))
    mathematical = maths is not None or re.search(r"[\d\\=+^]", line) is not None
    if not mathematical and len(line) > _LONGEST_WORD:
        return False
    return count <= (3 if mathematical else 1) and not line.endswith("?") and not _SPEECH.search(line)


def _read_group(found: re.Match[str]) -> str:
    return next(group for group in found.groups() if group is not None).strip()


def _join_last_maths(text: str, maths: list[re.Match[str]]) -> str:
    parts, start = [_read_group(maths[-1])], maths[-1].start()
    for found in reversed(maths[:-1]):
        if not _are_of_one_list(text, found.end(), start):
            break
        parts.append(_read_group(found))
        start = found.start()
    return ", ".join(reversed(parts))
