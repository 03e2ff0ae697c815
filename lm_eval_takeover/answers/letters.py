"""The letter of a multiple-choice answer: of the last box, else of what is said to be the answer, else of the last sentence.

A letter counts where it is called the answer (`the answer is B`), a choice (`option B`, `(b)`, `I select B`) or stands bold, and
its sentence neither asks nor rules it out. Two letters offered are no answer. Linear in the length of the response.
"""

import re

from lm_eval_takeover.answers import lexicon
from lm_eval_takeover.answers.conclusions import states_doubt
from lm_eval_takeover.answers.extraction import TAIL, find_boxes, has_unclosed_think, strip_thinking
from lm_eval_takeover.answers.sentences import find_last_sentence

_LETTER = re.compile(r"\W*(?:(?i:option|choice|answer)\b\W*)?(?:([A-Z])\W*(?:[.:)\n].*|$)|([a-z])\W*$)", re.DOTALL)
_WRAP = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|textit|textrm|bf|rm)\b\s*")
_FORM = (
    r"[\s*_:]*[\[\"“]?\\?[($]?\$?(?:\\(?:text|mathrm|textbf|mathbf)\{)?"
    r"(?:\(?([A-Z])\)?|\(([a-z])\)|([a-z])(?=\*\*|\)?[.!]?\s*(?:\n|$)|\)\s))(?![A-Za-z']|-[a-z])"
)
# The word for an answer, and what may stand between it and the letter, in other languages.
_ANSWERS = (
    "答案|正确选项|正解|答え|所以选|因此选|故选|选择|選擇|정답|답은|(?i:respuesta|réponse|risposta|resposta|antwort|antwoord|odpowied[źz]"
    "|jawaban|cevap|svaret|đáp án|ответ|вариант|उत्तर|الإجابة)"
)
_ARE = r"(?i:es|est|è|é|ist|is|la|le|also|somit|donc|adalah|là|jest|то|是|為|为|は|은|는|:|：|\s|—|-)*"
_SAID = re.compile(
    rf"\b(?i:answer)\b[\s*_]*(?:(?i:is|should be|would be|must be|will be)\b(?:\s+(?i:therefore|thus|clearly|simply)\b)?)?"
    rf"[\s*_:]*(?:(?i:option|choice|letter)\s+)?{_FORM}|\b(?i:correct|right|best)\s+(?i:option|choice|letter)\s+(?i:is){_FORM}"
    rf"|\(?\b([A-Z])\b\)?[*_]*\s+(?:(?i:is|must be|has to be)\s+(?i:the\s+)?|(?i:would be"
    rf"|should be)\s+(?i:the)\s+)(?i:correct|right|best)(?:\s+(?i:answer|option|choice))?"
    rf"|(?:{_ANSWERS})[^.。\n\d]{{0,24}}?(?<![A-Za-z])(?:{_ARE})?{_FORM}"
)
_ALONE = re.compile(
    r"[\s*_${→∴=>[-]*(?:\\(?:text|math)(?:bf|rm)?\{)?(?:\(([A-Z]"
    r"|[a-z](?=\)\W*$))\)(?:[.:]?[*_]*\s(?P<said>[^\n]{1,200}))?|([A-Z])(?:[.):](?P<text>[^\n]{0,200}))?)[\s*_$}.\]]*"
)
_NO_OPTION_TEXT = re.compile(
    r"\s*(?:is|are|was|can|could|cannot|does|do|has|should|would|must|satisfies|fails|gives|violates|contradicts)\b"
    r"|.*(?:\*\*|__)\s*[A-Za-z]"
)


def extract_letter(response: str, letters: str = "ABCD") -> str | None:
    """The letter that a response answers with; None if it gives none, or more than one."""
    text = strip_thinking(response)
    if boxes := find_boxes(text):
        content = _WRAP.sub("", boxes[-1][2])
        found = _LETTER.fullmatch(content)
        letter = (found[1] or found[2] or "").upper() if found else _find_last_said(content, letters)
        if letter and letter in letters:
            return letter
    if has_unclosed_think(response):
        return None
    text = text[-TAIL:]
    if said := _find_last_said(text, letters):
        return None if said == _SEVERAL else said
    return _find_asserted(text, letters) or _read_alone(text, letters)


