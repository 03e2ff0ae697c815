"""The final answer or letter of a response, by one short rule and no grammar of sentences.

1. The last complete box, with the boxes that an 'and' or a comma joins to it.
2. What an explicit marker introduces: `answer is`, `Answer:`, `####`.
3. A response that is nothing but an answer.
4. In the last sentence that has any: the last mathematics, after its last `=`; else the last number.

A response ends where it invents a next problem. One that the token limit cut off is read by 1 and 2, an unclosed `<think>` by 1.
Every regular expression here is atomic or bounded, so time is linear in the length of the response.
"""

import re
from bisect import bisect_left
from typing import NamedTuple

from lm_eval_takeover.answers.normalisation import FULL_WIDTH, split_top

MAX_LOOSE = 300  # characters of an answer without a box
TAIL = 10_000  # characters at the end of a response in which an answer without a box is looked for

# Before a problem in `task_configs/`. Stop strings and extraction both use these.
HEADERS = ("Problem:", "Question:")

# What begins an invented problem or turn: anywhere, or (`next`) only behind an answer, since steps may have such names.
_NAMED = "problem|question|exercise|example|instruction|input|task|q|student|user|prompt|follow-up"
_NAMED += "|aufgabe|frage|problème|problema|exercice|ejercicio|pregunta|задача|вопрос|问题|題目|题目|問題|例|질문|문제"
_HEADER = re.compile(
    r"(?im)<(?:/s>|(?:end_of_turn|eos|start_of_turn>user|\|(?:im_start|start_header_id)\|>user)"
    r"|[|｜](?:im_end|eot_id|eot|end|end_?of_?text|user)[|｜]>?)|\[INST\]"
    r"|\n(?!####)[ \t#*>(\[-]*+(?:(?:problem|question|q|human|user)\**:"
    rf"|(?P<next>(?:[a-z-]++\s|\d\.\s)?(?:{_NAMED})(?:\s?+(?:no\.\s?|[#(])?\d++|\**\s?[:：]|(?<=#\s)(?=problem)|[ \t*\])]*+$)))"
)
_ANSWERED = re.compile(r"(?i)\\boxed|####|\banswers?(?:\s++is\b|\s*+[:：]|\**:)|<answer>|答案")
_BEFORE_RESTATED = re.compile(
    r"(?i)\s*+|[^\d$\\]{0,300}\b(?:restat|rewrit|begin|start|read|underst|look|state|solv|help|break|sure)[^\d$\\]*"
)
# Thinking stands between tags of many names; gpt-oss writes channels. The first tag may stand in the prompt.
_TAG_NAME = "(?:think(?:ing)?|thought|reasoning|reflection|scratchpad|seed:think)"
_OPENING = rf"<{_TAG_NAME}>|\[think\]|<\|(?:begin_of_thought|start_thinking)\|>|◁think▷|<\|channel\|>analysis(?><\|message\|>|)"
_CLOSING = rf"</{_TAG_NAME}>|\[/think\]|<\|(?:end_of_thought|end_thinking)\|>|◁/think▷|<\|channel\|>final(?><\|message\|>|)"
_TAG = re.compile(f"({_OPENING})|({_CLOSING})", re.IGNORECASE)


class ExtractedAnswer(NamedTuple):
    """The answer of a response, None if it gives none, and whether it stands in a box."""

    answer: str | None
    boxed: bool = False


def strip_thinking(response: str) -> str:
    """The response without its thinking, up to the first header of a prompt. A header before any answer restates the problem.

    Thinking that never ends is left as it is.
    """
    text = f"\n{response}"
    tags = find_tags(text)
    thinks = bool(tags) and tags[0].lastindex == 2  # the first tag may stand in the prompt
    start, seen, before, answered = 1, 1, "", False
    for mark in sorted([*tags, *_HEADER.finditer(text)], key=re.Match.start):
        place = mark.start() + mark[0].startswith("\n")
        answered = answered or bool(_ANSWERED.search(text, seen, place))
        seen = mark.end()
        if mark.re is _TAG:
            thinks = mark.lastindex == 1
            before = text[start:place] if thinks and answered else before
            start, answered = start if thinks else seen, False
        elif not (thinks or (mark["next"] and not answered)) and (
            answered or not _BEFORE_RESTATED.fullmatch(text, max(start, place - MAX_LOOSE), place)
        ):
            return text[start:place]
    rest = text[start:]
    return rest if thinks or any(map(str.isdigit, rest)) else before + rest  # an answer before the thinking


