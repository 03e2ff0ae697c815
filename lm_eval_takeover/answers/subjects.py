"""What may stand before a value in its clause: a subject that no word qualifies, behind introductory phrases of known kinds."""

import re

from lm_eval_takeover.answers import lexicon
from lm_eval_takeover.answers.lexicon import words

LEAD = rf"(?:(?:and|{lexicon.CONCLUDING}),?:? )*"
# Who solves the problem, up to the verb that says what is done on the way.
WE = r"\b(?:we|i|let us|let's)(?: (?:now|then|can|must|will|would|should|also|first|next|could|have to|need to))*"
# Where a clause of its own begins.
CONSEQUENCE = re.compile(r",? \b(?:so|therefore|thus|hence)\b(?! that)|; |, (?:and|meaning(?: that)?) ")
# A modal, an infinitive that no necessity commands (`meant to run V`), `soon be`.
_UNCERTAIN = re.compile(
    r"\b(?:might|(?<!he )(?<!they )(?<!we )(?<!it )(?<!one )could|may (?!the\b|and\b))"
    r"|(?<!has)(?<!have)(?<!had)(?<!needs)(?<!need)(?<!going)(?<!able)(?<!equal)(?<!\bis)"
    r"(?<!are)(?<!turns out)(?<!found)(?<!used)(?<!required)(?<!needed)(?<!necessary)(?<!seen)(?<!shown)"
    r"(?<!proportional)(?<!comes)(?<!adds up)(?<!out)(?<!up)(?<!amount)(?<!amounts)"
    r" to (?:be\b|(?!the\b|an?\b|his\b|her\b|its\b|their\b)[a-z]+ (?:(?!is |are |was |equals )[a-z]+ )?\ue000)"
    r"|\b(?:all but|anything but|next to|as good as|short of|to find)\b|\bhalf (?:empty|full|done|finished|ready)\b"
    r"|[a-z] (?:we|i) (?!can (?:afford|make|form|buy|get)|need|want|are |were |seek|sought|have |get |obtain)[a-z]+"
    r"|\b(?:soon|later|once|then|still|next|long|far|hardly|all but) be\b"
)
_PROVISIONAL = words(lexicon.PROVISIONAL)
_ADVERB = words(
    "nearly|roughly|approximately|barely|hardly|scarcely|allegedly|seemingly|initially|originally|previously|formerly|temporarily"
    "|incorrectly|wrongly|mistakenly|falsely|erroneously|theoretically|ideally|normally|usually|typically|officially|nominally"
    "|partially|partly|tentatively|provisionally|potentially|conceivably|ostensibly|naively|optimistically|pessimistically"
    "|conservatively|loosely|crudely|virtually|practically|reportedly|purportedly|misleadingly|carelessly|hastily|tacitly"
)
# Introductions that make it an estimate: `By the look of it, …`.
_ESTIMATED = re.compile(
    r"\b(?:looks?|sounds?|feel|glance|guess|guessing|stretch|pinch|eye|paper|theory|rights|luck|best|worst|scenario|draft|supposing"
    r"|assuming|believing|pretending)\b[^,]*,"
)


def is_plain(before: str) -> bool:
    """Whether what stands before a value is a subject, with introductory phrases of known kinds, that nothing qualifies."""
    clause = CONSEQUENCE.split(before)[-1]
    return not any(found.search(clause) for found in (_PROVISIONAL, _ADVERB, _UNCERTAIN, _ESTIMATED))