_OFFERS_MORE = re.compile(r"\b(?:incorrect|wrong|false|not correct|if|or|else|maybe|perhaps)\b|\?\W*$")


def _read_alone(text: str, letters: str) -> str | None:
    """The letter of a response that is a letter and at most the text of its option."""
    alone = _ALONE.fullmatch(text)
    if alone is None or _OFFERS_MORE.search(text) or _NO_OPTION_TEXT.match(alone["said"] or alone["text"] or ""):
        return None
    letter = (alone[1] or alone[3]).upper()
    return letter if letter in letters and not _list_letters(text, letters) - {letter} else None


_SEVERAL = "several"  # what `the answer is B or C` says
_WRONG = re.compile(r"\b(?:incorrect|wrong|false|worst|not (?:the|an?))\s*$", re.IGNORECASE)
_SECOND = re.compile(
    r"[)\s*_$}\]]*(?:\([^()]{3,}\)\s*)?(?:,\s*)?(?:,(?=\s*\(?[A-Za-z]\)?\s*(?:,|\bor\b|\band\b))|/|\b(?:or|and|oder"
    r"|ou|или|veya)\b)\s*(?:(?i:option|choice|maybe|perhaps"
    r"|possibly)\s+)*[*_$(\\]*(?:text\{)?(?:([A-Z])(?![A-Za-z'])|\(?([a-z])\))"
)
_STATES = re.compile(r"\b(?:is|be|was)\b|[:=]", re.IGNORECASE)
_ARTICLE = re.compile(r"[:\n.]\s*A$")  # Answer: A hydrogen atom …
_AFTER_ARTICLE = re.compile(r" (?!(?:is|because|since|as|and|with|for|or|but|where)\b)[a-z]")
_FORMER = re.compile(
    r"\b(?:first|initial|previous|former|earlier|original|wrong|rejected|tempting)\s+(?:answer|choice|guess|pick)"
    r"|\b(?:i|we) was ",
    re.I,
)
_RECONSIDERS = re.compile(r"\b(?:wait|hmm+|scratch that|on second thoughts?|oops|correction)\b|\bno,\s", re.IGNORECASE)


def _find_last_said(text: str, letters: str) -> str | None:
    """The last letter that is said to be the answer, by a sentence that neither asks, supposes nor denies it."""
    last, end = None, 0
    for found in _SAID.finditer(text):
        letter = next(filter(None, found.groups())).upper()
        if letter not in letters or _is_doubted(text, found, letter):
            continue
        second = _SECOND.match(text, found.end())
        other = (second[1] or second[2]).upper() if second else letter
        last = _SEVERAL if other in letters and other != letter else letter
        end = found.end()
    if last and (again := _RECONSIDERS.search(text, end)) and _list_named(text[again.end() :], letters) - {last}:
        return _SEVERAL
    return last


_NEXT_STOP = re.compile(r"[.!?](?=\s|$|\*)|[。！？]|\n")


