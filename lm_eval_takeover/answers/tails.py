"""What may follow a value in a sentence: its unit, and words and phrases that leave the value what it is.

Words are open but for those that deny, compare, hedge, correct or go on (`lexicon.DUBIOUS`, `lexicon.TROUBLE`) and circumstances
that nobody asked for (`at a squint`). Phrases are closed where they hold a number of their own (`, with 3 eggs left`) or one of
those words in a harmless place (`, which we can verify by …`, `and none are left over`).
"""

import re
from collections.abc import Sequence
from functools import cache

from lm_eval_takeover.answers import lexicon
from lm_eval_takeover.answers.lexicon import words
from lm_eval_takeover.answers.quantities import parse_compound
from lm_eval_takeover.answers.sentences import VALUE, append_unit

NEGATION = words(lexicon.NEGATIONS)
CALCULATION = words(lexicon.CALCULATIONS)
STEPS = re.compile(rf"(?:{lexicon.STEPS})\b")
_WORD = rf"(?!(?:{lexicon.AFTER_UNIT}|{lexicon.DUBIOUS}|right)(?![a-z'-]))[a-z][a-z'-]*(?<!ly)(?![a-z'-])"
_UNIT_WORD = re.compile(
    rf" ({_WORD}(?:/[a-z]+)?(?:\^\d|[²³])?|parts(?= (?:per|each|every|in {VALUE} [a-z]+|in all|in total)))"
)
_RATE = re.compile(r" per (?:square |cubic )?[a-z]+")
_MOST_UNIT_WORDS = 4
_COUNTS = ("times", "time")
_MEASURES = re.compile(rf" (?P<larger>[a-z]+)(?:,? and |,? ){VALUE} (?P<smaller>[a-z]+)(?![a-z])")

