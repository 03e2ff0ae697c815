"""The letter of a multiple-choice answer: of the last box, else of the last marker, else the only one in the last line.

Two different letters offered together are no answer. Every regular expression here is possessive or bounded.
"""

import re

from lm_eval_takeover.answers.extraction import TAIL, Reading, find_boxes, strip_thinking

_WRAP = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|textit|textrm|bf|rm)\b\s*+")
_BOXED = re.compile(
    r"\A\W*+(?:(?i:option|choice|answer)\b\W*+)?+(?:([A-Z])[\s)\]}$]*+(?:(?<=\))\s|[.:\n]|$)|([a-z])\W*+$)"
)
_CAPITAL = r"([B-Z]|A(?! (?!is\b|because\b|since\b|as\b|and\b|with\b|or\b)[a-z]))(?![\w'’]|-[A-Za-z])"
_OPEN = r"[\s*_:\"“$(\[{\\]*+(?:(?:text|textbf|mathrm|mathbf)\{\(?+)?+"
_LETTER = rf"{_OPEN}(?:{_CAPITAL}|(?<=\()([a-z])(?=\))|([a-z])(?=\W*+(?:$|\n)))"
_MARKER = re.compile(
    r"\b(?i:answer(?:\s++(?:is|should be|would be|must be|will be)\b)?+(?:\s++(?:therefore|thus|clearly|simply)\b)?+[\s*_:]*+"
    rf"(?P<denied>not\b)?+\s*+(?:(?:option|choice|letter)\b)?+|(?:correct|right|best)\s++(?:option|choice|letter)\s++is\b){_LETTER}"
)
_CALLED = re.compile(r"(?<![A-Za-z'’-])([A-Z])\b[)*_$}]*+\s++(?:is|must be)\s++(?:the\s++)?+(?:correct|right|best)\b")
_SECOND = re.compile(rf"[)\s*_$}}\].]*+(?:,|/|\b(?:or|and)\b)\s*+(?:(?i:option|choice)\s++)?+{_LETTER}")
_DENIED = re.compile(r"\b(?:not|incorrect|wrong|isn't)\s*+$", re.IGNORECASE)
_ALONE = re.compile(rf"(?<![A-Za-z0-9'’\\-]){_CAPITAL}|\(([a-z])\)")


def read_letter(response: str, truncated: bool = False, letters: str = "ABCD") -> Reading:
    """The letter that a response answers with; None if it gives none, or more than one."""
    text = strip_thinking(response)
    if boxes := find_boxes(text):
        content = _WRAP.sub("", boxes[-1][2])
        found = _BOXED.match(content)
        letter = (found[1] or found[2] or "").upper() if found else _find_marked(content, letters)
        if letter and letter in letters:
            return Reading(letter, boxed=True)
    if "<think>" in text:
        return Reading(None)
    text = text[-TAIL:]
    marked = _find_marked(text, letters)
    if marked is None and not truncated:
        line = text.rstrip().rpartition("\n")[2]
        alone = {letter for found in _ALONE.finditer(line) if (letter := _read(found)) in letters}
        marked = alone.pop() if len(alone) == 1 else None
    return Reading(marked or None)


def extract_letter(response: str, letters: str = "ABCD") -> str | None:
    """The answer of `read_letter`."""
    return read_letter(response, letters=letters).answer


def _read(found: re.Match[str]) -> str:
    return next(group for group in found.groups() if group and len(group) == 1).upper()


def _find_marked(text: str, letters: str) -> str | None:
    """The letter of the last marker; empty where it offers two or denies one, None where there is no marker."""
    last = None
    for found in sorted([*_MARKER.finditer(text), *_CALLED.finditer(text)], key=re.Match.start):
        letter = _read(found)
        if letter not in letters:
            continue
        if found.groupdict().get("denied") or _DENIED.search(text, max(0, found.start() - 20), found.start()):
            last = last or ""
            continue
        second = _SECOND.match(text, found.end())
        last = "" if second and _read(second) in letters.replace(letter, "") else letter
    return last