def _is_doubted(text: str, found: re.Match[str], letter: str) -> bool:
    """Whether the sentence of `found` asks, supposes, or rules out the letter that it names."""
    reach = TAIL // 50
    start = 1 + max(
        text.rfind(stop, max(0, found.start() - reach), found.start()) for stop in ("\n", ". ", "? ", "! ", "。")
    )
    stop = _NEXT_STOP.search(text, found.end(), found.end() + reach)
    end = stop.start() if stop else min(len(text), found.end() + reach)
    if (stop is not None and stop[0] in "?？") or states_doubt(text[start : found.end()].rstrip(" *_:")):
        return True
    before, after = text[start : found.end()], text[found.end() : end]
    if _WRONG.search(text[start : found.start()]) or _FORMER.search(before) or _TAKEN_BACK.search(after):
        return True
    if letter == "A" and _ARTICLE.search(before) and _AFTER_ARTICLE.match(after):
        return True
    clause = re.split(r"[;,]\s", before)[-1]
    bracketed = found.end() - text.startswith(")", found.end() - 1)
    aside = _ASIDE.match(after)
    if aside and aside[0].lstrip(" (").startswith("or "):
        return True
    if (
        aside
        and not _list_letters(aside[0], "ABCDEFGHIJ")
        and (_RULED_OUT.search(aside[0]) or lexicon.QUALIFIED.search(aside[0]))
    ):
        return True
    if _UNSURE.search(text[found.end() : end].lower()):
        return True
    if not _SAID_TAIL.match(text, bracketed) or lexicon.QUALIFIED.search(clause.rsplit(": ")[-1]):
        return True
    follows = _ASIDE.sub(" ", after)
    is_option_text = _STATES.search(found[0]) is not None and re.match(r"[.):,*]", after) is not None
    if not is_option_text:
        follows = _CLAUSE.split(follows)[0] if _STATES.search(found[0]) else follows
        clause += follows if _DENIED.search(follows) else _CLAUSE.split(follows)[0]
    return _RULED_OUT.search(_spare(clause, letter)) is not None or _IF.match(after) is not None


