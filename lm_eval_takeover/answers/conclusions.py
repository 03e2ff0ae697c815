"""The value that the last sentence of a response concludes with.

A sentence states a value if it is the object of its last verb (`predicates`), if it is bold, or if it is named first (`named`).
None is stated by a sentence that asks, supposes, hedges, reports, goes on to calculate or denies. Subjects, verbs, units and what
trails the value (`tails`) are open classes; what is closed are the words that may take it back, and the places where another
number may stand.
One sentence is read, of at most 400 characters.
"""

import re
from collections.abc import Sequence

from lm_eval_takeover.answers import lexicon
from lm_eval_takeover.answers.calculations import COMPUTED, names_value, read_equation, read_result
from lm_eval_takeover.answers.languages import find_foreign_value, is_foreign
from lm_eval_takeover.answers.lexicon import words
from lm_eval_takeover.answers.named import CONSEQUENT, FIRST, HARMLESS_NEGATION, find_named
from lm_eval_takeover.answers.normalisation import parse_rational
from lm_eval_takeover.answers.predicates import Candidate, list_candidates
from lm_eval_takeover.answers.quantities import read_later_words
from lm_eval_takeover.answers.sentences import VALUE, Sentence, find_last_sentence, mask_values
from lm_eval_takeover.answers.subjects import CONSEQUENCE, LEAD, WE, is_plain
from lm_eval_takeover.answers.tails import NEGATION, join_measures, join_unit

