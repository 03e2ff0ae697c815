"""Where a response ends, and what of it is its answer's text: without thinking, invented problems and a second round.

Every regular expression here is atomic or bounded, so time is linear in the length of the response.
"""

import re

TAIL = 10_000  # characters at the end of a response in which an answer without a box is looked for
_MAX_BEFORE = 300  # characters before a header in which a response restates its problem

# Before a problem in `task_configs/`. Stop strings and reading both use these.
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
# The first line of a solution, and the end of a text that was not cut off.
_FIRST_STEP = re.compile(r"(?i)\n[ \t*#]*+(?:step[ -]1\b|step[ -]by[ -]step\b|1\. )[^\n]*+")
_FINISHED = re.compile(r"[.!?。\d)\]}$*`>|][\s\\]*+\Z")
# What begins a check, a second way or an explanation; what concludes.
_CHECK = re.compile(
    r"(?i)[\n.!$)](?:\s|(?<=\n))[*# ]*+(?:(?>step \d++:? |)(?>to |let(?:'s| us) |we can |)(?>double[ -]?|)"
    r"(?:check|verif[iy]|confirm)|explanation|alternatively|this (?:includes|is because))"
)
_CONCLUDED = re.compile(r"\b(?:therefore|thus|hence|so|answer|total|final)\b|conclu", re.IGNORECASE)
_RESTATED = 120  # characters of a problem that is written once more
PICTURE = re.compile(  # also calculations of GSM8K, tags of HTML, ends of proofs: what says nothing
    r"(?s)\[asy\](?>(?:(?!\[/asy\]).)*)(?:\[/asy\])?|<<[^<>\n]*+>>|</?(?:b|i|u|br|em|strong|div|span|answer)(?>\s[a-z-]{1,20}=[^<>\n]{0,80}|)\s?/?>|∎|■|«|»"
    r"|\$\\(?:blacks|s)quare\s*+(?:\$|$)|\\(?:blacks|s)quare\s*+(?:\$|$)"
)
_ANSWER_TAG = re.compile(r"<answer>\s*+(?!(?:your )?answer here)([^<]++)(?=</?answer>)", re.IGNORECASE)


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
            answered or not _BEFORE_RESTATED.fullmatch(text, max(start, place - _MAX_BEFORE), place)
        ):
            return text[start:place]
    rest = text[start:]
    return rest if thinks or any(map(str.isdigit, rest)) else before + rest  # an answer before the thinking


def find_tags(text: str) -> list[re.Match[str]]:
    """The tags of thinking; a tag that begins it has a first group, one that ends it a second."""
    return list(_TAG.finditer(text)) if any(mark in text for mark in ("<", "[/", "[t", "[T", "◁")) else []


def find_tagged(text: str) -> str:
    """What the last `<answer>` … `</answer>` holds; empty if there is none."""
    return next(reversed(_ANSWER_TAG.findall(text)), "") if "</" in text else ""


def drop_second_round(text: str, problem: str) -> str:
    """A solution without what follows it: the problem again, first steps again that lead to no conclusion, or a check."""
    opening = problem.strip()[:_RESTATED]
    again = text.find(f"\n{opening}") if len(opening) > _RESTATED // 3 else -1
    if again > 0 and any(map(str.isdigit, _FIRST_STEP.sub("", f"\n{text[:again]}"))):
        return text[:again]
    steps = list(_FIRST_STEP.finditer(f"\n{text}"))
    if len(steps) > 1:
        place, again = steps[-1].start(), steps[0][0].strip().startswith(steps[-1][0].strip())
        if not _FINISHED.search(text[-20:]) or (again and not _CONCLUDED.search(text, place)):
            text = text[:place]
    check = _CHECK.search(text, max(0, len(text) - TAIL))
    if check and _CONCLUDED.search(text, 0, check.start()) and not _CONCLUDED.search(text, check.end()):
        return text[: check.start() + 1]
    return text
