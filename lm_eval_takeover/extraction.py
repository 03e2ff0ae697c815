"""The final answer of a response: its last `\\boxed{…}`, else what it states as its answer.

A reply without a box is not searched for numbers: only a sentence that says what the answer is, a reply that is nothing but
an answer, or a conclusion that ends in mathematics counts. Everything here is linear in the length of the response.
"""

import re

MAX_LOOSE = 300  # characters of an answer without a box
TAIL = 10_000  # characters at the end of a response in which an answer without a box is looked for

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_EMPTY_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{(?:[\s.…?]|\\(?:c?dots|ldots))*\}")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_EMPTY = re.compile(r"[\s.…]*|\\(?:c?dots|ldots)|\?+")
# What may stand between boxes of one list: an 'and', 'or' or comma, maths delimiters, spaces and the name of the next unknown.
_JOIN = re.compile(
    r"(?:\s|\$|\\[()\[\],;:! ]|\\q?quad|~|\*|\\text\{|\}|[a-z]\w?\s*=)*(?:,|;|\band\b|\bor\b|&)[^\d.\n]{0,40}"
)
_MATHS = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<!\\)\$((?:\\.|[^$\\])+)\$", re.DOTALL)
_SAID = re.compile(
    r"(?:\banswers?\b(?:\s+(?:to|of|for)\s[^.\n]{0,80}?)?[\s*_]*(?:\bis\b|\bare\b|[:=])|####)[\s*_:]*", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"(?<!\\)[.!?](?=\s|$|\*)|\n")
_REASON = re.compile(r",?\s+(?:because|since|which|where|as|so|for|when|if|but)\b", re.IGNORECASE)
_CONCLUDES = re.compile(
    r"\b(?:so|thus|hence|therefore|finally|consequently|result|total|conclude|answer)\b", re.IGNORECASE
)
_SPEECH = re.compile(r"\b(?:I|we|you|not|know|cannot|sorry)\b")
_AFTER_MATHS = re.compile(r"(?:\s+[a-z]+(?:\^\d|²|³)?){0,3}[\s.!*]*", re.IGNORECASE)


def without_thinking(response: str) -> str:
    """The response after its last `</think>`; an unclosed `<think>` is left as it is."""
    return response.rpartition("</think>")[2]


def has_unclosed_think(response: str) -> bool:
    """Whether a `<think>` was opened and never closed."""
    return "<think>" in without_thinking(response)


def extract_answer(response: str) -> str | None:
    """The final answer in LaTeX or plain text; None if the response gives none.

    The last complete, non-empty box counts, with the boxes before it that an 'and', 'or' or comma joins to it (as one list).
    In an unclosed `<think>` a box counts and nothing else does: thoughts name many numbers that are not the answer.
    """
    text = without_thinking(response)
    if boxes := _boxes(text):
        return _last_list(text, boxes)
    return None if has_unclosed_think(response) else _stated(_EMPTY_BOX.sub(" ", text[-TAIL:]).strip())


def _boxes(text: str) -> list[tuple[int, int, str]]:
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


def _last_list(text: str, boxes: list[tuple[int, int, str]]) -> str:
    answers = [boxes[-1][2]]
    for (_, end, content), (start, _, _) in zip(reversed(boxes[:-1]), reversed(boxes[1:]), strict=True):
        if not _JOIN.fullmatch(text, end, start):
            break
        if content not in answers:
            answers.insert(0, content)
    return ", ".join(answers)


def _stated(text: str) -> str | None:
    """What a response without a box says that its answer is."""
    if said := list(_SAID.finditer(text)):
        return _of_sentence(text[said[-1].end() :])
    maths = list(_MATHS.finditer(text, max(0, len(text) - MAX_LOOSE)))
    if maths and _AFTER_MATHS.fullmatch(text, maths[-1].end()):
        before = text[: maths[-1].start()].rstrip()
        sentence = before[max(before.rfind("\n"), before.rfind(". ")) + 1 :]
        if not sentence.strip(" *") or _CONCLUDES.search(sentence):
            unit = text[maths[-1].end() :].strip(" *.!\n")
            return _joined(text, maths) + (f" {unit}" if unit else "")
    return _stripped(text) if _is_bare(text) else None


