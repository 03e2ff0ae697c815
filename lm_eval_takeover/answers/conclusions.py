"""The value that the last sentence of a response concludes with.

A sentence states a value if it is the object of a copula or of a verb of quantity (`comes to V`, `pays him V`), or of any
verb beside a word of conclusion (`so Tom walks V miles`), if it is bold, or if it is named first (`V eggs remain`). None is
stated by a sentence that asks, supposes, hedges, reports, goes on to calculate or denies, and after the value only its unit
and words that change nothing may follow. One sentence is read, of at most 400 characters.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from lm_eval_takeover.answers import lexicon
from lm_eval_takeover.answers.languages import find_foreign_value, is_foreign
from lm_eval_takeover.answers.normalisation import parse_rational
from lm_eval_takeover.answers.sentences import OPAQUE, VALUE, Sentence, append_unit, find_last_sentence, mask_values


def _words(alternatives: str, flags: int = 0) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z'])(?:{alternatives})(?![a-z'])", flags)


_STATED = re.compile(
    rf"(?:(?<![a-z'])(?:(?P<copula>{lexicon.COPULAS})|(?P<verb>{lexicon.STATING}))(?![a-z'])"
    rf"|(?P<contracted>(?<=[a-z])'(?:s|re)\b)|=)"
    rf",?:? ?{lexicon.FILLING}{VALUE}"
    rf"|(?<![a-z'])(?P<ditransitive>{lexicon.DITRANSITIVE}) "
    rf"(?!(?:{lexicon.NOT_VERBS})\b)[a-z]+(?: and [a-z]+)? {lexicon.FILLING}{VALUE}"
)
_ANY_VERB = re.compile(
    rf"(?<![a-z'])(?!(?:{lexicon.NOT_VERBS})\b)(?P<verb>[a-z]+(?:'[a-z]+)?) {lexicon.FILLING}{VALUE}"
)
_CONCLUDING = _words(lexicon.CONCLUDING)
_AUXILIARY = re.compile(r"\b(?:will|can|must|would|should|does|did|has|have) $")
_LEAD = rf"(?:(?:and|{lexicon.CONCLUDING}),?:? )*"
_ONLY_VALUE = re.compile(rf"{_LEAD}{VALUE}(?:(?:, and |, or |, | and | or ){VALUE})*[ .!]*")
_FIRST = re.compile(
    rf"{_LEAD}(?:(?:there (?:are|is)|only|exactly|just|a total of|the) )*{VALUE}(?P<unit>(?: [a-z-]+){{0,4}}?) "
    r"(?:remain(?:s|ed)?|[a-z]+ed(?=[.! ]*$)|(?:is|are|was|were|will be|would be|can be|must be|have been|has been)"
    r"(?: (?:still|therefore|thus|then|hence))? "
    r"(?:left(?: over)?|remaining|needed|required|used|sold|made|bought|produced|available"
    r"|(?:the|our|my) (?!first|next|wrong|given|initial)(?:[a-z]+ ){0,2}(?:answer|result|total|value|solution|maximum"
    r"|minimum)))(?![a-z'])"
)
_LABEL = re.compile(rf"(?:{_LEAD})(?:{lexicon.LABELS})\s?[:=]\s?{VALUE}")
# What follows a conclusion and tells why or when: it may hold numbers of its own.
_CLAUSE = re.compile(
    r",? \b(?:because|since|given that|considering|seeing that|after (?!tax|the tip)|when|once|while|until"
    r"|by the time)\b|, (?:as|for) \b"
    r"| as (?:we|the|it|there|each|both|they|he|she|required|desired|expected|wanted|asked|shown)\b"
)
_TURNING = re.compile(r"\b(?:but|however|although)\b|\bnow\b")
_SUBORDINATE = re.compile(
    rf"{_LEAD}(?:because|since|as|given|when|after|once|while|before|until|if|whenever|although|though|(?:with|for|by"
    rf"|at|in)\b(?=[^,]*,))\b"
)
_ASIDE = re.compile(r"\s*\([^()]*\)")
_CORRECTED = re.compile(rf"\bnot {VALUE},? but (?:rather |instead |only |exactly )?(?={VALUE})")
_OPEN_END = re.compile(r"[?？][\s*_)\"”]*$|(?:[=+×/<>,:(-]|\.\.\.|…)\s*$")

_UNSURE = (
    _words(lexicon.HEDGES),
    _words(lexicon.SUPPOSING),
    _words(lexicon.REPORTED),
    _words(r"sub-?totals?|intermediate|temporary"),
)
_BEGINNING = re.compile(rf"\W*(?:{lexicon.BEGINNING})(?![a-z'])(?! (?:place|prize|half))")
_NEGATION = _words(lexicon.NEGATIONS)
_CALCULATION = _words(lexicon.CALCULATIONS)
_RETRACTING = _words(lexicon.RETRACTING)
_DOUBTFUL = (*_UNSURE, _RETRACTING)
_TOTALLED = _words(rf"{lexicon.CONCLUDING}|total|sum|both")
_CONSEQUENCE = re.compile(r",? \b(?:so|therefore|thus|hence)\b(?! that)|; ")
_MODAL = re.compile(
    r"\b(?:could|might|may|(?:would|should|could|might) have|can't|cannot|nearly|almost)(?: (?:\w+ly|also|well|even"
    r"|have|be|then|just))* ?$"
)
# A negation within the subject: `the students who do not play`, `of drawing no red ball`, `the amount not spent`.
_HARMLESS = re.compile(
    rf"(?<!true )(?<!case )(?<!mean )(?<!means )(?<!sure )(?<!certain )(?<!clear )\b(?:who|which|whose|that"
    rf"|where)(?: [a-z']+){{0,4}}? (?:{lexicon.NEGATIONS})(?: [a-z']+)+"
    rf"|\b(?:of|with|for|by|at|[a-z]+ing) (?:no|not|none|neither|never)(?= [a-z])"
    rf"|(?<!is )(?<!are )(?<!was )(?<!were )\bnot (?=[a-z]+ing |[a-z]+(?:ed|en|nt|ld)\b [a-z,])"
)
_ALLOWED_NEGATION = re.compile(
    r"\b(?:who|that|whose)(?: [a-z']+)* [a-z']+$|(?<!which is )\bnot (?:counting|including|needing|even)"
)
_WE_SUBJECT = re.compile(
    r"\b(?:we|i|let us|let's)(?: (?:now|then|can|must|will|would|should|also|first|next|could|have to|need to))* ?$"
)
_WE_DO = re.compile(
    r"\b(?:we|i|let us|let's)(?: (?:now|then|can|must|will|would|should|also|first|next|could|have to|need to))*(?: [a-z]+)?$"
)
_WE_STATE = re.compile(
    r"(?:ha(?:ve|d)|got|gets?|obtain|find|found|conclude|arrived?|need|end(?:ed)? up|see|reach|deduce|left|pay|earn"
    r"|save|spend|made)"
)
_COMPARED = re.compile(
    r"(?:more|less|fewer|greater|larger|smaller|bigger|higher|lower|longer|shorter|older|younger|taller|heavier"
    r"|lighter|faster|slower"
    r"|cheaper|below|above|under|short of|off|behind|ahead|away from|beyond|times|past)\b"
)
_PRECEDED = re.compile(
    r"\b(?:for|after|on|at|every|within|during|across|with|from|by [a-z]+ing)(?: (?:the|all|these|his|her|their|each"
    r"|those|its|only|both|other))* $"
)
_PRECEDED_AFTER_UNIT = re.compile(r"\b(?:in|over|per|by)(?: (?:the|all|these|his|her|their|each|those|its))* $")
_LISTED = re.compile(rf"(?:(?:, and |, or |, | and | or ){VALUE})+(?!\w)")
_QUOTIENT = re.compile(rf" (?:to|out of|in|in every) {VALUE}(?=[.! ]*$)")
_QUOTIENT_OF = re.compile(r"\b(?:ratio|odds|probability|chances?|fraction|proportion)\b")
_AGAIN = re.compile(rf",? (?:or|or about|i\.?e\.?,?|that is,?|in other words,?|=|equivalently,?|namely) {VALUE}(?! to)")
_SET = re.compile(
    r"\b(?:solutions?|roots?|zeroe?s?|values|numbers|answers|possibilities|integers|factors|divisors|primes|pairs|points)\b"
)
_MEASURED = re.compile(r"cost|weigh|measure")  # `costs V more` is no price
_STEPS = re.compile(rf"(?:{lexicon.STEPS})\b")
_UNIT_WORD = re.compile(rf" ((?!(?:{lexicon.AFTER_UNIT})(?![a-z'-]))[a-z][a-z'-]*(?:/[a-z]+)?(?:\^\d|[²³])?)")
_RATE = re.compile(r" per (?:square |cubic )?[a-z]+")
_MOST_UNIT_WORDS = 4
_COUNTS = ("times", "time")
_NO_FINAL_BOLD = re.compile(
    r"(?:\b(?:by|than|least|most|about|around|roughly|approximately|nearly|almost|over|under|between|add|adding|minus"
    r"|plus|try|trying"
    r"|case|step|problem|question|part|equation|number of|divide|multiply|subtract|say|up to)|[-+*/×<>≈^])\s*$"
)
_COPULA_END = re.compile(rf"(?:\b(?:{lexicon.COPULAS})|=) ?{lexicon.FILLING}$")


def find_conclusion(text: str) -> str | None:
    """The value, with its unit, that the last sentence of `text` states; None if it states none."""
    sentence = find_last_sentence(text)
    if not sentence or _OPEN_END.search(sentence.rstrip(" *_")):
        return None
    masked = mask_values(sentence)
    if not masked.values:
        return None
    return find_foreign_value(masked) if is_foreign(masked.text) else _find_in_english(masked)


def _find_in_english(masked: Sentence) -> str | None:
    sentence = _drop(_drop(masked, _CORRECTED), _ASIDE, keep=_DOUBTFUL)
    text, first = _cut_clauses(sentence.text)
    if _BEGINNING.match(text) or any(pattern.search(text) for pattern in _UNSURE):
        return None
    if _ONLY_VALUE.fullmatch(text):  # `So V.`, `x = V.`, or a value on a line of its own
        return ", ".join(sentence.values)
    candidates = _list_candidates(text, first)
    while candidates:
        candidate = candidates.pop()
        tail = text[candidate.end :]
        if candidate.is_copula and text[: candidate.start].endswith("which ") and candidates and _is_compared(tail):
            text = text[: candidate.start].removesuffix("which ").rstrip(" ,")  # `$41.50, which is $3 less than before`
            continue
        if _is_denied(text[: candidate.start], candidate) or _is_second_statement(text, candidates, candidate):
            return None
        return _read_value(sentence, text, candidate)
    return _find_named_otherwise(sentence, text)


class _Candidate(NamedTuple):
    """A predicate whose object is a value: `text[start:end]`, from its verb to the value."""

    start: int
    end: int
    verb: str  # `is` for any copula
    is_plural: bool  # `are V and V`

    @property
    def is_copula(self) -> bool:
        return self.verb == "is"


def _list_candidates(text: str, first: int) -> list[_Candidate]:
    """The predicates from the main clause on; beside a word of conclusion any verb makes one, else one that its form shows."""
    found = {}
    concludes = _CONCLUDING.search(text) is not None
    for match in _ANY_VERB.finditer(text, first):
        if match["verb"].endswith("ing"):  # `a volume exceeding V`
            continue
        if concludes or match["verb"].endswith("s") or _AUXILIARY.search(text[: match.start()]):
            found[match.end()] = _Candidate(match.start(), match.end(), match["verb"], False)
    for match in _STATED.finditer(text, first):
        found[match.end()] = _Candidate(
            match.start(),
            match.end(),
            match["verb"] or match["ditransitive"] or "is",
            match["copula"] in ("are", "were"),
        )
    return [found[end] for end in sorted(found)]


def states_doubt(sentence: str) -> bool:
    """Whether a sentence asks, supposes, hedges or says what others hold, so that what it calls the answer is none."""
    text = sentence.lower()
    return _OPEN_END.search(sentence.rstrip(" *_")) is not None or any(pattern.search(text) for pattern in _UNSURE)


def _drop(sentence: Sentence, pattern: re.Pattern[str], keep: Sequence[re.Pattern[str]] = ()) -> Sentence:
    """The sentence without what `pattern` matches, where that matches none of `keep`."""
    pieces, values, bold, end = [], list(sentence.values), set(sentence.bold), 0
    gone: set[int] = set()
    for found in pattern.finditer(sentence.text):
        if any(kept.search(found[0]) for kept in keep):
            continue
        pieces.append(sentence.text[end : found.start()])
        before = sentence.text.count(VALUE, 0, found.start())
        gone |= set(range(before, before + found[0].count(VALUE)))
        end = found.end()
    left = [index for index in range(len(values)) if index not in gone]
    if not left:
        return sentence
    text = "".join(pieces) + sentence.text[end:]
    return Sentence(text, [values[index] for index in left], [left.index(index) for index in bold if index in left])


def _cut_clauses(text: str) -> tuple[str, int]:
    """The sentence up to a reason or time that follows what it states, and where its main clause begins."""
    lead = _SUBORDINATE.match(text)
    comma = text.find(", ", lead.end()) if lead else 0
    first = len(text) if comma < 0 else comma
    ends = [candidate.end for candidate in _list_candidates(text, first)]
    for clause in _CLAUSE.finditer(text, first):
        if _TURNING.search(text, clause.start()):
            break
        if (ends and clause.start() >= ends[0]) or _FIRST.match(text[first : clause.start()].lstrip(", ")):
            return text[: clause.start()].rstrip(" ,"), first
    return text.rstrip(" .!"), first


def _is_denied(before: str, candidate: _Candidate) -> bool:
    """Whether the predicate is negated or only possible, or says what `we` do on the way."""
    before = _CONSEQUENCE.split(before)[-1]
    if _NEGATION.search(_HARMLESS.sub(" ", before)) or _NEGATION.search(candidate.verb) or _MODAL.search(before):
        return True
    return not candidate.is_copula and bool(_WE_SUBJECT.search(before)) and not _WE_STATE.match(candidate.verb)


def _is_second_statement(text: str, earlier: list[_Candidate], candidate: _Candidate) -> bool:
    """Whether the sentence states two values of two things: `one costs V and the other V`; a total is no second."""
    if not earlier:
        return False
    joint = re.search(r"\b(?:and|while|whereas)\b|;", text[earlier[-1].end : candidate.start])
    return joint is not None and not _TOTALLED.search(text, earlier[-1].end + joint.start())


def _is_compared(tail: str) -> bool:
    unit = _UNIT_WORD.match(tail)
    rests = (tail, tail[unit.end() :] if unit else tail)
    return any(_COMPARED.match(rest.lstrip()) for rest in rests) or tail.startswith((" of the", " of what"))


def _read_value(sentence: Sentence, text: str, candidate: _Candidate) -> str | None:
    """The value of a predicate, with the others of its list and its unit, if what follows changes nothing about it."""
    index, tail = text.count(VALUE, 0, candidate.end) - 1, text[candidate.end :]
    before = text[: candidate.start]
    value = sentence.values[index]
    listed = _LISTED.match(tail)
    if listed and _may_be_list(
        before, candidate, sentence.values[index : index + 1 + listed[0].count(VALUE)], listed[0]
    ):
        value = ", ".join(sentence.values[index : index + 1 + listed[0].count(VALUE)])
        tail = tail[listed.end() :]
    elif (quotient := _QUOTIENT.match(tail)) and (kind := _QUOTIENT_OF.search(before)):
        value += (":" if kind[0].startswith(("ratio", "odds")) else "/") + sentence.values[index + 1]
        tail = tail[quotient.end() :]
    elif (again := _AGAIN.match(tail)) and _is_equal(value, sentence.values[index + 1]):
        tail = tail[again.end() :]
    return _join_unit(value, tail, candidate.is_copula or _MEASURED.match(candidate.verb) is not None)


def _join_unit(value: str, tail: str, is_copula: bool) -> str | None:
    """The value with its unit, or None where the rest of the sentence makes it another value or none."""
    unit, rest = _split_unit(tail)
    if is_copula and (_COMPARED.match(tail.lstrip()) or _COMPARED.match(rest.lstrip())):
        return None
    rest = re.sub(r"^ more\b(?! or| and)", "", rest) if not is_copula else rest
    if ((not is_copula or unit) and _STEPS.fullmatch(unit.split(" ")[0])) or _STEPS.match(rest.lstrip()):
        return None
    if not _is_quiet(rest, bool(unit) or not value[-1:].isdigit() or not value[:1].isdigit()):
        return None
    return value if unit in _COUNTS else append_unit(value, unit)


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


def _is_quiet(rest: str, has_unit: bool) -> bool:
    """Whether the rest of a sentence takes nothing back, goes on to nothing and names no number but of a time, place or part."""
    if _RETRACTING.search(rest) or _CALCULATION.search(rest) or OPAQUE in rest:
        return False
    if any(not _ALLOWED_NEGATION.search(rest[: found.end() + 12]) for found in _NEGATION.finditer(rest)):
        return False
    for found in re.finditer(VALUE, rest):
        before = rest[: found.start()]
        if not (_PRECEDED.search(before) or (has_unit and _PRECEDED_AFTER_UNIT.search(before))):
            return False
    return not re.match(r"\s*[-+*/×÷=<>≈^−–]", rest)


def _may_be_list(before: str, candidate: _Candidate, values: list[str], joint: str) -> bool:
    """Whether values joined by commas, `and` or `or` are one answer: solutions, or values after `are`."""
    named = all("=" in value for value in values) or _SET.search(before) is not None
    if " or " in joint:
        return named
    mathematical = all(re.search(r"[\\^=()A-Za-z√π]", value) for value in values)
    return named or mathematical or candidate.is_plural


def _is_equal(value: str, other: str) -> bool:
    numbers = [parse_rational(text.rstrip("%").rstrip(" \\")) for text in (value, other)]
    if None in numbers:
        return False
    scaled = [
        number / 100 if text.endswith("%") else number
        for number, text in zip(numbers, (value, other), strict=True)
        if number is not None
    ]
    return scaled[0] == scaled[1]


def _find_named_otherwise(sentence: Sentence, text: str) -> str | None:
    """A value that is no object of a verb: the one bold value, `V eggs remain`, or `Total cost: V`."""
    if _NEGATION.search(_HARMLESS.sub(" ", text)):
        return None
    if label := _LABEL.match(text):
        return _join_unit(sentence.values[0], text[label.end() :], True)
    if (named := _FIRST.match(text)) and text.count(VALUE) == 1:
        unit = named["unit"].strip()
        if _STEPS.match(unit) or not _is_quiet(text[named.end() :], True):
            return None
        return f"{sentence.values[0]} {unit}".strip()
    bold = [index for index in sentence.bold if index < text.count(VALUE)]
    if len(bold) != 1:
        return None
    position = [found.start() for found in re.finditer(VALUE, text)][bold[0]]
    before, tail = text[:position], text[position + 1 :]
    if _CALCULATION.search(before) or _NO_FINAL_BOLD.search(before) or _WE_DO.search(before):
        return None
    return _join_unit(sentence.values[bold[0]], tail, bool(_COPULA_END.search(before)))