def find_tags(text: str) -> list[re.Match[str]]:
    """The tags of thinking; a tag that begins it has a first group, one that ends it a second."""
    return list(_TAG.finditer(text)) if any(mark in text for mark in ("<", "[/", "[t", "[T", "◁")) else []


def read_answer(response: str, truncated: bool = False) -> ExtractedAnswer:
    """The final answer in LaTeX or plain text. `truncated`: the token limit is known to have ended the response."""
    text = strip_thinking(response)
    if tagged := find_tagged(text):
        text, truncated = tagged, False
    text = _BARE_BOX.sub(r"\\boxed{\1}", text)
    boxes, unclosed = find_boxes(text)
    if unclosed is not None:  # cut off in its last box
        text, boxes, truncated = _LEAD.sub("", text[:unclosed]), [], True
    if boxes and not _REFUSED.match(text, boxes[-1][1]):
        return ExtractedAnswer(join_last(text, boxes), boxed=True)
    if boxes or find_tags(text):
        return ExtractedAnswer(None)
    tail = PICTURE.sub(" ", text[-TAIL:]).strip()
    tail = _EMPTY_BOX.sub(" ", tail).strip() if "box" in tail else tail
    masked = _MATHS.sub(lambda match: "x" * len(match[0]), tail)  # full stops within mathematics end no sentence
    ends = [*(match.start() for match in _SENTENCE_END.finditer(masked)), len(tail)]
    answer = _read_marked(tail, ends)
    return ExtractedAnswer(answer if answer is not None or truncated else _read_bare(tail) or _read_conclusion(tail, ends))


def find_tagged(text: str) -> str:
    """What the last `<answer>` … `</answer>` holds; empty if there is none."""
    return next(reversed(_ANSWER_TAG.findall(text)), "") if "</" in text else ""


# 1. Boxes

Span = tuple[int, int, str]  # start, end, what it holds

_ANSWER_TAG = re.compile(r"<answer>\s*+([^<]++)</answer>", re.IGNORECASE)
_BOX = re.compile(r"(?:\\(?:[bB]oxed|fbox)|(?<![\\A-Za-z])boxed)\s*+\{")
_LEAD = re.compile(r",?\s++(?>so|thus|hence|therefore|or|)[\s$:,]*+$")
_HOLE = r"(?>(?:[\s.…?]|\\[cl]?dots)*)"
_EMPTY_BOX = re.compile(rf"(?:(?:within|in|inside|with|using)\s++)?(?:an?\s++)?\\(?:boxed|fbox)\s*+\{{{_HOLE}\}}")
PICTURE = re.compile(  # also calculations of GSM8K, tags of HTML, ends of proofs: what says nothing
    r"(?s)\[asy\](?>(?:(?!\[/asy\]).)*)(?:\[/asy\])?|<<[^<>\n]*+>>|</?(?:b|i|u|em|strong)>|∎|■|«|»"
    r"|\$\\(?:blacks|s)quare\s*+(?:\$|$)|\\(?:blacks|s)quare\s*+(?:\$|$)"
)
_BARE_BOX = re.compile(r"\\boxed\s*+(-?\d[^\s{}$\\.,;]*+|[A-Za-z](?![A-Za-z]))(?=\s*+(?:[$\\.,;\n]|$))")  # which TeX accepts
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
# Between two boxes of one list: at least one separator; also spaces, delimiters and names of unknowns.
_SEPARATOR = r"\n\s*+(?:(?:[-*•]|\d{1,2}[.)])\s|\$*+[A-Za-z]\s*+=)|[,;&]|\b(?:and|or)\b(?>\s++also\b|)|\\q?quad(?![A-Za-z])"
_BETWEEN = re.compile(
    rf"(?>(?:{_SEPARATOR}|[\s$~}}]|\*\*|\\[()\[\]:! ]|\\[,;]|\\text\s*+\{{|[A-Za-z](?:_\{{?\w{{1,3}}\}}?)?\s*+=)*)"
)
_HAS_SEPARATOR = re.compile(_SEPARATOR)
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
    while last and _are_joined(text, spans[last - 1][1], spans[last][0]):
        last -= 1
    return ", ".join(content for _, _, content in spans[last:])


