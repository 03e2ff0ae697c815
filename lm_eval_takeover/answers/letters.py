"""The letter of a multiple-choice answer: of the last box, else of what is said to be the answer, else of the last sentence.

A letter counts where it is called the answer (`the answer is B`), a choice (`option B`, `(b)`, `I select B`) or stands bold, and
its sentence neither asks nor rules it out. Two letters offered are no answer. Linear in the length of the response.
"""

import re
from collections.abc import Iterable

from lm_eval_takeover.answers.conclusions import states_doubt
from lm_eval_takeover.answers.extraction import TAIL, find_boxes, has_unclosed_think, strip_thinking
from lm_eval_takeover.answers.sentences import find_last_sentence

_LETTER = re.compile(r"\W*(?:(?i:option|choice|answer)\b\W*)?(?:([A-Z])\W*(?:[.:)\n].*|$)|([a-z])\W*$)", re.DOTALL)
_WRAP = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|textit|textrm|bf|rm)\b\s*")
_FORM = r"[\s*_:]*[\[\"“]?\\?[($]?\$?(?:\\(?:text|mathrm|textbf|mathbf)\{)?(?:\(?([A-Z])\)?|\(([a-z])\))(?![A-Za-z'])"
_SAID = re.compile(
    rf"\b(?i:answer)\b[\s*_]*(?:(?i:is|should be|would be|must be|will be)\b(?:\s+(?i:therefore|thus|clearly|simply)\b)?)?"
    rf"[\s*_:]*(?:(?i:option|choice|letter)\s+)?{_FORM}"
    rf"|\b(?i:correct|right|best)\s+(?i:option|choice|letter)\s+(?i:is){_FORM}"
    rf"|\(?\b([A-Z])\b\)?[*_]*\s+(?i:is)\s+(?i:the\s+)?(?i:correct|right|best)(?:\s+(?i:answer|option|choice))?"
)
_ALONE = re.compile(r"[\s*_$]*\(?([A-Z])\)?(?:[.):][^\n]{0,200})?[\s*_$.]*")


def extract_letter(response: str, letters: str = "ABCD") -> str | None:
    """The letter that a response answers with; None if it gives none, or more than one."""
    text = strip_thinking(response)
    if boxes := find_boxes(text):
        content = _WRAP.sub("", boxes[-1][2])
        found = _LETTER.fullmatch(content)
        letter = (found[1] or found[2] or "").upper() if found else _find_last_said(content, letters)
        if letter and letter in letters:
            return letter
    if has_unclosed_think(response):
        return None
    text = text[-TAIL:]
    if said := _find_last_said(text, letters):
        return None if said == _SEVERAL else said
    if concluded := _find_asserted(text, letters):
        return concluded
    alone = _ALONE.fullmatch(text)
    if alone is None or alone[1] not in letters or _OFFERS_MORE.search(text):
        return None
    return None if _list_letters(_OPTION.finditer(text), letters) - {alone[1]} else alone[1]


_OFFERS_MORE = re.compile(r"\b(?:incorrect|wrong|false|not correct|if|or|else|maybe|perhaps)\b|\?\W*$")
_SEVERAL = "several"  # what `the answer is B or C` says
_WRONG = re.compile(r"\b(?:incorrect|wrong|false|worst|not (?:the|an?))\s*$", re.IGNORECASE)
_SECOND = re.compile(
    r"[)\s*_$}\]]*(?:,\s*)?(?:/|\b(?:or|and)\b)\s*(?:(?i:option|choice|maybe|perhaps"
    r"|possibly)\s+)*[*_$(\\]*(?:text\{)?([A-Z])(?![A-Za-z'])"
)