_NOUNS = rf"{_WORD}(?: {_WORD}){{0,3}}"
_DEFINITE = (
    r"(?:(?:all |both )?(?:of )?(?:the|those|these)|his|her|their|its|our|my|your|both|all|each|every|this|that)"
)
_THE_NOUNS = rf"{_DEFINITE}(?: (?:first|other|whole|new|three|two|four))?(?: {_NOUNS}| {VALUE} {_NOUNS}|(?= left|$))"
_TIMES = (
    r"(?:day|night|week|weekend|month|year|hour|minute|second|trip|game|person|student|child|kid|friend|page|piece|shift|meal"
    r"|visit|class|order|item|box|bag|ticket|shirt|book|mile|gallon|pound|kilogram|meter|foot|ounce)"
)
_DATE = (
    r"(?:(?:mon|tues|wednes|thurs|fri|satur|sun)days?|january|february|march|april|may|june|july|august|september|october"
    r"|november|december|noon|midnight|then|summer|winter|spring|autumn|christmas)"
)
_THE_NOUNS_KNOWN = (
    rf"(?:{_DEFINITE}(?: first| second| other| whole)?(?: {_WORD}){{0,3}}(?: {VALUE})? {_WORD}(?= |$|,)|the (?:first"
    rf"|second) half(?= |$|,)"
    r"|(?:him|her|them|us)(?:self|selves)?(?= |$)|the(?= left|$))"
)
_COUNTS_IN_WORDS = "(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)"
_UNITS = (
    r"dozen|(?:cubic |square )?(?:foot|inch|yard|mile|meter|metre|centimeter|kilometer)|hour|minute|day|week|month|year"
    r"|pound|ounce|gallon|quart|liter|litre|kilogram|ton|dollar|percent|degree|hundred|thousand|million"
)
# `350 tickets, 200 of them to adults and 150 to children`
_PART_OF_TOTAL = (
    rf"{VALUE}(?: of (?:them|these|those|which))?(?: (?:are|were))?(?: (?:to|for|from|in|with))? {_WORD}(?: {_WORD})?"
)
_TASKS = (
    r"(?:fulfil|fulfill|accomplish|play|transport|carry|move|pack|catch|collect|harvest|plant|assemble|knit|hike|bike"
    r"|swim|visit|watch|treat|spread|meet|hold|store|host|grow|recover|repay|earn|rent|rake|water|weed|"
    r"finish|complete|fill|paint|cover|download|seat|share|buy|spend|walk|reach|choose|pay|travel|drive|make|bake|read"
    r"|feed|build|cross|empty"
    r"|arrange|select|drain|cook|mow|clean|write|serve|pass|win|earn|save|eat|climb|get|give|sell|deliver|form|cut|wrap|run"
    r"|afford|pick|starting?|making)"
)
_REMARK_WORD = (
    rf"(?! ?(?:{lexicon.TROUBLE})(?![a-z'-]))(?!(?!(?:{lexicon.ADVERBS})\b)[a-z]+ly\b)[a-z][a-z'-]*(?![a-z'-])"
)
_REMARK = rf"{_REMARK_WORD}(?:,? {_REMARK_WORD}){{0,13}}"
_CONFIRMING = (
    rf"(?!(?:{lexicon.NEGATIONS}|but|though|although|however|if|or|so|wrong|next|still|first|fail[a-z]*)(?![a-z'-]))"
    r"[a-z][a-z'-]*"
)
# Phrases that no open one may hold: comparatives, what is yet to be done, circumstances that nobody asked for (`at a squint`).
_CIRCUMSTANCE = (
    r"(?:old|young|long|short|tall|wid|deep|high|heavi|light|fast|slow|cheap|bigg|small|larg|warm|cold|hott|bett|far|furth|great"
    r"|low|clos|near|earli|lat|farth|rich|poor|strong|weak)er|[a-z]+er than|than|instead|(?:from|of|to|after|by|for"
    r"|with) which|each of|every one|right|correct|actual|aside|permitting|allowing|where|those|old|absolute"
    r"|as [a-z]+(?:ed|n)(?=[ .!]*$)|to be|to (?:begin|start|go|come)|to [a-z]+(?=[ .!]*$)|to the right|and (?:change|it"
    r"|there|then|this|that|he|she|they|we|[a-z])|(?<!of )(?<!with )(?<!, )(?<!into )an?"
    r"|(?:in|by|at|on|under) (?!(?:the|his|her|their|its|our|this|that|these|each|every|all|both|[a-z]+ing)\b)[a-z]+"
)
_OPEN_WORD = (
    rf"(?! ?(?:{lexicon.TROUBLE}|{lexicon.DUBIOUS}|{_CIRCUMSTANCE})(?![a-z'-]))"
    rf"(?!(?!(?:{lexicon.ADVERBS})\b)[a-z]+ly\b)[a-z][a-z'-]*(?![a-z'-])"
)
_NONE = r"(?:none|no one|nobody|nothing|no [a-z]+)"
# Each alternative begins with a space or comma and is closed but for its nouns.
_PHRASES = (
    rf" in order to {_REMARK}",
    # A remark of its own, in words that neither deny nor correct nor go on to calculate.
    rf", (?:and )?(?:which|all of which|each of which|just as|as|namely|one (?:for|in|per|on|at|from) (?:each|every)"
    rf"|{_NONE} of (?:which|whom|them)"
    rf"|with {_NONE}|the|[a-z]+ing(?<!leaving)(?<!pending)|rounded|taken|given that|attained|reached|achieved"
    rf"|in (?:agreement|accordance|line) with) {_REMARK}",
    rf", which (?:(?:we|you|one) can (?:verify|check|confirm)|(?:also )?(?:match|agree|fit|confirm|satisf|answer"
    rf"|complete)(?:e?s|ies)"
    rf"|is (?:exactly |just |precisely )?(?:what|the (?:[a-z]+ ){{1,2}}(?:we|that|asked|they|he|she|you|the (?:question"
    rf"|problem))))(?: {_CONFIRMING}){{0,16}}",
    r", round(?:ing|ed) (?:up |down )?to the nearest(?: [a-z]+){1,2}",
    rf" ways to {_REMARK}",
    rf"(?:, (?!(?:and|he|she|they|it|there)\b)| ){_OPEN_WORD}",
    rf", so (?!(?:we|i|you|let)\b)[a-z]+(?: {_OPEN_WORD}){{1,8}}",
    rf",? with {_NONE}(?: [a-z]+)? (?:left(?: over| out| behind)?|remaining|unused)",
    rf", and (?:this|that|it) is (?:the|our) (?:final |only |unique )?(?:answer|solution|value|result|root|number|choice)"
    rf"(?: (?:that|which|we|for which|of|satisfying|to)(?: {_CONFIRMING}){{1,9}})?",
    rf", (?:regardless|irrespective) of(?: {_CONFIRMING}){{1,9}}",
    rf", where(?: {_OPEN_WORD}){{1,9}}",
    rf", which (?:means|implies|shows)(?: that)? (?:the|it|this|that|its)(?: {_WORD}){{0,3}} (?:is|are|has|have|does|do)"
    rf"(?:n't| not| no)? {_REMARK}",
    rf",? and {_NONE}(?: of them)?(?: (?:is|are|was|were))? (?:left(?: over)?|remaining|unused|lost|wasted)",
    rf", by (?:the|our|this) (?:{_WORD} ){{1,4}}{VALUE}",
    rf",? (?:{lexicon.HARMLESS})(?![a-z'-])",
    rf", each (?:with|having|holding|of|containing) (?:{VALUE}|{_COUNTS_IN_WORDS}|an?) {_NOUNS}",
    rf" for (?:all|every|any)(?: real| integer| positive| natural)?(?: numbers?)? (?:[a-z](?![a-z])"
    rf"|values? of [a-z](?![a-z])|{VALUE})",
    rf", an? (?:saving|increase|decrease|profit|loss|gain|discount|change|reduction|drop|rise"
    rf"|gain) of {VALUE}(?: {_WORD})?",
    rf", (?:at|for|in|on|with|by|over|during) {_THE_NOUNS_KNOWN}(?: given| stated| described)?",
    rf" (?:after|within) an? {_TIMES}",
    r"(?: the| this| that)? (?:every|each|this|that|next|last) (?:morning|afternoon|evening|night|day|weekday"
    r"|weekend|week|month|year|hour"
    r"|minute|semester|season|summer|winter|spring|fall)",
    rf", which is (?:exactly|just|also|precisely|the same as) (?:one|an?) (?:{_UNITS})",
    rf", which is the (?:sum|product|difference|quotient) of (?:{VALUE}|{_WORD}) and (?:{VALUE}|{_WORD})",
    rf", (?:up|down|an increase of|a decrease of|a drop of|a rise of) {VALUE}(?: [a-z]+)? (?:from"
    rf"|since) (?:{_THE_NOUNS_KNOWN}|{_DATE}|the (?:morning|afternoon|evening|night) ?)",
    rf",? (?:spread|arranged|packed|distributed|shared out)(?: evenly| equally)? (?:over|among|in|into|across|on)(?: the)?"
    rf" (?:{VALUE}|{_COUNTS_IN_WORDS}) {_NOUNS}",
    rf", {VALUE} of (?:them|these|those|which)(?: (?:are|were|is|was))?(?: {_WORD}){{0,3}}",
    rf", (?:which is )?(?:exactly |just )?(?:{VALUE}|one|{_COUNTS_IN_WORDS})(?: {_WORD})? (?:more|less|fewer|[a-z]+er) than"
    rf"(?: twice| half)?(?: what)?(?: {_DEFINITE})?"
    rf"(?: (?!(?:correct|actual|real|true|right|answer|asked|{lexicon.PROVISIONAL})(?![a-z'-])){_WORD}){{1,4}}",
    rf", (?:twice|half|(?:{VALUE}|{_COUNTS_IN_WORDS}) times) as [a-z]+ as (?:{_DEFINITE} )?{_WORD}(?: {_WORD})?",
    rf" when (?:[a-z]|it|{VALUE}) is divided by {VALUE}",
    rf", with (?:{VALUE}|{_COUNTS_IN_WORDS}|no)(?: {_NOUNS})? (?:left(?: over)?|remaining|to spare"
    rf"|unused)(?: for {_THE_NOUNS_KNOWN})?",
    rf", (?:more than |just |exactly )?enough (?:for|to) {_REMARK}",
    rf", and (?:this|that|it)(?: value| answer| result| number)? (?:also )?(?:match|agree|fit|confirm|satisf|check"
    rf"|work)(?:e?s|ies)(?: {_CONFIRMING}){{0,9}}",
    r", all (?:of them )?(?:equally likely|different|distinct|equal|of equal size|the same)",
    rf",? {_PART_OF_TOTAL}(?:,? and (?:the (?:other|remaining) )?{_PART_OF_TOTAL})+",
    rf" (?:an?|per|each|every|for (?:one|an?)|in an?|for each|for every|of each) {_TIMES}",
    rf" (?:for|on|in|at|to|from|with|by|during|over|after|through|of|inside|per|on to|into) {_THE_NOUNS_KNOWN}",
    rf" (?:by|on|in|until|since|from|through|to|for|and) {_DATE}(?: alone| morning| evening| night)?",
    rf" (?:of|(?:for|on)(?= [a-z]+[a-z])(?! [a-z]+ [a-z]\b)) {_NOUNS}(?: and {_WORD})?",
    rf" (?:for|in|on|with|from) one {_WORD}",
    rf" (?:by|from|for|on) (?!nothing|being|everything)[a-z]+ing(?: in)?(?: {_DEFINITE})? {_NOUNS}",
    rf" (?:that|who|which) (?:(?:do|does|did) not |are |were |is |was )?{_WORD}(?: (?:the|a|an|any|no|neither|both))?"
    rf"(?: {_NOUNS})?",
    rf"(?: for (?:{_DEFINITE} )?{_WORD})? to (?:get to |be able to |start (?=[a-z]+ing ))?{_TASKS}(?: {_THE_NOUNS}"
    rf"| {_NOUNS}| them| it)?",
    rf" than (?:{_DEFINITE} )?{_WORD}(?: {_WORD})?",
    rf",? not (?:counting|including) (?:the )?{_NOUNS}",
    rf" before (?:he|she|they|it|we) (?:starts?|begins?|runs? out|gets?|reach(?:es)?|finish(?:es)?)(?: [a-z]+ing)?(?: of)?"
    rf"(?: {_NOUNS})?(?: on {_THE_NOUNS})?",
    r" (?:instead of|rather than) the(?= |$)",
)
_THINGS = (  # that a number counts: `64 stamps are left`, `3 of the …`
    rf"(?! the [a-z]+ (?:who|that|which)\b)(?: the {_WORD})?(?: (?:are|is|were|was|have"
    rf"|had))?(?: {_WORD}(?: up| out| in| over)?)?(?: only)?(?: {_THE_NOUNS}| {_NOUNS}| in {_NOUNS})?"
)