def _are_joined(text: str, end: int, start: int) -> bool:
    """Whether what ends at `end` and what begins at `start` are of one list."""
    apart = start - end > _MAX_BETWEEN or _BETWEEN.fullmatch(text, end, start) is None
    return not apart and _HAS_SEPARATOR.search(text, end, start) is not None


# 2. Markers

_MARKER = re.compile(
    r"[aA#](?:(?<=\b[aA])(?i:(?<!if the .)(?<!suppose the .)ns(?:wers?)?\b"
    r"(?>\s++(?:to|of|for)\s[^.\n:]{0,80}?(?=\s(?:is|are)\b|:)|)[\s*_]*+"
    r"(?:\b(?:is|are|should be|would be|must be|will be|equals)\b|[:=]|\n)"
    r"(?!\s++(?:correct|right|valid|consistent|reasonable)\b)(?>\s*+(?:therefore|thus|indeed|simply|then|hence)\b,?|))"
    r"|(?<=#)###)[\s*_:}]*+"
)
_MATHEMATICAL = re.compile(r"[\d$\\]")
_DIRECT = re.compile(r"[-+−(\[{]*+\\?[\d$\\(√π€£]|\.\d")


def _read_marked(text: str, ends: list[int]) -> str | None:
    """What the last marker introduces: a value right behind it, or the last sentence of the text."""
    markers: dict[int, int] = {}  # end of a sentence: end of its last marker
    for match in _MARKER.finditer(text):
        markers[ends[bisect_left(ends, match.end())]] = match.end()
    answer = None
    for end, start in markers.items():
        sentence = text[start:end].strip() * (text[end : end + 1] != "?" and not _DOUBTED.search(text, start, end))
        bare = _read_bare(sentence)
        if _DIRECT.match(sentence):
            answer = _read_leading(sentence) or answer
        elif text[end:].strip(" \n.*"):
            answer = answer or bare
        else:
            answer = bare or _conclude(sentence) or answer
    return answer


def _read_leading(text: str) -> str | None:
    """The value that a text begins with; a calculation gives its result."""
    maths = _find_maths(text)
    if maths and maths[0][0] == 0:
        apart = (n for n in range(1, len(maths)) if not _are_joined(text, maths[n - 1][1], maths[n][0]))
        count = next(apart, len(maths))
        return ", ".join(content for _, _, content in maths[:count])
    text = _ASIDE.split(text, maxsplit=1)[0]
    number = _NUMBER.match(text)
    if number and "=" not in text and (result := _RESULT.search(text, number.end())):
        return result[1].strip()
    return _read_bare(text) or (number[0] if number and "=" not in text else _conclude(text))


# 3. Nothing but an answer

