"""The letter that a response answers with: of the last box, else of the last marker, else the only one in the last line.

Two letters, a denied one and `B?` are no answer.
"""

import re
from unicodedata import normalize

from lm_eval_takeover.answers.boxes import find_boxes, join_last
from lm_eval_takeover.answers.reading import ExtractedAnswer
from lm_eval_takeover.answers.response import TAIL, find_tagged, find_tags, strip_thinking

_WRAP = re.compile(
    r"\\(?:(?:text|math)(?:bf|it|rm|sf|tt|normal)?|boldsymbol|underline|[lL]arge|emph|mbox|bf|bm|rm|q?quad)\b\s*+"
    r"|\\[,;:! ]|~|[选選](?=\W*+[A-Z])"
)
_BOXED = re.compile(
    r"\A[\W_]*+(?>(?i:option|choice|answer|graph)\b\W*+|)"
    r"(?:([A-Z])(?:[\]}$]*+\)[\]}$]*+\s|[\s)\]{}$\\]*+(?:[.:,`项、\n]|$)|[}\\]*+\s++(?=[\d(]|[-–—]\s))|([a-z])(?:[.)]\s|\W*+$))"
    r"|\A\d[^()]*\(([A-Z])\)\W*+\Z"
)
_FIRST = re.compile(r"\A\W*+([A-Z])(?:\W*?(?:\n|\Z)|,?\s(?:because|since)\b)")
_CAPITAL = r"([B-Z]|A(?! (?!is\b|because\b|since\b|as\b|and\b|with\b|or\b)[a-z]))(?![A-Za-z0-9_]|['’][A-Za-z]|-[A-Za-z])"
_OPEN = r"[\s*_:\"“$(\[{\\]*+(?>(?:text|textbf|mathrm|mathbf)\{\(?+|)"
_LETTER = rf"{_OPEN}(?:{_CAPITAL}|(?<=\()([a-z])(?=\))|([a-z])(?=\W*+(?:$|\n)))"
_LETTER_MARKER = re.compile(
    r"(?i:\banswer(?>\s++(?:is|should be|would be|must be|will be)\b|)(?>\s++(?:therefore|thus|clearly|simply)\b|)[\s*_:]*+"
    r"(?>not\b|)\s*+(?>(?:option|choice|letter)\b|)|(?:答案|正解|答え|\b[选選])[是为為は：选選择擇项項应]*+|정?답[은:]?"
    r"|\b(?:so|leav(?:es|ing)|therefore|thus|hence),?(?=\s\(?[A-Z]\)?(?:\W|$))"
    rf"|\b(?:correct|right|best)\s++(?:option|choice|letter)\s++is\b|\bactually,?\s++it(?:['’]s|\s++is)\b){_LETTER}"
    r"|(?<![A-Za-z'’-])([A-Z])\b[)*_$}]*+\s++(?:is|must be)\s++(?>the\s++|)(?:correct|right|best)\b"
)
_SECOND = re.compile(
    rf"[(\s*${{}}\].)]*+(?:,?\s*+\b(?:or|and)\b|[,/或和、])[\s}}]*+(?>(?i:option|choice|possibly|maybe)\s++|){_LETTER}"
)
_DENIED_BEFORE = re.compile(
    r"(?i)(?:不是|不选|非|排除[A-Z、和]*+"
    r"|\b(?:not|never|nor|neither|incorrect|wrong|except|eliminate|cannot be|rule out|anything but)"
    r"|n['’]t(?: be)?|\\neq?|≠)[\s({}$*]*+$"
)
_DENIED_BEHIND = re.compile(
    r"(?i)[)\]}\s*_$]*+(?:\?|ではない|は間違|(?:[选選][项項]|项)?(?:不|是?错)|가 아니|는 오답|\(?(?:incorrect|wrong|false)\b"
    r"|(?:is|are|was|seems)(?:n['’]t|\s++(?:not|incorrect|wrong|false|ruled out|impossible))\b)"
)
_FULL_WIDTH = re.compile("[！-～]+")
_ALONE = re.compile(rf"(?<![A-Za-z0-9'’\\-]){_CAPITAL}|\(([a-z])\)")


def read_letter(response: str, truncated: bool = False, letters: str = "ABCD") -> ExtractedAnswer:
    """The letter that a response answers with; None if it gives none, or more than one."""
    text = _FULL_WIDTH.sub(lambda match: normalize("NFKC", match[0]), strip_thinking(response))
    unclosed, tagged = bool(find_tags(text)), find_tagged(text)
    text = tagged or text
    boxes, _ = find_boxes(text)
    if boxes:
        content = _WRAP.sub(" ", join_last(text, boxes).strip("*"))
        match = _BOXED.match(content)
        letter = _choose(content, match, letters) if match else _find_marked(content, letters)
        if letter:
            return ExtractedAnswer(letter, True, unclosed)
        ends, starts = [0, *(end for _, end, _ in boxes)], [*(start for start, _, _ in boxes), len(text)]
        text = " ".join(text[end:start] for end, start in zip(ends, starts, strict=True))
    if unclosed and not tagged:
        return ExtractedAnswer(None, False, unclosed)
    text = text[-TAIL:]
    marked = _find_marked(text, letters)
    if marked is None and not truncated:
        line = text.rstrip().rpartition("\n")[2]
        alone = {_choose(line, match, letters) for match in _ALONE.finditer(line)} - {None}
        whole = _FIRST.match(text.lstrip()) or (None if alone else _BOXED.match(line))
        marked = alone.pop() if len(alone) == 1 else _choose(whole.string, whole, letters) if whole else None
    return ExtractedAnswer(marked or None, False, unclosed)


def _choose(text: str, match: re.Match[str], letters: str) -> str | None:
    """The letter of a match. Empty if a second letter is offered, None if it is denied or not among `letters`."""
    letter, (start, end) = match[match.lastindex or 0].upper(), match.span(match.lastindex or 0)
    if letter not in letters or _DENIED_BEHIND.match(text, end):
        return None
    if any(_DENIED_BEFORE.search(text[max(0, place - 20) : place]) for place in (start, match.start())):
        return None
    second = _SECOND.match(text, end)
    return "" if second and second[second.lastindex or 0].upper() in letters.replace(letter, "") else letter


def _find_marked(text: str, letters: str) -> str | None:
    """The letter of the last marker that does not deny it; empty where it offers two, None where there is no marker."""
    chosen = (_choose(text, match, letters) for match in _LETTER_MARKER.finditer(text))
    return next(reversed([letter for letter in chosen if letter is not None]), None)