_ONLY_VALUE = re.compile(rf"{LEAD}{VALUE}(?:(?:, and |, or |, | and | or ){VALUE})*[ .!]*")
_IS_ANSWER = re.compile(  # `…, so x = -1 is the only solution`
    rf", (?:so|hence|thus|therefore|and so),? (?P<value>{VALUE}) is (?:therefore |thus )?(?:the|our) (?:only |final "
    rf"|desired |correct )?"
    r"(?:solution|answer|value|root|result)[.! ]*$"
)
# `Add the tips to find the total: 20 + 5 = 25 dollars`
_FOUND = re.compile(
    rf"(?:(?:then|now|finally|and|so|lastly),? )?[^:;]*\bto (?:find|get|determine|calculate|figure out|work out"
    rf"|see)\b[^:;{VALUE}]*: ?{COMPUTED} {VALUE}"
)
# What introduces a conclusion: the rest is read as a sentence.
_PREFACE = re.compile(
    rf"{LEAD}(?:it (?:must be (?:the case )?|is (?:clear|easy to see|true) |must follow )that|(?:(?:here,? )?(?:we"
    rf"|i) (?:have shown that|can |now |then |finally |thus |therefore )*(?:find|get|obtain|have|see|conclude"
    r"|deduce|know now)|it follows|(?:this|that) (?:means|implies|shows|tells us|would mean|will mean)|which means"
    rf")(?:,? that\b|(?! {VALUE}))|in other words),? "
)
_DONE = re.compile(
    r",? (?:(?:and|so) (?:we are|we're) (?:done|finished)|as (?:desired|required|claimed|was to be shown)|q\.?e\.?d\.?)$"
)
# `Adding these, f(1) + f(2) = 5`: an equation is a clause of its own.
_EQUATION_CLAUSE = re.compile(
    rf"(?:(?:by |after |upon )?[a-z]+ing\b|from|using|by|in|with)\b[^,{VALUE}]*, (?:we get |then )?{VALUE}"
)
# `the denominator grows, so a_n = 0`
_WE_HAVE = (
    r"(?:(?:we|you|i|this|that|it) (?:now |then |can |must )?(?:have|gets?|gives|find|obtain|see|conclude|know|follows)"
    r"(?: that)?:? )"
)
_EQUATION_CLOSES = re.compile(
    rf"(?:.*(?:[a-z]\)?, |; | |^))?(?:(?:and |and so |so|thus|hence|therefore|it follows that|that means that"
    rf"|which (?:means|gives|implies)(?: that)?),? {_WE_HAVE}?|(?<=[a-z], ){_WE_HAVE}?|{_WE_HAVE}){VALUE}[ .!]*"
    rf"|(?:[a-z]+ing|by|using|from)\b[^:{VALUE}]*: {VALUE}[ .!]*|then,? {VALUE}[ .!]*"
    rf"|{LEAD}(?:since|because|as|at|by|from|using|(?:after |upon )?[a-z]+ing)\b[^,]*, "
    rf"(?:we (?:get|have|find) |then )?{VALUE}[ .!]*"
)
# `(x - 1)(x - 5) = 0, so x = 1 or x = 5`
_SOLUTIONS_CLOSE = re.compile(
    rf"(?:, |; )(?:and )?(?:so|thus|hence|therefore),? {_WE_HAVE}?(?:either )?{VALUE}"
    rf"(?:(?:, or |, and |, | or | and ){VALUE})+[ .!]*$"
)
# What follows a conclusion and tells why or when: it may hold numbers of its own.
_CLAUSE = re.compile(
    r",? \b(?:(?:when|once|until) (?:it|he|she|they) [a-z]+\b(?! [a-z]*(?:off|out|some)| half| not| almost| only| nearly)"
    r"|because|since|given that|considering|seeing that|after (?!tax|the tip)"
    r"|by the time)\b|, (?:as(?! assumed| supposed)|for(?! \ue000| an? (?:[a-z]+ )?(?:total|sum|average|profit|cost)))(?= )"
    r"| as (?:we|the|it|there|each|both|they|he|she|required|desired|expected|wanted|asked|shown)\b"
)
_CARRIED_ON = re.compile(
    rf"\band\b[^,]*{VALUE}|, (?:then|giving|making|leaving|bringing|yielding)\b"
    rf"|\band then\b|\b(?:from|of|to|after) which\b|, and (?:we|he|she|they|it)\b"
)  # `$98 after the first discount, and $88 after both`
_TURNING = re.compile(r"\b(?:wrongly|mistakenly|falsely|incorrectly|but|however|although)\b|\bnow\b")
_SUBORDINATE = re.compile(
    rf"{LEAD}(?:because|since|as(?! an?\b)|given|when|after|once|while|before|until|if|whenever|although|though|(?:with|for|by"
    rf"|at|in|as an?|[a-z]+ing)\b(?=[^,]*,))\b"
)
_MOMENT = re.compile(rf"{LEAD}(?:after|in|at|by|with|for)\b")
_PREPOSITION = re.compile(rf"{LEAD}(?:with|for|by|at|in|as an?|[a-z]+ing)\b")
_CONDITION = re.compile(rf",? (?:when|for|at|where) {VALUE}[.! ]*$")
_CALL = re.compile(r"[A-Za-z]\([a-z]\)\s*=")
_ASIDE = re.compile(r"\s*\([^()]*\)")
_CORRECTED = re.compile(rf"\bnot {VALUE},? but (?:rather |instead |only |exactly )?(?={VALUE})")
_CONTRAST = re.compile(rf"(?<={VALUE}),? not {VALUE}[.! ]*$")  # `3/5, not 2/5.`
# A condition that any problem of rates makes: `, assuming they all burn at the same speed`.
_STEADY = re.compile(
    r", assuming (?:that )?(?:[a-z']+ ){1,7}(?:(?:constant|steady|unchanged|uniform|same|equal(?:ly)?)(?: [a-z]+)?)[.! ]*$"
    r"|,? (?:assuming|if) [^,]*,? as (?:stated|given|described)(?: (?:in|by) the (?:problem|question|table|text))?[.! ]*$"
)
_OPEN_END = re.compile(r"[?？][\s*_)\"”]*$|(?:[=+×/<>,:(-]|\.\.\.|…)\s*$")

_AND_DID = re.compile(rf"\band (?:then )?[a-z]+ {VALUE}")  # `bought 12 and ate three`
_WOULD = re.compile(r"\b(?:would|might|could)\b", re.IGNORECASE)
_CONTRARY = re.compile(  # to the facts: `Suppose the jar were full. It would contain V ounces.`
    r"\W*(?:suppose|imagine|pretend|what if|if only|if\b.*\b(?:were|had)\b|had|were|without)\b", re.IGNORECASE
)
_UNFINISHED = re.compile(r"\b(?:and|or|so|then|which|of|the|an?|with|to|by|is|are)\s*$", re.IGNORECASE)