# Words behind a value: those that conclude with another one (`so he has 36`, `which is 36`), and asides.
_VERBS = r"\b(?:is|are|was|were|(?:equal|mean|make|give|leave|bring|round|need)s?|comes? to|has|have|left with|thus|so)\b"
_SO = (
    r"(?:so(?! that)|thus|hence|therefore|then|leaving|making|giving|meaning|bringing|for a total|and(?! not)|but"
    rf"|which\s{_VERBS}(?! (?:not|more|less|\W?\d++ (?:more|less))\b)(?=\D{{0,25}}\d))\b"
)
_ASIDE = re.compile(
    r"\s\((?!mod\b|(?:in )?base\b)(?=[^()\\]*[A-Za-z]{2}|=)|\s\[(?=[A-Za-z]{2})|\s(?:rather than|instead of|and not"
    r"|because|since|as (?:there|we|it|required|expected|desired|shown)|when|in (?=\d)|for (?=\d))\b"
    rf"|[,;]\s(?!{_SO}|(?:or|no|wait)\b(?! so\b)|respectively\b)(?:and not\b|(?=[A-Za-z]{{2}}|I\b|i\.e|e\.g))"
)
_WORDS = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{2,}")


def _read_bare(text: str) -> str | None:
    """A text that is nothing but an answer: mathematics with at most three words of unit, or one word."""
    line = text.strip(" *")
    if len(line) > MAX_LOOSE or "\n" in line or line.endswith("?"):
        return None
    plain = _TEXT_COMMAND.sub(lambda match: " " * len(match[0]), line)
    first = _MATHEMATICAL.search(line)
    words = [match.start() for match in _WORDS.finditer(plain)]
    if first is None:
        bare = len(words) <= (" " not in line and len(line) < 25) and any(map(str.isalpha, line))
    else:
        bare = len(words) <= 3 and line.count("=") <= 1 + line.count(",") and all(at > first.start() for at in words)
    return _strip_markup(text) if bare else None


def _strip_markup(text: str) -> str | None:
    text = text.strip(" \t*_`#").rstrip(".").strip()
    return text if text and len(text) <= MAX_LOOSE else None


# 4. The end of the text

_STOP = r"(?<!\\.)(?<!approx.)(?<!\bca.)(?<!i\.e.)(?=[\s*\"'”)]|$)"
_SENTENCE_END = re.compile(rf"\.{_STOP}|\?{_STOP}|。{_STOP}|!(?!\s*+[-+=*/^<>×·]){_STOP}|\n")  # by first characters: fast
_TEXT_COMMAND = re.compile(r"\\(?:text\w*+|math(?:rm|bf|it)|mbox|begin|end)\s*+\{[^{}]*+\}|\\[A-Za-z]++")
_ENVIRONMENT = r"\s*+\{(?:align|equation|gather|eqnarray|multline|split)(?:ed)?\*?\}"
# Between two dollar signs stands no word, as the angle ABC, and no space only at the end: `$20 - $8` and `$5 and $6` are prices.
_MATHS = re.compile(
    r"\\\\|\\\$|\\\((?>(?:[^\\]|\\[^()])+)\\\)|\\\[(?>(?:[^\\]|\\[^\[\]])+)\\\]|\$\$(?>(?:(?!\$\$).)+)\$\$"
    rf"|\\begin{_ENVIRONMENT}(?>(?:(?!\\(?:begin|end){_ENVIRONMENT}).)+)\\end{_ENVIRONMENT}"
    rf"|\$(?!\$)(?>(\s)?)(?>(?:{_TEXT_COMMAND.pattern}|\\[^()\[\]A-Za-z]|(?![A-Za-z][a-z]{{2}})[^$\\])+)(?(1)|(?<!\s))\$(?!\d)",
    re.DOTALL,
)
_EDGES = re.compile(r"^(?:\$\$?+|\\[(\[]|\\begin\s*+\{[^{}]*\})|(?:\$\$?+|\\[)\]]|\\end\s*+\{[^{}]*\})$")
_BOLD = re.compile(r"\*\*([^*\n]++)\*\*")
_FOR_ALL = re.compile(r"(?<=[$)]),? for (?:all|every|any)\b[^$()\n]{0,40}(?:\$[^$\n]{1,60}\$|\\\([^()\n]{1,60}\\\))[\s.]*+$")
_UNKNOWN = re.compile(r"\\?(?!pi)[A-Za-z]++")
_DIGITS = r"(?>\d{1,3}+(?>(?:,\d{3})+)(?!\d)|\d++)(?>\.\d++|)|\.\d++"
_PLAIN = rf"[-−]?+(?:{_DIGITS})(?>\s?/\s?\d++(?![\d.])|)"
_NUMBER = re.compile(
    rf"(?:(?<![\w)\]}}%])[-−]|(?<![\d.,A-Za-z_]))(?:[(\[{{]\s?+{_PLAIN}(?>(?:,\s?+{_PLAIN})+)\s?+[)\]}}]"
    rf"|(?>\\?\$|[€£¥₹]|)\s?+{_PLAIN}(?>:\d++|\^\d++|\s?π|\s?\\?%|))(?![A-Za-z]*\d)"
)


