"""Values that are no object of a verb: named first (`V eggs remain`, `so V of the pupils passed`), after a label, or bold."""

import re

from lm_eval_takeover.answers import lexicon
from lm_eval_takeover.answers.sentences import VALUE, Sentence
from lm_eval_takeover.answers.subjects import LEAD, WE, is_plain
from lm_eval_takeover.answers.tails import CALCULATION, NEGATION, STEPS, is_harmless, join_unit

FIRST = re.compile(
    rf"{LEAD}(?:at the end(?: of the [a-z]+)?,? |(?:after|by|in|at"
    rf"|on) (?:the )?[a-z]+(?: [a-z]+){{0,2}}, )?(?:(?:there (?:are|is)|only|exactly|just|a total of"
    rf"|the) )*{VALUE}(?P<unit>(?: (?!(?:{lexicon.DUBIOUS})\b)[a-z-]+){{0,4}}?(?: of (?:(?:the|these|those|his|her"
    rf"|their) )?(?!the\b|these\b|those\b|that\b|what\b|it\b)[a-z]+)?) "
    r"(?:remain(?:s|ed)?|[a-z]+ed(?=[.! ]*$)|(?:is|are|was|were|will be|would be|can be|must be|have been|has been)"
    r"(?: (?:still|therefore|thus|then|hence))? "
    rf"(?:left(?: over)?|remaining|available|{lexicon.PARTICIPLES}"
    r"|(?:the|our|my) (?!first|next|wrong|given|initial)(?:[a-z]+ ){0,2}(?:answer|result|total|value|solution|integer"
    r"|number|root|maximum|minimum)))(?![a-z'])"
)
# Behind a word of conclusion or a phrase of time, or bold: `14 passengers stayed on`, `so 3/4 of the pizza is left`.
_OPEN_FIRST = re.compile(
    rf"(?P<lead>{LEAD}(?:(?:at|after|by|in|on) (?:the )?[a-z]+(?: [a-z]+){{0,4}}, )?(?:there (?:are|is) )?(?:only "
    rf"|exactly |just )?){VALUE}(?P<unit>(?: of (?:the|these|those|them|his|her|their|all))?(?: (?!(?:{lexicon.AFTER_UNIT}"
    rf"|{lexicon.DUBIOUS})(?![a-z]))[a-z-]+){{0,4}}?)"
    rf"(?: (?:is|are|was|were|will be|has|have|had|must be|{lexicon.PASTS}|[a-z]{{3,}}ed"
    rf"|(?<=s )(?!(?:{lexicon.AFTER_UNIT}|{lexicon.DUBIOUS})(?![a-z]))[a-z]+)(?: (?:still|now|already"
    rf"|also)(?! to))?)(?P<rest>[^{VALUE}]*)"
)
_NAMED_FIRST = re.compile(rf"{LEAD}(?:then )?{VALUE}(?=,)")
CONSEQUENT = re.compile(
    rf"(?:(?:[,;]|[,;]? and) (?:so|therefore|thus|hence)|,? (?:which|this|that) (?:means|implies|shows)(?: that)?"
    rf"| means(?: that)?|^(?:so )?(?:this|that) (?:means|implies|shows)(?: that)?)(?= {VALUE})"
    r" "
)
_LABEL = re.compile(
    rf"(?:{LEAD})(?:{lexicon.LABELS}|(?:(?!(?:problem|question|exercise|task|puzzle|page|{lexicon.TROUBLE}"
    rf"|{lexicon.DUBIOUS})(?![a-z]))[a-z][a-z'-]* ?){{1,6}})\s?[:=]\s?{VALUE}"
)
# `so 60 % of the students enrolled`: beside a word of conclusion a quantity that is counted may be named first.
_COUNTED_FIRST = re.compile(
    rf"(?:(?:\b(?:{lexicon.CONCLUDING})(?! (?:far|that)\b),?:? )+|^a total of )(?:there (?:are|were) )?(?:only "
    rf"|exactly |just )?{VALUE} (?P<unit>(?!(?:{lexicon.DUBIOUS})\b|and\b|or\b|of (?:that|those|what|it|each)\b|is\b|are\b|was\b"
    rf"|were\b)[a-z][a-z-]*)(?= [a-z])"
)
# A negation within the subject: `the students who do not play`, `of drawing no red ball`, `the amount not spent`.
HARMLESS_NEGATION = re.compile(
    rf"(?<!true )(?<!case )(?<!mean )(?<!means )(?<!sure )(?<!certain )(?<!clear )\b(?:who|which|whose|that"
    rf"|where)(?: [a-z']+){{0,4}}? (?:{lexicon.NEGATIONS})(?: [a-z']+)+"
    rf"|\b(?:of|with|for|by|at|[a-z]+ing) (?:no|not|none|neither|never)(?= [a-z])"
    rf"|(?<!is )(?<!are )(?<!was )(?<!were )\bnot (?=[a-z]+ing |[a-z]+(?:ed|en|nt|ld)\b [a-z,])"
)
_WE_DO = re.compile(rf"{WE}(?: [a-z]+)?$")
_NO_FINAL_BOLD = re.compile(
    r"(?:\b(?:by|than|least|most|about|around|roughly|approximately|nearly|almost|over|under|between|add|adding|minus"
    r"|plus|try|trying|case|step|problem|question|part|equation|number of|divide|multiply|subtract|say|up to)|[-+*/×<>≈^])\s*$"
)
_COPULA_END = re.compile(rf"(?:\b(?:{lexicon.COPULAS})|=) ?{lexicon.FILLING}$")