_UNSURE = (
    words(lexicon.HEDGES),
    words(lexicon.SUPPOSING),
    words(lexicon.REPORTED),
    words(r"sub-?totals?|intermediate|temporary"),
)
_BEGINNING = re.compile(rf"\W*(?:{lexicon.BEGINNING})(?![a-z'])(?! (?:place|prize|half))")
_DOUBTFUL = (*_UNSURE, words(rf"{lexicon.DUBIOUS}|or|if|not"))
_TOTALLED = words(rf"{lexicon.CONCLUDING}|total|sum|both")
_MODAL = re.compile(
    r"\b(?:could|might|may|(?:would|should|could|might) have|can't|cannot|nearly|almost)(?: (?:\w+ly|also|well|even"
    r"|have|be|then|just))* ?$"
)
_WE_SUBJECT = re.compile(rf"{WE} ?$")
_WE_STATE = re.compile(
    r"(?:ha(?:ve|d)|got|gets?|obtain|find|found|conclude|arrived?|need|end(?:ed)? up|see|reach|deduce|left|pay|earn"
    r"|save|spend|made|form|seat|fit|fill|afford|order|buy|bought|pack|plant|bake|drive|walk|travel|wait|sell|sold)"
)
_LISTED = re.compile(rf"(?:(?:, and |, or |, | and | or ){VALUE})+(?!\w)")
_QUOTIENT = re.compile(rf" (?:to|out of|in|in every) {VALUE}(?=[.! ]*$)")
_QUOTIENT_OF = re.compile(r"\b(?:ratio|odds|probability|chances?|fraction|proportion)\b")
_AGAIN = re.compile(
    r"(?: of (?:the|his|her|their|its) [a-z]+(?=,))?,? (?:or|or about|i\.?e\.?,?|that is,?|in other words,?|=|equivalently,?"
    rf"|namely) {VALUE}(?! to| more| less| fewer)"
)
_SET = re.compile(
    r"\b(?:solutions?|roots?|zeroe?s?|values|numbers|answers|possibilities|integers|factors|divisors|primes|pairs|points)\b"
)
_MEASURED = re.compile(r"^(?:cost|weigh|measure)|\bat$")  # `costs V more` is no price
_MEASURE = re.compile(
    r"\b(?:area|volume|perimeter|circumference|length|distance|sum|product|value|number|probability|determinant|height|cost|total|answer"
    r"|result|limit|integral|angle|radius|width|average|mean)(?: [a-z ]*)?$"
)
_HOLDS = re.compile(r"contain(?:s|ed)?|holds?|covers?|includes?")  # `the domain contains [0, 3]`
_DERIVED = re.compile(r"\bthe (?:sum|product|difference|quotient) of $")  # `13, which is the sum of 5 and 8`
# `that` is what went before: `loses V an hour, and over V hours that is V`
_JOINT = re.compile(r"\b(?:and|while|whereas)\b(?!.* (?:that|this) $)")
_THERE = re.compile(r" there (?:is|are|was|were|will be) ")
_COMPARED = re.compile(r"(?: [a-z]+)? (?:more|less|fewer|of the|of what|(?!over|under)[a-z]+er than)\b")
# `when a = 1` is no time, but a case.
_CASE = re.compile(rf"\b(?:when|once|while|until) (?:[a-z]+ (?:is|=) )?{VALUE}")


def find_conclusion(text: str) -> str | None:
    """The value, with its unit, that the last sentence of `text` states; None if it states none."""
    sentence = find_last_sentence(text)
    if not sentence or _OPEN_END.search(sentence.rstrip(" *_")) or _UNFINISHED.search(sentence):
        return None
    if _WOULD.search(sentence) and _CONTRARY.match(find_last_sentence(text[: text.rfind(sentence[:20])])):
        return None
    if (read := read_later_words(sentence)) != sentence:
        in_digits = mask_values(read)
        if value := _find_in(in_digits):  # `splits the 70 dollars, so each owes thirty-five`
            return value
        if _AND_DID.search(in_digits.text):
            return None
    return _find_in(mask_values(sentence))


def _find_in(masked: Sentence) -> str | None:
    if not masked.values:
        return None
    if not is_foreign(masked.text):
        return _find_in_english(masked)
    # A name may look foreign: `Next, Ana walks V`.
    return None if _is_unsure(masked.text) else find_foreign_value(masked)