def _find_maths(text: str) -> list[Span]:
    """Spans between delimiters of mathematics."""
    found = [(match.span(), _EDGES.sub("", match[0]).strip()) for match in _MATHS.finditer(text) if len(match[0]) > 2]
    return [(*span, content.rstrip(".,;").rstrip()) for span, content in found if content]  # no line break, no `\\$`


def _read_conclusion(text: str, ends: list[int]) -> str | None:
    """The value at the end of the last sentence that has one."""
    sentences = [text[start + 1 : end] for start, end in zip([-1, *ends], ends, strict=False) if text[end : end + 1] != "?"]
    return next(filter(None, map(_conclude, reversed(sentences))), None)


def _conclude(text: str) -> str | None:
    """The last mathematics of a text, after its last `=`; else the number after its last `=`; else its last number."""
    text = _DENIED.sub("", _FOR_ALL.sub("", text))
    bold = [content for content in _BOLD.findall(text) if _MATHEMATICAL.search(content)]
    text = bold[-1] if bold else text
    named = _find_maths(text)
    maths = [span for span in named if not _UNKNOWN.fullmatch(span[2])]
    if maths:
        last = text[maths[-1][1] :]
        if "=" in maths[-1][2] and (said := _RESULT.search(_CLAUSE.sub("", last))):  # For $n=6$ there are 36 outcomes.
            return said[1].strip()
        if len({content.rpartition("=")[0] for _, _, content in maths[-2:]}) > 1:
            maths = maths[-1:]  # `$x = 1$, $y = 2$` ends with one value, `$x = 1$ or $x = 2$` with two
        return join_last(text, [(start, end, _after_equals(content)) for start, end, content in maths]) or None
    without = _CLAUSE.sub("", text)
    if _NUMBER.search(without) and without.count("=") == text.count("="):
        text = without
    _, sign, after = text.rpartition("=")
    if sign and _MATHEMATICAL.search(after) and not _WORDS.search(_TEXT_COMMAND.sub(" ", after)):  # without delimiters
        return _strip_markup(after)
    numbers: list[str] = (_NUMBER.findall(after)[:1] if sign else []) or _NUMBER.findall(text)
    return numbers[-1].strip() if numbers else join_last(text, named) if named else None