# What may follow a letter that is said to be the answer: the end, a stop, its text, or a reason.
_SAID_TAIL = re.compile(
    r"\)\s+[A-Z\d$\\]|[)\s*_$}\]\"”!]*(?:$|\n|[.:;(\\—–-](?!or\b)"
    r"|,\s*(?:$|\d|[A-Z$\\(]|(?i:because|since|as|so|which|the|an?|with|i\.e|that is|where|due|given|not|and|or|while|but"
    r"|for|it|this)\b)"
    r"|(?i:because|since|as (?:it|the|this|these|only|our|we)|with (?:the|an?)|which|where|due|based|given|and|or|the|is"
    r"|are|was|oder|ou)\b|[^\x00-\x7f]|(?<=\s)[a-z]+[.!]?\s*$|(?i:for (?:the|this|these))\b)"
)
# `the answer Bob gave`, `the one to avoid`
_ANSWERS_ELSE = re.compile(
    r"\bis (?:therefore |thus |clearly )?the (?:[a-z]+ )?(?:answer|choice|option|one)\b"
    r"(?!\W*$|\W*[,.;:(]|\s(?:because|since|as|for|to (?:the|this|pick|choose|select|take)"
    r"|that|among|of|in|with|here|and|due|which|given|by|on|consistent|we|left|shown|remaining|described|matching)\b)"
)
_UNSURE = re.compile(rf", (?:were|had|should) [a-z]+ |\bguess|(?<![a-z'])(?:{lexicon.HEDGES})(?![a-z'])")
_IF = re.compile(
    r"[)\s*_$}.]*(?:,\s*)?\b(?:if|unless|provided|only if|or else|divided|times|plus|minus|were)\b", re.IGNORECASE
)
_ASIDE = re.compile(r"\s*\([^()]{3,}\)")
_DENIED = re.compile(
    r"\b(?:is|are|was|can|could|does|should|would|must|has)(?:\s+(?:be|to be|clearly|therefore|also|thus))*"
    r"(?:n't|not|\s+(?:not|wrong|incorrect|false|ruled out|rejected|excluded|eliminated|impossible|out|invalid|twice|half"
    r"|unlikely|far))\b|\b(?:est fausse?|ist falsch|değil|sbagliata|errada|yanlış|salah|es incorrecta|неверн\w*"
    r"|неправильн\w*)|아니|아닙|不|错|錯|ではな|ではあり",
    re.IGNORECASE,
)
_PREDICATE = (
    r"(?:\s+(?i:is|are|must be|does|has|have|it is|would be)\b|\s+(?:(?i:best|clearly|only|correctly|alone|indeed|also)\s+)?"
    r"(?i:fit|hold|remain|match|work|describ|appl|show|follow|satisf|agree|explain|give|correspond|pass|conserv|obey"
    r"|predict|yield|contain|reproduc|preserv)(?i:s|es|ies)\b)"
)
_OPTION = re.compile(
    r"(?:\*\*|__)[\s(]*(?:(?i:option|choice|answer)\s+)?\(?(?P<bold>[A-Z])"
    r"(?:[).:](?![A-Za-z])[^*_\n]*|\s*[-–—]\s[^*_\n]*)?\)?\s*(?:\*\*|__)"
    r"|\b(?i:options?|choices?|alternative|answers?|letter|select(?:ing|ed)?|choose|choosing|chose|pick(?:ing|ed)?"
    r"|go(?:ing)? (?:with|for))\s+(?:(?i:is|as|option|choice|letter"
    r"|answer)\s+)*(?:[(\"“]?(?P<named>[A-Z])[)\"”]?(?![A-Za-z'])"
    r"|(?P<small>[a-z])(?=[.!]?\s*$|\s+(?:is|must be)\s+(?:the\s+)?(?:correct|right|best|true)))"
    r"|\((?P<bracketed>[A-Za-z])\)|(?<![A-Za-z'(-])(?P<bare>[A-Z])(?![A-Za-z'-])"
    rf"(?={_PREDICATE}|\s*[,.;:)]|\s*$|\s+(?i:and|or|nor)\b)"
)
# A noun before a bare letter makes it the name of something else: `compound B`, `process C`.
_NAMING = re.compile(
    r"(?<![A-Za-z])(?!(?:is|are|be|being|so|thus|hence|therefore|then|only|just|and|or|nor|that|leaves|leaving|left|means|implies"
    r"|with|matches|match|fits|favou?rs|supports|gives|us|to|by|both"
    r"|except|but|than|it|as|for|while|whereas|since|because|either|neither|also|which|namely|clearly|statements?|sequences?|was"
    r"|remains|say|if|not|in|eliminating|excluding|between|conclude)\b)[a-z]{2,}\s+$"
)
_LISTED = re.compile(r"(?<=[^A-Za-z][A-Z])\)?,(?: and| or)? \(?(?=[A-Z]\b(?!\s+(?i:is|must|fits|remains)))")
_RULED_OUT = re.compile(
    r"\b(?:wrong|incorrect|false|ruled out|ruling out|rules? out|eliminat\w+|exclud\w+|not|none|cannot|neither|nor|inconsistent"
    r"|contrary|disagree\w*|fails?|impossible|unlike|reject\w*|discard\w*|implausible|invalid|unlikely|rather than|instead of"
    r"|contradict\w*|violat\w*|out|hardly|barely|poorly|partial\w*|partly|only (?:some|part|two)"
    r"|(?<=satisfies )only one|far(?:thest|ther)?|furthest"
    r"|differs?|differ|twice|half|opposite|least|worst|near|unclear|dubious|doubtful|mismatch\w*|unsupported|avoid"
    r"|could|may|might|divided by|never|infeasible|undesired|conflict\w*|deselected|off|gone"
    r"|ruled-out|(?:one|two|some|part|most|half) of (?:the|these|its)|fausse?|podría|pourrait|könnte|poderia|potrebbe"
    r"|falsch\w*|nicht|kein|não|non|niet|inte|sbagliata|errada|incorrecta|no es|n'est|pas|не|неверн\w*"
    r"|неправильн\w*|salah|bukan|tidak|değil|yanlış|не)\b|n't\b|≠|\\neq?\b|不|错|錯|아니|아닙|아님|않|じゃな|ではな|ではあり|間違|还是|還是|或|可能|也许"
    r"|かも|아마",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"\b(?:it|this|that|which)(?:'s| is| was| would be| has been| turned out) (?:(?:therefore|thus|hence|clearly|also"
    r"|then) )?(?:wrong|incorrect|false|ruled out|excluded|eliminated|rejected|out(?! of)|a mistake)\b"
    r"|\bbut (?:it )?(?:(?:does|is|can|has|would|do)(?:n't| not)|cannot|fails|violates|ignores)\b|\bit (?:fails"
    r"|violates)\b|\b(?:incorrect|wrong|worst) (?:answer|option|choice)s?\b\W*(?:is|are|:)",
    re.IGNORECASE,
)
# A bold option as the heading of what it says: an enumeration, not a choice.
_HEADING = re.compile(
    r"(?:\*\*|__)\s*(?:(?:option|choice)\s+)?\(?[A-Z]\)?(?:\s*(?:\*\*|__)\s*:|:\s*(?:\*\*|__))\s*\S", re.IGNORECASE
)
_LABEL = re.compile(r"[a-z -]{1,40}:", re.IGNORECASE)
_NONE = re.compile(r"\bnone of (?:the|these|those) (?!others?\b|rest\b|remaining\b)", re.IGNORECASE)
_EXCEPT = re.compile(
    r"\b(?i:all|every|each|everything|none|any(?:thing)?|no)\b[^.;]*?\b(?:except(?: for)?|but|other than|apart from)\s+"
    r"(?:for\s+)?(?:(?i:option|choice|answer)\s+)?\(?([A-Z])\)?(?![A-Za-z'])"
)
_FOLLOWS = re.compile(r"\W*(?:so|thus|hence|therefore|leaving|which leaves|and so|only)\b", re.IGNORECASE)
_ASSERTED = re.compile(
    r"\b(?:only|correct|right|best|true|answer|select\w*|choos\w*|chose|pick\w*|fits|holds|remains|remaining|left|matches|passes"
    r"|consistent|works|option|choice|selection|valid|leaving|leaves|so|thus|hence|therefore|must be|elimination"
    r"|closest|agrees?|points to|(?:product|compound|structure|reagent|isomer) is|listed|solution|it's|it is|this is"
    r"|that is|given|gives|yields|forms|corresponds?|summary|conclusion|(?<!before we )(?<!before i )conclude)\b",
    re.IGNORECASE,
)
_CHOSEN = re.compile(r"\b(?:select|choose|pick|go (?:with|for))\b", re.IGNORECASE)
_CLAUSE = re.compile(
    r"[;,]\s+|(?<![\s(][A-Z]):\s+|\s+(?:while|whereas|but|since|because|leaving|which leaves|and (?=(?:only|so|thus"
    r"|therefore|hence|the)\b)|(?:so|as) (?=(?:only|option|choice|the|[A-Z])\b))\s*\b|\s[-–—]\s"
    r"|\s*\((?=[^)]{3})(?![A-Z] and [A-Z]\b)"
)