def _find_in_english(masked: Sentence) -> str | None:
    sentence = _drop(_drop(_drop(masked, _STEADY, keep=(NEGATION,)), _CONTRAST), _CORRECTED)
    sentence = _drop_condition(_drop(sentence, _ASIDE, keep=_DOUBTFUL))
    text, first = _cut_clauses(sentence.text)
    if _is_unsure(text):
        return None
    text, first = _strip_preface(text, first)
    if COMPUTED not in text:
        return _read_main_clause(sentence, text, first)
    if (found := _FOUND.match(text)) and not NEGATION.search(found[0]):
        index = found[0].count(VALUE) - 1
        return join_unit(sentence.values[index], text[found.end() :], True)
    # `needs 30 + 60 = 90 eggs` says what `needs 90 eggs` does, and as an equation that 90 is the result.
    shift = text.count(COMPUTED, 0, first) * len(f"{COMPUTED} ")
    return _read_main_clause(sentence, text.replace(f"{COMPUTED} ", ""), first - shift) or _read_main_clause(
        sentence, text.replace(COMPUTED, "="), first
    )


def _is_unsure(text: str) -> bool:
    """Whether a sentence begins a solution, or hedges, supposes or reports anywhere."""
    return _BEGINNING.match(text) is not None or any(pattern.search(text) for pattern in _UNSURE)


def _read_main_clause(sentence: Sentence, text: str, first: int) -> str | None:
    if _ONLY_VALUE.fullmatch(text) or (
        _EQUATION_CLAUSE.fullmatch(text) and "=" in sentence.values[0]
    ):  # `So V.`, `x = V.`, or a value on a line of its own
        if len(sentence.values) == 1 and sentence.values[0].count("=") > 1:
            return read_equation(sentence.values[0]) or sentence.values[0]
        return ", ".join(read_result(value) for value in sentence.values)
    if "=" in sentence.values[-1] and _EQUATION_CLOSES.fullmatch(text):
        return read_equation(sentence.values[-1]) or sentence.values[-1]  # an equation may be what is asked for
    if solved := _SOLUTIONS_CLOSE.search(text):
        solutions = sentence.values[-solved[0].count(VALUE) :]
        if len({solution.partition("=")[0] for solution in solutions}) == 1:
            return ", ".join(solutions)
    if named := _IS_ANSWER.search(text):
        return sentence.values[text.count(VALUE, 0, named.start("value"))]
    candidates = list_candidates(text, first)
    *_, consequence = [None, *CONSEQUENT.finditer(text)]
    if consequence is not None and not (candidates and candidates[-1].start >= consequence.end()):
        return find_named(sentence, text)
    while candidates:
        candidate = candidates.pop()
        tail = text[candidate.end :]
        if candidate.is_copula and candidates and text[: candidate.start].endswith(" of which "):
            text = text[: candidate.start].rpartition(",")[0]  # `13 terms, the last of which is 40`
            continue
        if (
            candidate.is_copula
            and text[: candidate.start].endswith("which ")
            and candidates
            and (_COMPARED.match(tail) or _DERIVED.search(text[candidate.start : candidate.end]))
        ):
            text = text[: candidate.start].removesuffix("which ").rstrip(" ,")  # `$41.50, which is $3 less than before`
            continue
        if (
            not is_plain(text[: candidate.end])
            or _is_denied(text[: candidate.start], candidate)
            or _is_second_statement(text, candidates, candidate)
        ):
            return None
        return _read_value(sentence, text, candidate)
    return find_named(sentence, text)


def _strip_preface(text: str, first: int) -> tuple[str, int]:
    """The sentence without `we see that` before it and `and we are done` after it, and where its main clause begins."""
    text = _DONE.sub("", text)
    preface = _PREFACE.match(text)
    if preface is None or VALUE not in text[preface.end() :]:
        return text, first
    return "so " + text[preface.end() :], 0


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


def _drop_condition(sentence: Sentence) -> Sentence:
    """The sentence without the value of an unknown for which it states another value: `equals 41 when x = 2`."""
    found = _CONDITION.search(sentence.text)
    if (
        found is None
        or "," in sentence.text[: found.start()].rpartition(VALUE)[2]
        or len(sentence.values) < 2
        or "=" not in sentence.values[-1]
        or ("=" in sentence.values[-2] and not _CALL.match(sentence.values[-2]))
    ):
        return sentence
    last = len(sentence.values) - 1
    return Sentence(
        sentence.text[: found.start()], sentence.values[:-1], [index for index in sentence.bold if index != last]
    )