# What a number in it does not answer, up to what concludes; what leads to a result; numbers that are denied.
_CLAUSE = re.compile(
    r"(?s)(?:,\s(?:including|excluding|not|rather|instead|plus|compared|as|who|whose|where)\b"
    rf"|,\s(?!{_SO})which\b|\b(?:out of|rather than|instead of|if|because|since|when|while|after|before|until|once"
    rf"|in (?=(?:19|20)\d\d\b)|for (?=\d))|\s\((?=[^()=]*\d)).*?(?=,\s{_SO}|$)"
)
_RESULT = re.compile(
    rf"(?:=|{_VERBS})\s(?:only |about |a total of )?({_NUMBER.pattern})(?!\s?[-+*/×·]|\s(?:more|less|fewer|times|out of|of)\b)"
)
_DOUBTED = re.compile(r", (?:but|though|yet) (?:that|this|it)(?:['’]s| is| was| would be) (?:wrong|incorrect|impossible)\b")
_VALUE = rf"(?:\$[^$\n]{{1,40}}\$|{_NUMBER.pattern})"
_DENIED = re.compile(
    r"(?i)(?:\b(?:not|never|nor|(?<!\d\s)(?:more|less|fewer|greater|larger|smaller) than|rule out|exclude|exceeds?|cannot|over"
    rf"|anything but|doubt (?:that )?it is|(?:either|between|neither)\s{_VALUE}\s(?:and|or|nor))|n['’]t)\s(?:be\s)?{_VALUE}"
    rf"|{_VALUE},?\s(?:(?:is|was)(?:(?:\snot|n['’]t)\s(?:the|right|correct)|\s(?:the\s)?(?:too|wrong|incorrect|impossible))"
    r"|does not work|cannot be)\b"
    rf"|{_VALUE}{_DOUBTED.pattern}"
)
_REFUSED = re.compile(rf"[$\s)\]]*+(?:(?:is|was)\s(?:not|wrong|incorrect|impossible)\b|{_DOUBTED.pattern})")
_NAMES = re.compile(r"(?<![\\A-Za-z])(?!pi)[A-Za-z]{1,3}")
_EQUALS = re.compile(r"=|\\equiv(?![A-Za-z])")
_NO_VALUE = re.compile(r"(?s)(?:\\approx(?![A-Za-z])|≈|\\pmod(?![A-Za-z])|\\end\s*+\{(?:aligned|gathered|split)\}).*+")


def _after_equals(maths: str) -> str:
    """The last side of an equation, the exact one where an approximate one follows; `x - y = 0` and `x = 1, y = 2` stay."""
    if sum("=" in part for part in split_top(maths, ",")) > 1:
        return maths
    sides = [_NO_VALUE.sub("", side).strip(" \n&") for side in _EQUALS.split(maths)]
    if len(sides) > 1 and _NAMES.fullmatch(sides[-1]) and not _NAMES.search(sides[-2]):  # 5 = x
        sides.pop()
    value = re.sub(r"(?>(?:[\s.,;]|\\\\|\\(?=\s*$))+)$", "", sides[-1])
    return maths if value == "0" and len(sides) == 2 else value


# Letters: of the last box, else of the last marker, else the only one in the last line. Two, a denied one and `B?` are no answer.

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
_ALONE = re.compile(rf"(?<![A-Za-z0-9'’\\-]){_CAPITAL}|\(([a-z])\)")


def read_letter(response: str, truncated: bool = False, letters: str = "ABCD") -> ExtractedAnswer:
    """The letter that a response answers with; None if it gives none, or more than one."""
    text = strip_thinking(response).translate(FULL_WIDTH)
    text = find_tagged(text) or text
    boxes, _ = find_boxes(text)
    if boxes:
        content = _WRAP.sub(" ", join_last(text, boxes).strip("*"))
        match = _BOXED.match(content)
        letter = _choose(content, match, letters) if match else _find_marked(content, letters)
        if letter:
            return ExtractedAnswer(letter, boxed=True)
        ends, starts = [0, *(end for _, end, _ in boxes)], [*(start for start, _, _ in boxes), len(text)]
        text = " ".join(text[end:start] for end, start in zip(ends, starts, strict=True))
    if find_tags(text):
        return ExtractedAnswer(None)
    text = text[-TAIL:]
    marked = _find_marked(text, letters)
    if marked is None and not truncated:
        line = text.rstrip().rpartition("\n")[2]
        alone = {_choose(line, match, letters) for match in _ALONE.finditer(line)} - {None}
        whole = _FIRST.match(text.lstrip()) or (None if alone else _BOXED.match(line))
        marked = alone.pop() if len(alone) == 1 else _choose(whole.string, whole, letters) if whole else None
    return ExtractedAnswer(marked or None)


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
    """The letter of the last marker; empty where it offers two or denies one, None where there is no marker."""
    last = None
    for match in _LETTER_MARKER.finditer(text):
        chosen = _choose(text, match, letters)
        last = chosen if chosen is not None else last or ("" if match[match.lastindex or 0].upper() in letters else None)
    return last
