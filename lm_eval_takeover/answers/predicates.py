"""Predicates with a quantity as their object: copulas, verbs that state one, and any verb that its form or place shows.

Verbs are an open class; closed are those that go on to calculate, try or suppose (`lexicon.NO_VERBS`), and the prepositions
behind which a quantity can be the complement.
"""

import re
from typing import NamedTuple

from lm_eval_takeover.answers import lexicon
from lm_eval_takeover.answers.sentences import VALUE

_STATED = re.compile(
    rf"(?:(?<![a-z'])(?:(?P<copula>{lexicon.COPULAS})|(?P<verb>{lexicon.STATING}))(?![a-z'])"
    rf"|(?P<contracted>(?<=[a-z])'(?:s|re)\b)|=),?:? ?{lexicon.FILLING}{VALUE}"
    rf"|(?<![a-z'])(?P<ditransitive>{lexicon.DITRANSITIVE}) "
    rf"(?!(?:{lexicon.AFTER_UNIT}|{lexicon.DUBIOUS})(?![a-z'-]))[a-z]+(?: and [a-z]+)? {lexicon.FILLING}{VALUE}"
)
# An open class: what `will`, `can`, … govern, what `is` makes progressive, and what its ending shows to be finite.
_ACTION = re.compile(
    rf"(?<![a-z'])(?:(?P<progressive>(?:is|are|was|were|been|be) (?!(?:add|subtract|multiply|divid|try|test|check|count"
    rf"|exceed|miss|lack|approach|consider|ask|plan|hop|expect|aim|offer|look|wait)ing)[a-z]+ing)"
    rf"|(?!(?:{lexicon.NO_VERBS})(?![a-z]))(?P<verb>{lexicon.PASTS}|[a-z]{{2,}}(?:s|ed)"
    rf"|(?<=[a-z] )[a-z]+)) {lexicon.FILLING}{VALUE}"
)
_AUXILIARY = re.compile(
    r"\b(?:will|can|must|should|do|does|did|has|have|(?:needs?|ha[sd]|have|able|going|required) to) $"
)
_PLURAL = re.compile(
    r"\b(?:(?!(?:is|was|has|this|his|its|as|us|does|thus|always)\b)[a-z]+s|they|we|you|i|people|children|men"
    r"|women)(?: (?:all|both|each|then|now|only))? $"
)
_PAST = re.compile(lexicon.PASTS)
_TIMES = r"(?:seconds?|minutes?|hours?|days?|nights?|weeks?|months?|years?|decades?)"
# Where the quantity follows a preposition: `puts the price at V`, `reach the summit in V hours`, `is made up of V`.
_PREPOSITIONAL = re.compile(
    rf"(?<![a-z'])(?!(?:{lexicon.NO_VERBS}|hovers?|tends?|(?:is |are )?(?:attained|reached|achieved|assumed"
    rf"|taken))(?![a-z]))(?:(?P<verb>{lexicon.PASTS}|[a-z]{{2,}}(?:s|ed)|(?P<base>(?<=[a-z] )[a-z]+)|(?:is|are|was|were"
    rf"|be) [a-z]+(?:ed|en|ing))(?: (?:up|out|down|off|away|back|(?:the|his|her|their|its|our|an?) [a-z]+(?: [a-z]+)?))? "
    rf"(?:(?<!er )(?<!up )(?:at|to) {lexicon.FILLING}{VALUE}|(?:for|in) {lexicon.FILLING}{VALUE}(?= (?:more )?{_TIMES})"
    rf"|(?<=up )of {VALUE}))|(?P<consist>consists? of|(?:is|are|was|were) (?:composed|comprised) of) {lexicon.FILLING}{VALUE}"
)


class Candidate(NamedTuple):
    """A predicate whose object is a value: `text[start:end]`, from its verb to the value."""

    start: int
    end: int
    verb: str  # `is` for any copula
    is_plural: bool  # `are V and V`

    @property
    def is_copula(self) -> bool:
        return self.verb == "is"


def list_candidates(text: str, first: int) -> list[Candidate]:
    """The predicates from the main clause on, in their order."""
    found = {}
    for match in _ACTION.finditer(text, first):
        verb, before = match["progressive"] or match["verb"], text[: match.start()]
        if before.endswith(f"{VALUE} "):
            continue  # `350 tickets in all, 200 of them`
        governed = _AUXILIARY.search(before) or _PLURAL.search(before)
        if match["progressive"] or governed or verb.endswith(("s", "ed")) or _PAST.fullmatch(verb):
            found[match.end()] = Candidate(match.start(), match.end(), verb, False)
    for match in _STATED.finditer(text, first):
        verb = match["verb"] or match["ditransitive"] or "is"
        found[match.end()] = Candidate(match.start(), match.end(), verb, match["copula"] in ("are", "were"))
    if not found and text.count(VALUE, first) == 1:
        for match in _PREPOSITIONAL.finditer(text, first):
            if not match["base"] or _AUXILIARY.search(text[: match.start()]):
                verb = match["verb"] or match["consist"] or ""
                found[match.end()] = Candidate(match.start(), match.end(), verb, False)
    return [found[end] for end in sorted(found)]