def _of_sentence(text: str) -> str | None:
    found = _MATHS.match(text)
    if found is not None:
        end, parts = found.end(), [_content(found)]
        while (following := _MATHS.search(text, end)) and _JOIN.fullmatch(text, end, following.start()):
            parts.append(_content(following))
            end = following.end()
        unit = _AFTER_MATHS.match(text, end)
        tail = unit[0].strip(" *.!\n") if unit is not None and _SENTENCE_END.match(text, unit.end() - 1) else ""
        return ", ".join(parts) + (f" {tail}" if tail else "")
    end_of_sentence = _SENTENCE_END.search(text)
    sentence = text[: end_of_sentence.start()] if end_of_sentence else text
    reason = _REASON.search(sentence)
    return _stripped(sentence[: reason.start()] if reason else sentence)


def _stripped(text: str) -> str | None:
    text = text.strip(" \t*_`").rstrip(".").strip()
    return text if text and len(text) <= MAX_LOOSE else None


def _is_bare(text: str) -> bool:
    """Whether a response is nothing but an answer: mathematics with at most three words of unit, or one word."""
    line = text.strip(" *")
    if len(line) > MAX_LOOSE or "\n" in line:
        return False
    words = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
    maths = _MATHS.search(line)
    if maths is not None and words.search(line, 0, maths.start()):
        return False
    count = len(words.findall(_MATHS.sub(" ", line)))
    mathematical = maths is not None or re.search(r"[\d\\=+^]", line) is not None
    return count <= (3 if mathematical else 1) and not line.endswith("?") and not _SPEECH.search(line)


def _content(found: re.Match[str]) -> str:
    return next(group for group in found.groups() if group is not None).strip()


def _joined(text: str, maths: list[re.Match[str]]) -> str:
    parts, start = [_content(maths[-1])], maths[-1].start()
    for found in reversed(maths[:-1]):
        if not _JOIN.fullmatch(text, found.end(), start):
            break
        parts.insert(0, _content(found))
        start = found.start()
    return ", ".join(parts)


_LETTER = re.compile(r"\W*(?:(?:option|choice|answer)\b\W*)?([A-Z])(?:\W.*|\W*)", re.DOTALL | re.IGNORECASE)
_LETTER_WRAP = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|textit|textrm|bf|rm)\b\s*")
_LETTER_SAID = re.compile(
    r"(?:\b(?i:answer|option|choice)\b[\s*_]*(?:(?i:is|would be|must be)\b)?[\s*_:]*(?:(?i:option|choice)\s+)?)"
    r"\$?(?:\\(?:text|mathrm|textbf|mathbf)\{)?\(?([A-Z])\)?(?![A-Za-z'])"
)
_LETTER_ALONE = re.compile(r"[\s*_$]*\(?([A-Z])\)?(?:[.):][^\n]{0,200})?[\s*_$.]*")


def extract_letter(response: str, letters: str = "ABCD") -> str | None:
    """The letter of a multiple-choice answer: of the last box, else of the last 'answer: X', else of a reply that is a letter."""
    text = without_thinking(response)
    if boxes := _boxes(text):
        found = _LETTER.fullmatch(_LETTER_WRAP.sub("", boxes[-1][2]))
        return found[1].upper() if found and found[1].upper() in letters else None
    if has_unclosed_think(response):
        return None
    text = text[-TAIL:]
    said = [found[1] for found in _LETTER_SAID.finditer(text) if found[1] in letters]
    if said:
        return said[-1]
    alone = _LETTER_ALONE.fullmatch(text)
    return alone[1] if alone and alone[1] in letters else None
