"""Boxes of TeX: what they hold, and which of them are one list."""

import re

Span = tuple[int, int, str]  # start, end, what it holds

_BOX = re.compile(r"(?:\\(?:[bB]oxed|fbox)|(?<![\\A-Za-z])boxed)\s*+\{")
LEAD = re.compile(r",?\s++(?>so|thus|hence|therefore|or|)[\s$:,]*+$")
_HOLE = r"(?>(?:[\s.…?]|\\[cl]?dots)*)"
EMPTY_BOX = re.compile(rf"(?:(?:within|in|inside|with|using)\s++)?(?:an?\s++)?\\(?:boxed|fbox)\s*+\{{{_HOLE}\}}")
BARE_BOX = re.compile(r"\\boxed\s*+(-?\d[^\s{}$\\.,;]*+|[A-Za-z](?![A-Za-z]))(?=\s*+(?:[$\\.,;\n]|$))")  # which TeX accepts
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
# Between two boxes of one list: at least one separator; also spaces, delimiters and names of unknowns.
_SEPARATOR = (
    r"\n\s*+(?:(?:[-*•]|\(?[a-z\d]{1,2}[.)])\s|\$*+[A-Za-z]\s*+=)|[,;&]|\b(?:and|or)\b(?>\s++also\b|)|\\q?quad(?![A-Za-z])"
)
_BETWEEN = re.compile(
    rf"(?s)(?=.*(?:{_SEPARATOR}))"
    rf"(?>(?:{_SEPARATOR}|[\s$~}}]|\*\*|\\[()\[\]:! ]|\\[,;]|\\text\s*+\{{|[A-Za-z](?:_\{{?\w{{1,3}}\}}?)?\s*+=)*)"
)
_MAX_BETWEEN = 60  # characters


def find_boxes(text: str) -> tuple[list[Span], int | None]:
    """Every complete outermost box that is not empty, `5` for `\\boxed{\\boxed{5}}`; where the last begins if it never ends."""
    first = text.find("ox")  # a fast search
    opening = {match.end() - 1: match.start() for match in _BOX.finditer(text, max(first - 3, 0) if first >= 0 else len(text))}
    spans: list[tuple[int, int, int, int]] = []  # start and end of a box, start and end of what it holds
    opened: list[int] = []
    for brace in _BRACES.finditer(text, min(opening, default=len(text))):
        position = brace.start()
        if brace[0] == "{":
            opened.append(position)
        elif brace[0] == "}" and opened and (start := opened.pop()) in opening:
            inner = (start + 1, position)
            while spans and spans[-1][0] > start:  # a box around boxes takes their place
                first, end, *bounds = spans.pop()
                if not (text[start + 1 : first].strip() or text[end:position].strip()):
                    inner = (bounds[0], bounds[1])
            spans.append((opening[start], position + 1, *inner))
    boxes = [(start, end, text[first:last].removesuffix("\\ ").strip()) for start, end, first, last in spans]
    last = max(opening, default=-1)
    return [box for box in boxes if not re.fullmatch(_HOLE, box[2])], opening[last] if last in opened else None


def join_last(text: str, spans: list[Span]) -> str:
    """The content of the last span, joined with earlier spans of the same list."""
    last = len(spans) - 1
    while last and are_joined(text, spans[last - 1][1], spans[last][0]):
        last -= 1
    return ", ".join(content for _, _, content in spans[last:])


def are_joined(text: str, end: int, start: int) -> bool:
    """Whether what ends at `end` and what begins at `start` are of one list."""
    return start - end <= _MAX_BETWEEN and _BETWEEN.fullmatch(text, end, start) is not None