def find_named(sentence: Sentence, text: str) -> str | None:
    """A value that is no object of a verb: the one bold value, `V eggs remain`, or `Total cost: V`."""
    *_, consequence = [None, *CONSEQUENT.finditer(text)]
    if consequence is not None and text.count(VALUE, consequence.end()) == 1:  # `…, so 3/4 of the pizza is left`
        index = text.count(VALUE, 0, consequence.end())
        bold = [0] if index in sentence.bold else []
        sentence = Sentence("", [sentence.values[index]], bold)
        text = "so " + text[consequence.end() :]
    if NEGATION.search(HARMLESS_NEGATION.sub(" ", text)):
        return None
    if not is_plain(text[: text.rindex(VALUE)]):
        return None
    if (named := _NAMED_FIRST.match(text)) and "=" in sentence.values[0] and is_harmless(text[named.end() :], True):
        return sentence.values[0]  # `So x = 10, which we can verify by …`
    if label := _LABEL.match(text):
        return join_unit(sentence.values[0], text[label.end() :], True)
    if (named := FIRST.match(text) or _COUNTED_FIRST.match(text)) and text.count(VALUE) == 1:
        unit = named["unit"].strip()
        if not STEPS.match(unit) and is_harmless(text[named.end() :], True, counted=True):
            return f"{sentence.values[0]} {unit}".strip()
    if (named := _OPEN_FIRST.fullmatch(text)) and text.count(VALUE) == 1 and (named["lead"] or sentence.bold):
        unit = re.sub(r"^ of (?:the|these|those|his|her|their|all)?", "", named["unit"]).strip()
        if not STEPS.match(unit) and is_harmless(named["rest"], True):
            return f"{sentence.values[0]} {unit}".strip()
    bold = [index for index in sentence.bold if index < text.count(VALUE)]
    if len(bold) != 1:
        return None
    position = [found.start() for found in re.finditer(VALUE, text)][bold[0]]
    before, tail = text[:position], text[position + 1 :]
    if CALCULATION.search(before) or _NO_FINAL_BOLD.search(before) or _WE_DO.search(before):
        return None
    return join_unit(sentence.values[bold[0]], tail, bool(_COPULA_END.search(before)))
