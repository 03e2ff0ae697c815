"""What may stand before a value in its clause: a subject that no word qualifies, behind introductory phrases of known kinds."""

import re

from lm_eval_takeover.answers import lexicon
from lm_eval_takeover.answers.lexicon import words
from lm_eval_takeover.answers.sentences import VALUE

LEAD = rf"(?:(?:and|{lexicon.CONCLUDING}),?:? )*"
# Where a clause of its own begins.
CONSEQUENCE = re.compile(r",? \b(?:so|therefore|thus|hence)\b(?! that)|; |, (?:and|meaning(?: that)?) ")
# A modal, an infinitive that no necessity commands (`meant to run V`), `soon be`.
_UNCERTAIN = re.compile(
    r"\b(?:might|could|may (?!the\b|and\b))"
    r"|(?<!has)(?<!have)(?<!had)(?<!needs)(?<!need)(?<!going)(?<!able)(?<!equal)(?<!\bis)"
    r"(?<!are)(?<!turns out)(?<!found)(?<!used)(?<!required)(?<!needed)(?<!necessary)(?<!seen)(?<!shown)"
    r"(?<!proportional)(?<!comes)(?<!adds up)(?<!out)(?<!up)(?<!amount)(?<!amounts)"
    r" to (?:be\b|[a-z]+ (?:(?!is |are |was |equals )[a-z]+ )?\ue000)|\b(?:all but|anything but|next to|as good as|short of"
    r"|to find)\b|\bhalf (?:empty|full|done|finished|ready)\b"
    r"|[a-z] (?:we|i) (?!can (?:afford|make|form|buy|get)|need|want|are |were |seek|sought|have |get |obtain)[a-z]+"
    r"|\b(?:the|a|an|her|his|its|their) (?!(?:desired|required|combined|shaded|discounted|reduced|unshaded|colou?red|needed"
    r"|sought|red|simplified"
    r"|expected|inscribed|circumscribed|signed|weighted|unpainted|hundred|speed|seed|feed|shed|bed|need|united|married|used"
    r"|unused|painted)\b)"
    r"[a-z]+ed (?!of\b|by\b|to\b|in\b|is\b)[a-z]+"
    r"|\b(?:soon|later|once|then|still|next|long|far|hardly|all but) be\b"
)
_PROVISIONAL = words(lexicon.PROVISIONAL)
_ADVERB = re.compile(rf"\b(?!(?:{lexicon.ADVERBS})\b)[a-z]+ly\b")
_INTRODUCTION = re.compile(
    rf"{LEAD}(?:(?:(?:written|expressed|reduced|simplified|converted|rounded) )?(?:as|in|to) (?:an? )?(?:[a-z]+ ){{0,2}}"
    rf"(?:{lexicon.NOTATIONS})|(?:{lexicon.CONCLUDING})|by the [a-z' -]*(?:theorem|formula|rule|law|identity|lemma"
    rf"|inequality|definition"
    rf"|symmetry|property|time|end)(?![a-z]).*"
    rf"|(?:and )?(?:since|because|when|once|while) (?!of\b)[a-z]+ .*|(?:by |after |when )?(?!supposing|assuming|guessing"
    rf"|believing|pretending)[a-z]+ing\b.*"
    rf"|(?:at|in|with|by(?! the )|for|from|over|after|between|among|on|of|as|to|since|because|when|once|while|as|given"
    rf"|until|rather than"
    rf"|instead of|(?:rounded|rounding|written|expressed|reduced|simplified) (?:to|as|in)) (?:an? )?(?:the|his|her|their|its"
    rf"|this|that|these|those|both|all|each|every|one|two|three|{VALUE}|then|there|he|she|it|they|we|x|total|all|required"
    rf"|simplified fraction|our|any)(?![a-z]).*|on average|that is|i\.e\.|in mid-[a-z]+|everything considered"
    rf"|tax included|with (?:tax(?:es)?|tips?|interest|shipping)|now|then"
    rf"|.*{VALUE}.*|after [a-z]+|"
    rf"(?:the|her|his|their) [a-z ]+|[a-z]+)?"
)


def is_plain(before: str) -> bool:
    """Whether what stands before a value is a subject, with introductory phrases of known kinds, that nothing qualifies."""
    clause = CONSEQUENCE.split(before)[-1]
    if any(found.search(clause) for found in (_PROVISIONAL, _ADVERB, _UNCERTAIN)):
        return False
    return all(_INTRODUCTION.fullmatch(phrase) for phrase in clause.strip().split(", ")[:-1])