# What may stand before a letter that ends its clause, and what may follow one.
_BEFORE = re.compile(
    r"(?:^|\b(?:is|are|be|so|thus|hence|therefore|ergo|only|just|simply|clearly|then|namely|and|that|with|to|by|in|as"
    r"|for|us|me|go|going"
    r"|choos\w*|chose|select\w*|pick\w*|prefer|tak\w+|answers?|options?|choices?|alternatives?|letter|selection"
    r"|statements?|solution|indeed|exactly|precisely|certainly|obviously|ist|also|die|es|la|le|i\.e"
    r"|(?<!before )(?:we|i|and)(?: (?:can|now|then|thus|hence|therefore|finally|may))* conclude"
    r"|leav\w+|makes?|favou?rs?|supports?|match\w*|fits?|gives?|describes|say|on|elimination|summary|conclusion|it's|that's"
    r"|thing|left|best|correct|remains|sequence|first|second|third|fourth|last|one)|[:=→,])\W*$",
    re.IGNORECASE,
)
_OPTION_NOUN = re.compile(
    r"(?:\b(?:answers?|options?|choices?|alternatives?|letter|statements?|sequences?|compound(?=\s*\()"
    r"|product(?=\s*\()|structure(?=\s*\()|hypothesis)\W*)+$",
    re.IGNORECASE,
)
_AFTER = re.compile(
    r"[)\].:*_\"”\s}$!]*(?:$|(?:(?:it is|it's|is|are|was|must be|must have been|would be|can be|has to be|should be"
    r"|to be|being|remains|stands)"
    r"\s+(?:therefore |thus |then |hence |indeed |clearly |also |our |my |the |a |an |in |what we |both |physically "
    r"|fully |one of )*(?:only|correct"
    r"|right|best|true|answer|one|valid|consistent|choice|option|final|selected|chosen|choose[ns]?|left|remaining"
    r"|feasible|viable|closest|possible"
    r"|solution|pick|match|accurate|appropriate|allowed|need|major|are looking|computed|desired|required|most (?:suitable"
    r"|likely|plausible|appropriate|accurate|reasonable|consistent|stable|probable|acidic|basic|reactive|favou?rable)|line"
    r"|agreement)\b|(?:(?:best|clearly|only|correctly|alone|indeed|also|exactly|still|does)\s+)*(?:fit|hold|remain|match|work"
    r"|describ|appl|show|follow|satisf|agree|explain"
    r"|give|correspond|pass|account|has|have|survive|stand|succeed|make|meet|does)(?:i?e?s)?\b"
    r"|as (?:our|my|the)\b|it is\b|exactly\b|in\b|for (?:the|this|these|our)\b|here\b|to be (?:correct|right|true)\b"
    r"|the (?:only )?(?:correct|right|best) (?:answer|option|choice|one)\b|correct\b|left\b|only\b|remaining\b|alone\b))",
    re.IGNORECASE,
)