def _cut_clauses(text: str) -> tuple[str, int]:
    """The sentence up to a reason or time that follows what it states, and where its main clause begins."""
    lead = _SUBORDINATE.match(text)
    comma = text.find(", ", lead.end()) if lead else 0
    there = _THERE.search(text) if comma < 0 else None
    first = there.start() if there else len(text) if comma < 0 else comma
    if lead and comma < 0 and not there and _MOMENT.match(text):
        first = 0  # `After two hours it has V`
    if lead and _PREPOSITION.match(lead[0]) and (list_candidates(text[:first], 0) or not list_candidates(text, first)):
        first = 0  # `At noon it was V degrees, up V from the morning`: the comma ends no introduction
    ends = [candidate.end for candidate in list_candidates(text, first)]
    for clause in _CLAUSE.finditer(text, first):
        if (
            _CARRIED_ON.search(text, clause.start())
            or _TURNING.search(text, clause.start())
            or _CASE.search(text, clause.start())
            or ";" in text[clause.start() :]
        ):
            break
        if (ends and clause.start() >= ends[0]) or FIRST.match(text[first : clause.start()].lstrip(", ")):
            return text[: clause.start()].rstrip(" ,"), first
    return text.rstrip(" .!"), first


def _is_denied(before: str, candidate: Candidate) -> bool:
    """Whether the predicate is negated or only possible, or says what `we` do on the way."""
    before = CONSEQUENCE.split(before)[-1]
    if NEGATION.search(HARMLESS_NEGATION.sub(" ", before)) or NEGATION.search(candidate.verb) or _MODAL.search(before):
        return True
    if f"{VALUE} when " in before:  # `x = 2 when the right side is 10`
        return True
    if not candidate.is_copula and re.search(r"\w (?:when|while|until|where)\b", before):
        return True
    return not candidate.is_copula and bool(_WE_SUBJECT.search(before)) and not _WE_STATE.match(candidate.verb)


def _is_second_statement(text: str, earlier: list[Candidate], candidate: Candidate) -> bool:
    """Whether the sentence states two values of two things: `one costs V and the other V`; a total is no second."""
    if not earlier:
        return False
    between = text[earlier[-1].end : candidate.start]
    joint = None if ";" in between else _JOINT.search(between)
    return joint is not None and not _TOTALLED.search(text, earlier[-1].end + joint.start())


def _read_value(sentence: Sentence, text: str, candidate: Candidate) -> str | None:
    """The value of a predicate, with the others of its list and its unit, if what follows changes nothing about it."""
    index, tail = text.count(VALUE, 0, candidate.end) - 1, text[candidate.end :]
    before = text[: candidate.start]
    value = sentence.values[index]
    if text[candidate.start] == "=" and before.rstrip().endswith(VALUE) and not names_value(sentence.values[index - 1]):
        return None
    listed = _LISTED.match(tail)
    if listed and _may_be_list(
        before, candidate, sentence.values[index : index + 1 + listed[0].count(VALUE)], listed[0]
    ):
        value = ", ".join(sentence.values[index : index + 1 + listed[0].count(VALUE)])
        tail = tail[listed.end() :]
    elif (quotient := _QUOTIENT.match(tail)) and (kind := _QUOTIENT_OF.search(text[: candidate.end])):
        value += (":" if kind[0].startswith(("ratio", "odds")) else "/") + sentence.values[index + 1]
        tail = tail[quotient.end() :]
    elif (again := _AGAIN.match(tail)) and _is_equal(value, sentence.values[index + 1]):
        tail = tail[again.end() :]
    if candidate.is_copula:
        value = _read_measure(value) if _MEASURE.search(before) else read_result(value)
    if value.startswith(("(", "[", "\\")) and _HOLDS.fullmatch(candidate.verb):
        return None
    if compound := join_measures(value, sentence.values[index + 1 :], tail):
        value, tail = compound
        return join_unit(value, tail, True)
    return join_unit(value, tail, candidate.is_copula or _MEASURED.search(candidate.verb) is not None)


def _read_measure(value: str) -> str:
    """What a measure comes to: `36π` of `πr² = 36π` behind `the area is`."""
    last = value.rpartition("=")[2].strip()
    return (
        last
        if re.fullmatch(r"(?:\\(?:d?frac|sqrt|pi|cdot|text\s*\{[^{}]*\}|circ)|[\d\s{}.,/^*π√()%+-])+", last)
        else read_result(value)
    )


def _may_be_list(before: str, candidate: Candidate, values: list[str], joint: str) -> bool:
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
