"""Whether an answer is the gold answer: exact text, then rational value, then one comparison for each type (`comparison`).

No text of an answer reaches `eval`, `exec`, `parse_expr` or `sympify`. `verify` has no time limit; `judging.Judge` has one.
"""

import re
from functools import lru_cache
from itertools import accumulate
from string import ascii_uppercase
from typing import Any, Literal

from lm_eval_takeover.answers.comparison import Comparison, equal_by_text
from lm_eval_takeover.answers.letters import read_letter
from lm_eval_takeover.answers.normalisation import MAX_LENGTH, normalise, parse_rational, tidy, unwrap_text
from lm_eval_takeover.answers.values import name_sets, read_numerals

Outcome = Literal["correct", "incorrect", "unparsed", "timed_out"]  # the last two: it could not be judged

MAX_NESTING = 10  # brackets in brackets, or signs in a row; the gold answers of the seven benchmarks have 3
MAX_NUMBER = 100  # digits in a row
_LONG_RUN = re.compile(rf"\d{{{MAX_NUMBER + 1}}}|(?:[-+]\s*+){{{MAX_NESTING + 1}}}")
_OPERATOR = re.compile(
    r"[+*/^!]|(?<=[\w)}])-|\\(?:arc)?(?:sin|cos|tan|cot|sec|csc|log|ln|sqrt|frac|d?binom|sum|prod|int|lim|lfloor|lceil|[bp]?mod|gcd|lcm)"
)
_DELIMITER = re.compile(r"[?:;=\n]|[.,](?=\s|$)|\$|\\[()\[\]]|\\(?:[gln]e|text)(?![a-z])")
_PROSE = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{2,}")
# What an answer may add about its letters: for all x; k an integer; x at least 2; only.
_CONDITION = re.compile(
    r"\s*+,?\s*+\\text\s*+\{\s*+,?\s*+(?:for|where|with)\b[^{}]*\}[^,]*?(?=,|\\text|\s++or\b|\s++and\b|$)"
    r"|(?<=[^\s,])\s*+,?\s*+(?:\bfor (?:all|any|every)\b.*|\\forall.*)$"
    r"|(?<=[^\s,])\s*+,?\s*+\(?\s*+[A-Za-z]\s*+\\in\s*+\\mathbb\s*+\{?\s*+[ZNR]\s*+\}?\s*+(?:\^\+|_\+)?\)?$"
    r"|(?<=[^\s,])\s*+\(\s*+[A-Za-z]\s*+(?:\\[gln]e(?![a-z])|[<>])[^()]*\)$"
    r"|^((?:(?!\\[gln]e(?![a-z]))[^<>])+?)\s*+,\s*+[A-Za-z]\s*+(?:\\ge|>)\s*+\d+$"
    r"|\s*+\\text\s*+\{\s*+only\s*+\}$|\s++only$|^\\text\s*+\{\s*+[Aa]ll\b[^{}]*\}\s*+"
)
_LETTER = re.compile(r"\(?[A-Z]\)?")
_LABELLED = re.compile(r"(?:\([A-E]\)|[A-E][).:])\s++(\S.*)")  # the value after the label of its choice: (C) 10
_WORD = re.compile(r"\\text\s*+\{\s*+(\(?)([A-Za-z]+)\)?\s*+\}")
_NEUTRAL = {"a", "an", "the", "is", "it", "f", "graph", "curve", "figure", "function", "answer", "due", "x"}


def verdict_by_text(gold: str, answer: str, tolerance: float = 0.0) -> Outcome | None:
    """The outcome where text or rational values decide, which is cheap and cannot hang; None where they do not."""
    if gold == answer:
        return "correct"
    if is_too_large(answer):
        return "unparsed"
    correct = equal_by_text(gold, answer, tolerance)
    return None if correct is None else "correct" if correct else "incorrect"


def is_too_large(answer: str) -> bool:
    """Whether an answer is over the limits on length, nesting or digits that apply before anything is parsed."""
    if len(answer) > MAX_LENGTH or _LONG_RUN.search(answer):
        return True
    depths = accumulate((character in "([{") - (character in ")]}") for character in answer)
    return max(map(abs, depths), default=0) > MAX_NESTING


def restates(answer: str, gold: str, problem: str) -> bool:
    """Whether an answer is a calculation that the problem gives, as it stands there, and the gold is written in another way."""
    words = normalise(answer[:MAX_LENGTH])
    if not _OPERATOR.search(words) or words == normalise(gold) or parse_rational(answer) is not None:
        return False
    pieces = _DELIMITER.split(problem)
    return any(words == normalise(part) for piece in pieces for part in (piece, *_PROSE.split(piece)))


def verify(gold: str, answer: str, tolerance: float = 0.0) -> Outcome:
    """The outcome of `answer`. What cannot be parsed or raises is `unparsed`. `tolerance` is absolute."""
    if outcome := verdict_by_text(gold, answer, tolerance):
        return outcome
    if _has_same_words(gold, answer) or _has_same_words(answer, gold):
        return "correct"
    left, right = (_CONDITION.sub(r"\1", name_sets(tidy(text))) for text in (gold, answer))
    if not _LETTER.fullmatch(unwrap_text(left)) and (labelled := _LABELLED.fullmatch(unwrap_text(right))):
        right = labelled[1]
    if is_too_large(right):  # a fraction may be one character
        return "unparsed"
    left, right = (read_numerals(a) if any(map(str.isdigit, b)) else a for a, b in ((left, right), (right, left)))
    comparison = Comparison(tolerance)
    try:
        if comparison.equal(left, right):
            return "correct"
    except Exception:  # math_verify and sympy raise their own kinds; whatever fails is not a correct answer
        return "unparsed"
    return "unparsed" if comparison.unparsed else "incorrect"


def _has_same_words(gold: str, answer: str) -> bool:
    """Whether an answer is the gold word or letter, with words that change nothing: `Graph C`, `due east`, `an ellipse`."""
    if (match := _WORD.fullmatch(gold.strip().strip("$"))) is None:
        return False
    word, text = match[2].casefold(), unwrap_text(tidy(answer))
    if match[1] and len(word) == 1:
        return read_letter(rf"\boxed{{{answer}}}", letters=ascii_uppercase).answer == word.upper()
    words = re.findall(r"[a-z]+", text.casefold())
    return len(word) > 1 and words.count(word) == 1 and set(words) - {word} <= _NEUTRAL


@lru_cache(maxsize=256)
def _parse_stock(text: str) -> list[Any]:
    """The expressions that math_verify alone reads. It may call `eval`: use this in a worker only (`judging`)."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    return list(parse(text, [LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=None))


def read_stock(response: str) -> str | None:
    """The answer of a response, as math_verify reads it."""
    parsed = _parse_stock(response)
    return str(parsed[-1]) if parsed else None


def verify_stock(gold: str, response: str) -> Outcome:
    """Whether math_verify finds the gold answer in a response."""
    from math_verify import verify

    parsed = _parse_stock(f"${gold.strip('$')}$")
    if not parsed:
        return "unparsed"
    return "correct" if verify(parsed, _parse_stock(response), timeout_seconds=None) else "incorrect"