# The text of an option after its label: `(A) 2 nodes`, `D) 4**`; it ends at a verb.
_OPTION_TEXT = re.compile(
    r"\A(?:\*\*)?[).:]+\*{0,2}\s*(?!(?:it|upside|reversed|inverted|backwards|alone|then|now)\b)(?:(?!\b(?:is|are|was|can"
    r"|could|does|has|should|would|must|isn't)\b)[^*\s])"
    r"(?:(?!\b(?:is|are|was|can|could|does|has|should|would|must|isn't)\b)[^*])*\**"
)
_NAMES_VALUE = re.compile(r"is the (?!wrong|incorrect|worst|least|opposite)", re.IGNORECASE)


def _is_preferred(clause: str, letter: str) -> bool:
    """Whether a clause says for its letter that it is the one: by what stands before it at its end, or by its predicate."""
    for found in re.finditer(
        rf"(?<![A-Za-z'])(?:{letter}|(?<=\(){letter.lower()}(?=\))|{letter.lower()}(?=\W*$|\s+(?:is"
        rf"|must be)\s+(?:the\s+)?(?:correct|right|best|true)))(?![A-Za-z'])",
        clause,
    ):
        before, after = clause[: found.start()], clause[found.end() :]
        rest = _OPTION_TEXT.sub("", after, count=1)
        has_text = rest != after
        after = rest
        whole = before.rstrip('*_$\\ "“')
        noun = _OPTION_NOUN.search(whole)
        stem = (whole[: noun.start()] if noun else whole).rstrip('([*_$\\ "“')
        stem = re.sub(r"\b(?:the|our|my|an?|answer)$", "", stem).rstrip()
        if has_text and _NAMES_VALUE.match(after):
            return True
        if _AFTER.match(after.lstrip(")]*_ ")) and (
            after.strip(' )].*_!}$"”') or _BEFORE.search(stem) or not stem.strip("*_([ ")
        ):
            if after.lstrip(" )]").startswith("as ") and not _BEFORE.search(stem):
                continue
            return True
    return False


# `choice C, 20 J, is`
_APPOSITION = re.compile(r"(?:(?<=\b[A-Z]), [^,;]{1,40}|, ([A-Z])), (?=(?:is|are|was|can|does|has|would|must)\b)")


