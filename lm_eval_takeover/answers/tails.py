"""What follows a value in a sentence: its unit, and whether the rest takes it back, goes on or makes it another value."""

import re
from collections.abc import Sequence

from lm_eval_takeover.answers import lexicon
from lm_eval_takeover.answers.lexicon import words
from lm_eval_takeover.answers.quantities import parse_compound
from lm_eval_takeover.answers.sentences import OPAQUE, VALUE, append_unit

NEGATION = words(lexicon.NEGATIONS)
CALCULATION = words(lexicon.CALCULATIONS)
RETRACTING = words(lexicon.RETRACTING)
_ALLOWED_NEGATION = re.compile(
    r"\b(?:who|that|whose)(?: [a-z']+)* [a-z']+$|(?<!which is )\bnot (?:counting|including|needing|even)"
)
_COMPARED = re.compile(
    r"(?:more|less|fewer|greater|larger|smaller|bigger|higher|lower|longer|shorter|older|younger|taller|heavier"
    r"|lighter|faster|slower|better|worse"
    r"|cheaper|below|above|under|short of|off|behind|ahead|away from|beyond|times|past)\b"
)
_PRECEDED = re.compile(
    r"\b(?:for|after|on|at|every|within|during|across|with|from|by [a-z]+ing|(?:end|start|course|span) of|instead of"
    r"|rather than)(?: (?:the|all|these|his|her|their|each"
    r"|those|its|only|both|other))* $"
)
_PRECEDED_AFTER_UNIT = re.compile(r"\b(?:in|over|per|by)(?: (?:the|all|these|his|her|their|each|those|its))* $")
STEPS = re.compile(rf"(?:{lexicon.STEPS})\b")
_UNIT_WORD = re.compile(rf" ((?!(?:{lexicon.AFTER_UNIT})(?![a-z'-]))[a-z][a-z'-]*(?:/[a-z]+)?(?:\^\d|[²³])?)")
_RATE = re.compile(r" per (?:square |cubic )?[a-z]+")
_MOST_UNIT_WORDS = 4
_COUNTS = ("times", "time")
# After a value: a multiple or part of another quantity, which is not the value itself.
_PART = re.compile(
    r" (?:times (?:the|as|that|what|his|her|its|their|more|larger|bigger)|of (?:that|those|what|it|this))\b"
)
# A rate with the number of its times, or another number in a clause of its own: `V a day for V weeks`, `V, and k is V`.
_GOES_ON = re.compile(
    r", (?!in\b|at\b|on\b|by\b|for\b|after\b|since\b|because\b|as\b|which\b|all\b|altogether|not (?:counting"
    r"|including)|including|excluding|with\b"
    r"|during|from\b|over\b|respectively|too\b|thus|therefore|i\.e|that is|that'?s|or\b|and\b|so (?:the|that is)|just"
    r"|exactly|our\b|the (?:answer|same)|per\b|a total|when|once|making|giving|namely|[a-z]+ed\b|[a-z]+ (?:included"
    r"|excluded)|\ue000)|"
    rf"\b(?:per|each|every|an?) (?!total)[a-z]+\b[^{VALUE}]*{VALUE}|;|\b(?:less|fewer)\b"
    rf"|, (?:of which|which (?:we|must|needs?)|then|while|he|she|they|we|it)\b|\band\b[^{VALUE}]*{VALUE}"
    r"|\band (?:we|he|she|they|it|you|i)\b(?! (?:are|'re) done)| and$|,$"
)
_MEASURES = re.compile(rf" (?P<larger>[a-z]+)(?:,? and |,? ){VALUE} (?P<smaller>[a-z]+)(?![a-z])")


def is_compared(tail: str) -> bool:
    unit = _UNIT_WORD.match(tail)
    rests = (tail, tail[unit.end() :] if unit else tail)
    return any(_COMPARED.match(rest.lstrip()) for rest in rests) or tail.startswith((" of the", " of what"))


def join_measures(value: str, following: Sequence[str], tail: str) -> tuple[str, str] | None:
    """`4 hours 30 minutes` of a value and what follows it, and the rest of the sentence; None where it is one measure."""
    found = _MEASURES.match(tail)
    if found is None:
        return None
    compound = f"{value} {found['larger']} {following[0]} {found['smaller']}"
    return (compound, tail[found.end() :]) if parse_compound(compound) else None


def join_unit(value: str, tail: str, is_copula: bool) -> str | None:
    """The value with its unit, or None where the rest of the sentence makes it another value or none."""
    unit, rest = _split_unit(tail)
    is_share = "%" in value or tail.startswith(" percent")
    if (
        (is_copula or is_share)
        and not tail.startswith(" more to ")
        and any(_COMPARED.match(part.lstrip()) for part in (tail, rest))
    ):
        return None
    if _PART.match(tail) or _GOES_ON.search(re.sub(r"^ more\b", "", tail)):
        return None
    rest = re.sub(r"^ more\b(?! or| and)", "", rest) if not is_copula else rest
    if ((not is_copula or unit) and STEPS.fullmatch(unit.split(" ")[0])) or STEPS.match(rest.lstrip()):
        return None
    if not is_quiet(rest, bool(unit) or not value[-1:].isdigit() or not value[:1].isdigit()):
        return None
    return value if unit in _COUNTS or unit.endswith("roots") else append_unit(value, unit)


def _split_unit(tail: str) -> tuple[str, str]:
    """`(unit, rest)` of what follows a value: at most four words that no preposition or verb begins, and `per hour`."""
    words: list[str] = []
    end = 0
    while len(words) < _MOST_UNIT_WORDS and (found := _UNIT_WORD.match(tail, end)):
        words.append(found[1])
        end = found.end()
    if words and (rate := _RATE.match(tail, end)):
        words.append(rate[0].strip())
        end = rate.end()
    return " ".join(words), tail[end:]


def is_quiet(rest: str, has_unit: bool) -> bool:
    """Whether the rest of a sentence takes nothing back, goes on to nothing and names no number but of a time, place or part."""
    ""
    if RETRACTING.search(rest) or CALCULATION.search(rest) or OPAQUE in rest:
        return False
    if any(not _ALLOWED_NEGATION.search(rest[: found.end() + 12]) for found in NEGATION.finditer(rest)):
        return False
    for found in re.finditer(VALUE, rest):
        before = rest[: found.start()]
        if not (_PRECEDED.search(before) or (has_unit and _PRECEDED_AFTER_UNIT.search(before))):
            return False
    return not re.match(r"\s*[-+*/×÷=<>≈^−–]", rest)