_NOTHING = re.compile("")
_STOP = re.compile(r"[ .!]*")


@cache
def _compile() -> tuple[re.Pattern[str], tuple[re.Pattern[str], ...]]:
    """What a number that counts things may begin with, and the phrases. Compiled at the first use: half a second."""
    return re.compile(_THINGS), tuple(re.compile(phrase) for phrase in _PHRASES)


def _is_made_of_phrases(rest: str, counted: bool) -> bool:
    """Whether `rest` is a row of phrases; each position is left once by each phrase, so that time is linear in the length."""
    things, phrases = _compile()
    begun = things.match(rest) if counted else _NOTHING.match(rest)
    reached = {begun.end()} if begun else set()
    for position in range(len(rest) + 1):
        if position not in reached:
            continue
        if _STOP.fullmatch(rest, position):
            return True
        reached |= {found.end() for phrase in phrases if (found := phrase.match(rest, position))}
    return False


# A number in the rest names a length of time, a group or a place, never a part or multiple of the value.
_NUMBERED = re.compile(
    rf"(?P<free> (?:for|after|on|at|every|within|during|from|instead of|rather than)| (?P<unit>in|over"
    rf"|by))(?P<of>(?: (?!each|every){_WORD})? of)?(?: (?:the|all|these|those|his|her|their|its|only|both|other))* {VALUE}(?= |$)"
)
_OF_NUMBER = re.compile(
    rf"^((?: [a-z]+){{0,3}} (?:divisors|factors|multiples|digits|subsets|permutations)) of {VALUE}(?= |$)"
)
# What money counts.
_AFTER_MONEY = re.compile(
    r"(?:dollars?|cents|euros|pounds|usd|worth|profit|tip|tax|rent|bucks|per|in|more|even|flat|[mb]illion|thousand|hundred)\b"
)
# What a unit of measure does not bear after it: `36 pounds wet`, `6 days give`.
_ODD_MEASURE = re.compile(
    r"\b(?:hour|minute|day|week|second|month|year|pound|ounce|gram|kilogram|dollar|cent|mile|meter|foot|feet"
    r"|inche?)s? [a-z]*[^s\W](?<!ing)$"
)
_RATE_OF_MONEY = re.compile(
    r"^/ ?(?:person|people|month|week|day|year|kg|lb|pound|hour|item|unit|box|fruit|gallon|mile)\b"
)
_BOUGHT = re.compile(rf"^ (?:for|on) {_DEFINITE} {_NOUNS}(?= |$|,)")  # `$480 on the concrete blocks`
_SPEED = re.compile(r"(?:miles?|mi|km|kilomet(?:er|re)s?|m|met(?:er|re)s?|feet|ft|cm)/[a-z]+$")
_TIME = re.compile(r"(?:hour|minute|day|week|second|month|year)s?$")
_DOING = re.compile(
    rf"^ (?!being|pending|missing|following|remaining|including)[a-z]+ing(?: {_DEFINITE})?(?: {_NOUNS})?"
)
_RATED = re.compile(rf" (?:per|an?|each|every) {_TIMES}\b")