def _find_last_said(text: str, letters: str) -> str | None:
    """The last letter that is said to be the answer, by a sentence that neither asks nor supposes it."""
    last = None
    for found in _SAID.finditer(text):
        letter = next(filter(None, found.groups())).upper()
        start = max(
            text.rfind(stop, max(0, found.start() - TAIL // 50), found.start()) for stop in ("\n", ". ", "? ", "! ")
        )
        if (
            letter not in letters
            or _WRONG.search(text[start + 1 : found.start()])
            or _is_doubted(text, start + 1, found.end())
        ):
            continue
        second = _SECOND.match(text, found.end())
        last = _SEVERAL if second and second[1] in letters and second[1] != letter else letter
    return last


_NEXT_STOP = re.compile(r"[.!?](?=\s|$|\*)|\n")


def _is_doubted(text: str, start: int, end: int) -> bool:
    stop = _NEXT_STOP.search(text, end, end + TAIL // 50)
    return (stop is not None and stop[0] == "?") or states_doubt(text[start:end].rstrip(" *_:"))


_PREDICATE = (
    r"(?:\s+(?i:is|are|must be|does)\b"
    r"|\s+(?i:fit|hold|remain|match|work|describ|appl|follow|satisf|agree|explain|give|correspond)(?i:s|es|ies)\b)"
)
_OPTION = re.compile(
    r"(?:\*\*|__)[\s(]*(?:(?i:option|choice|answer)\s+)?\(?(?P<bold>[A-Z])"
    r"(?:[).:](?![A-Za-z])[^*_\n]*|\s*[-–—]\s[^*_\n]*)?\)?\s*(?:\*\*|__)"
    r"|\b(?i:options?|choices?|alternative|answers?|letter|select(?:ing|ed)?|choose|choosing|chose|pick(?:ing|ed)?)\s+"
    r"(?:(?i:is|as|option|choice|letter|answer)\s+)*[(\"“]?(?P<named>[A-Z])[)\"”]?(?![A-Za-z'])"
    r"|\((?P<bracketed>[A-Za-z])\)"
    r"|(?<![A-Za-z'(-])(?P<bare>[A-Z])(?![A-Za-z'-])"
    rf"(?={_PREDICATE}|\s*[,.;:)]|\s*$|\s+(?i:and|or|nor)\b)"
)
_LISTED = re.compile(r"(?<=[^A-Za-z][A-Z])\)?,(?: and| or)? \(?(?=[A-Z]\b(?!\s+(?i:is|must|fits|remains)))")
_RULED_OUT = re.compile(
    r"\b(?:wrong|incorrect|false|ruled out|rules? out|eliminat\w+|exclud\w+|not|none|n't|cannot|can't|neither|nor|inconsistent"
    r"|disagree\w*|fails?|impossible|unlike|reject\w*|discard\w*|implausible|invalid|unlikely|rather than|instead of|over"
    r"|contradict\w*|violat\w*|out)\b",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"\bit(?:'s| is| was) (?:wrong|incorrect|false|ruled out|excluded)\b|\bit (?:fails|violates)\b"
    r"|\b(?:incorrect|wrong|worst) (?:answer|option|choice)s?\b\W*(?:is|are|:)",
    re.IGNORECASE,
)
_FOLLOWS = re.compile(r"\W*(?:so|thus|hence|therefore|leaving|which leaves|and so|only)\b", re.IGNORECASE)
_ASSERTED = re.compile(
    r"\b(?:only|correct|right|best|true|answer|select\w*|choos\w*|chose|pick\w*|fits|holds|remains|remaining|left|matches"
    r"|consistent|works|option|choice|selection|valid|leaving|leaves|so|thus|hence|therefore|must be)\b",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"[;,:]\s+|\s+(?:while|whereas|but|since|because|leaving|which leaves|and (?=(?:only|so|thus|therefore|hence|the)\b)"
    r"|(?:so|as|with) (?=(?:only|option|choice|the|[A-Z])\b))\s*\b|\s[-–—]\s|\s*\((?=[^)]{3})"
)


def _find_asserted(text: str, letters: str) -> str | None:
    """The one letter that the last sentence asserts; letters that the same sentence rules out do not count."""
    sentence = find_last_sentence(text)
    if not sentence or states_doubt(sentence) or _TAKEN_BACK.search(sentence):
        return None
    asserted: set[str] = set()
    followed: set[str] = set()  # of clauses that draw the conclusion
    claimed = _ASSERTED.search(sentence) is not None
    for clause in _split_clauses(sentence):
        options = list(_OPTION.finditer(clause))
        named = _list_letters(options, letters)
        if (alone := _ALONE.fullmatch(clause)) and not named and alone[1] in letters:
            named = {alone[1]}
        if not named or _RULED_OUT.search(clause):
            continue
        claimed |= any(option["bold"] or option["named"] for option in options)
        asserted |= named
        followed |= named if _FOLLOWS.match(clause) else set()
    chosen = followed or asserted
    return chosen.pop() if len(chosen) == 1 and claimed else None


def _list_letters(options: Iterable[re.Match[str]], letters: str) -> set[str]:
    return {next(filter(None, option.groups())).upper() for option in options} & set(letters)


def _split_clauses(sentence: str) -> list[str]:
    """The clauses of a sentence; letters of one list stay together."""
    listed = _LISTED.sub(" and ", sentence)
    return [clause for clause in _CLAUSE.split(listed) if clause and clause.strip()]