def _find_asserted(text: str, letters: str) -> str | None:
    """The one letter that the last sentence asserts; letters that the same sentence rules out do not count."""
    sentence = find_last_sentence(text)
    if (
        not sentence
        or _HEADING.match(sentence)
        or states_doubt(sentence)
        or any(found.search(sentence) for found in (_TAKEN_BACK, _FORMER, _RECONSIDERS))
    ):
        return None
    if re.search(
        r"\b(?:unlike|conflicts?)\b|\b(?:one|either|some|any|both) of \(?[A-Z]\b|, (?:too|either|also)\b|\bguess"
        r"|, (?:were|had|should) (?!it the|the answer)[a-z]+ "
        r"|\bbut (?!only|not)(?:[a-z]+\W*){1,4}$|\b(?:go with|choose|pick|select) (?:another|neither|none|something)",
        sentence,
    ):
        return None
    if spared := _EXCEPT.search(sentence):
        return spared[1] if spared[1] in letters and _RULED_OUT.search(sentence) else None
    if " (or " in sentence or any(
        _RULED_OUT.search(aside) and not _list_letters(aside, letters) for aside in _ASIDE.findall(sentence)
    ):
        return None
    label = _LABEL.match(sentence)
    if _NONE.search(sentence) or (label and any(found.search(label[0]) for found in (_RULED_OUT, lexicon.QUALIFIED))):
        return None
    asserted, denied = set[str](), set[str]()
    followed: set[str] = set()  # of clauses that draw the conclusion
    claimed = _ASSERTED.search(sentence) is not None
    for clause in _split_clauses(_spare(_drop_asides(sentence, letters))):
        named = _list_letters(clause, letters)
        if (alone := _ALONE.fullmatch(clause)) and not named and (alone[1] or alone[3]) in letters:
            named = {alone[1] or alone[3]}
        if not named or _RULED_OUT.search(clause):
            denied |= named
            continue
        if (
            not any(_is_preferred(clause, letter) for letter in sorted(named))
            or lexicon.QUALIFIED.search(clause)
            or _ANSWERS_ELSE.search(clause)
        ):
            continue
        claimed |= any(option["bold"] or option["named"] or option["small"] for option in _OPTION.finditer(clause))
        asserted |= named
        followed |= named if _FOLLOWS.match(clause) or _CHOSEN.search(clause) else set()
    chosen = (followed or asserted) - denied
    return chosen.pop() if len(chosen) == 1 and claimed else None


def _list_letters(text: str, letters: str) -> set[str]:
    """The letters that name options; not those that name something else, as in `compound B`."""
    return {
        next(filter(None, option.groups())).upper()
        for option in _OPTION.finditer(text)
        if not (option["bare"] and _NAMING.search(text[: option.start()]))
    } & set(letters)


def _list_named(text: str, letters: str) -> set[str]:
    """The letters of options in what follows an answer; a bare letter counts wherever it stands."""
    return set(re.findall(r"(?<![A-Za-z'])[A-Z](?![A-Za-z'])", text)) & set(letters)


def _spare(clause: str, letter: str = "") -> str:
    """A clause without the letters that it prefers another one to: `B, not C`, `B over C`, `B rather than C`."""
    other = rf"(?!\(?{letter}\b)" if letter else ""
    return re.sub(
        rf"\band none of the (?:other|remaining)(?: (?:options|choices|answers))?|(?:,\s*|\band\s+"
        rf"|(?<=\b[A-Z])\)?\s+)not\s+{other}(?:(?:option|choice)\s+)?\(?[A-Z]\)?(?![A-Za-z'])"
        rf"|\b(?:over|rather than|instead of)\s+{other}(?:(?:option|choice)\s+)?\(?[A-Z]\)?(?![A-Za-z'])",
        " ",
        clause,
    )


def _drop_asides(sentence: str, letters: str) -> str:
    """The sentence without asides in brackets, but those that name options."""
    return _ASIDE.sub(
        lambda aside: aside[0] if _list_letters(aside[0], letters) or " (or " in aside[0] else "", sentence
    )


def _split_clauses(sentence: str) -> list[str]:
    """The clauses of a sentence; letters of one list stay together, and a letter with its predicate."""
    listed = _APPOSITION.sub(r" \1 ", _LISTED.sub(" and ", sentence))
    return [clause for clause in _CLAUSE.split(listed) if clause and clause.strip()]