def join_measures(value: str, following: Sequence[str], tail: str) -> tuple[str, str] | None:
    """`4 hours 30 minutes` of a value and what follows it, and the rest of the sentence; None where it is one measure."""
    found = _MEASURES.match(tail)
    if found is None:
        return None
    compound = f"{value} {found['larger']} {following[0]} {found['smaller']}"
    return (compound, tail[found.end() :]) if parse_compound(compound) else None


def join_unit(value: str, tail: str, is_copula: bool) -> str | None:
    """The value with its unit, or None where the rest of the sentence is not one that leaves it as it is."""
    if not is_copula or tail.startswith(" more to "):
        tail = re.sub(r"^ more(?= (?!or\b|and\b|than\b)[a-z])|^ more$", "", tail)
    tail = _RATE_OF_MONEY.sub("", tail) if not value[-1:].isalpha() else tail
    unit, rest = _split_unit(_OF_NUMBER.sub(r"\1", tail))
    unit = unit if _SPEED.search(unit) else re.sub(r"/[a-z]+$", "", unit)  # `35 kids/class`
    rest = re.sub(r"^ times(?=,| (?:an?|per|in|during|each|every|that(?! of)|this)\b)", "", rest)
    if unit.endswith("ways") and rest.startswith(" to "):
        rest = f" ways{rest}"
    if _TIME.search(unit):  # `45 minutes walking the dog`
        rest = _DOING.sub("", rest)
    if not is_copula:  # `drove 85 miles farther`, `delivers 936 papers more than Jake`
        rest = re.sub(r"^ (?:more|farther|further|longer)(?= than [a-z]+|[ .!]*$)", "", rest)
    is_money = value.startswith(("$", r"\$", "€", "£"))
    if "s'" in unit or "'s" in unit:  # `chocolates' wrappers`
        return None
    if is_money and re.match(r"[a-z]+ing\b|last\b", unit):  # `$480 mowing lawns`
        unit, rest = "", f" {unit}{rest}"
    if unit and value != "1" and (not _AFTER_MONEY.match(unit) if is_money else _ODD_MEASURE.search(unit)):
        return None
    if (not is_copula or unit) and STEPS.fullmatch(unit.split(" ")[0]):
        return None
    if is_copula and rest.startswith(" than "):
        return None
    if is_money:
        rest = re.sub(
            r"^ in (?!excess|fact|part|theory|all|advance|general|(?:the|his|her|their|its|each|every|an?|one|this"
            r"|that)\b)[a-z]+(?= |$|,)",
            "",
            _BOUGHT.sub("", rest),
        )
    if not is_harmless(rest, bool(unit) or not (value[:1] + value[-1:]).isdigit(), tail):
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


def is_harmless(rest: str, has_unit: bool, tail: str = "", counted: bool = False) -> bool:
    """Whether the rest of a sentence is of the grammar; `counted` where it begins with what the counted ones do."""
    numbers = list(_NUMBERED.finditer(rest))
    if any(found["unit"] and not has_unit for found in numbers) or (
        numbers and (_RATED.search(tail) or re.search(", (?:so|which) ", rest))
    ):
        return False
    free = _NUMBERED.sub(lambda found: f"{found['free']}{found['of'] or ''} the", rest)
    return _is_made_of_phrases(free, counted)
