"""The words by which a sentence states a value, or shows that it does not. Alternatives for regular expressions, lower case."""

import re


def alternatives(words: str) -> str:
    """`a/b c` as `a|b c`: words of a list, separated by slashes or line ends, for one group of a regular expression."""
    return "|".join(word.strip() for line in words.splitlines() for word in line.split("/") if word.strip())


def words(one_of: str) -> re.Pattern[str]:
    """A pattern of whole words, `one_of` being alternatives."""
    return re.compile(rf"(?<![a-z'])(?:{one_of})(?![a-z'])")


COPULAS = alternatives("""
    is/are/was/were/be/been/'s/'re/equals/equal/equalled/becomes/became/totals/totalled/totaled
    (?:meets?|met|intersects?|cross(?:es)?|lies|lie|is|are)(?: each other)? at(?: the points?)?
    comes? (?:out )?(?:to|at|as)/came (?:out )?(?:to|at|as)/amounts? to/amounted to/adds? up to/added up to
    sums? (?:up )?to/(?<=they )add to/works? out (?:to|at|as)/worked out (?:to|at|as)/turns? out (?:to be|at)
    turned out to be/runs? to
    ran to/stands? at/(?:is|are|lies|lie) at/stood at/simplif(?:y|ies) to/reduces? to/evaluates? to/boils? down to
    ends? up (?:at|as)
    (?:grew|grows?|r[oi]ses?|f[ae]ll|falls|drop(?:s|ped)|(?:in|de)creases?|(?:in|de)creased|shr[ai]nks?|climb(?:s|ed)) to
    (?:converges?|telescopes?|leads?|goes|cuts?|lowers?|raises?|expands?|rounds?(?= it)|factors|contracts|refines|approaches) to
    settles? at/remains?/(?:is|are|was|were|(?<=[a-z]) in|in) (?:in )?(?:the|a) ratio(?: of)?
""")
# What a quantity measures.
_QUANTITIES = alternatives("""
    total/grand total/combined total/sum/profit/loss/cost/price/value/probability/chance/area/volume/length/distance
    average/mean/speed/rate/maximum/minimum/discount/balance/change/fee/weight/height/width/savings?/income/revenue/tip
    amount/answer/result/difference/remainder/final score/score/net total/net profit/net gain/gain/refund/bill/payment
    decrease/increase/reduction/drop/rise/saving/perimeter/time/duration/age/number/figure/bonus/salary/wage/interest/tax
    deposit/share/temperature/angle/mass/capacity/density/diameter/radius/depth/energy/power/force/pressure/population
""")
# Verbs whose object is a quantity, with those that name it behind a preposition.
STATING = (
    alternatives("""
    costs?/pays?/paid/makes?/made/gives?/gave/yields?/yielded/produces?/produced/leaves?/left with/ha(?:s|ve|d)/did/does
    leaving(?: (?:him|her|them|us|only|just))?(?: with)?/costing/paying/spending/earning/making/needing/having/getting
    saving/weighing/gets?/got/gains?/gained/earns?/earned
    needs?/needed/spends?/spent/saves?/saved/takes?/took/receives?/received/owes?/owed/weighs?/weighed/measures?
    measured/results? in/resulted in/obtains?/obtained/finds?/found/arrives? at/arrived at/contains?/contained/holds?
    held/lasts?/lasted/requires?/required/keeps?/kept/collects?/collected/raises?/raised/ends? up with/ended up with
    left/ordered/charges?/charged/brings? in/brought in/brings?/cover(?:s|ed)(?! \ue000$)/travels?/travelled/traveled/bought
    sold/ate/used/calls? for/sold for/sells for/arrives? in
    (?:practi[cs]|work|slep|stud|wait|last|play|talk|stay|park|swim|swam|rest|liv|driv|travel)(?:e|y|s|t|es|ies|ed|ied)? for
    lasted/enrolled/drank/walked/ran/drove/read
    turn(?:s|ed) out(?! to\b)/won/lost/scored/worked/planted/baked/caught/gave away/used up/donated
    wrote/swam
    hand(?:s|ed) over/(?<=must have )(?:started|begun) with/(?<=had )(?:started|begun) with
    (?:travel(?:s|l?ed|l?ing)|mov(?:es|ed|ing)|go(?:es|ing)|went|driv(?:es|ing)|drove|runs?|running) at
    (?:fl(?:ies|ew|ying)|sells?|sold|priced|valued) at
    brings? (?:the|his|her|their|our|its) [a-z]+ (?:up |down )?to/(?:meet|finish|done|ready|full|empty) (?:after|in)
    (?:goes|went|(?:de|in)creased?s?|rises?|rose|falls?|fell|drops?|dropped|grows?|grew|changed?)(?: (?:up|down))? by
    (?:finish|complete|fill|empt|paint|build|clean)(?:y|ies|ied|es|ed|s)? (?:[a-z]+ing )?(?:the|his|her|their) [a-z]+ in
""")
    + rf"|(?:for|giving|making|yielding|leaving) an? (?:[a-z]+ )?(?:{_QUANTITIES}) of"
)
# Verbs that also name who gets the quantity: `it takes Carla V`.
DITRANSITIVE = alternatives(
    "costs?/takes?/took/gives?/gave/leaves?/left/pays?/paid/saves?/saved/owes?/owed/earns?/earned/brings?/brought/charges?/gets?"
)
CONCLUDING = alternatives("""
    so/thus/hence/therefore/all together/consequently/accordingly/finally/altogether/all told/all in all/overall/in total
    in all
    as a result/in conclusion/to sum up/in sum/in summary/in the end/ultimately/it follows/this means/that means
    we conclude/for a total/together/combined/this way/that way/with that
""")
# What may stand between a verb and its value and changes nothing about it.
_FILLERS = alternatives("""
    exactly/precisely/just/only/simply/therefore/thus/then/hence/now/indeed/always/again/clearly/also/finally/altogether
    in total/in all/overall/all told/equal to/equivalent to/given by/with/out/back/up/us/him/her/them/me/you/it
    each other/himself/herself/itself/themselves/everyone/everybody/home/away/as a result/still/currently/the value
    the two of them/both of them/them both/area/degree/volume/length/perimeter/radius/slope/order/mean/median/probability
    the (?:(?:unique|only|single) )?(?:solution|root)/the number/the fraction/the amount/to be/the answer/the result/a whole
    a full/worth/the same as/(?:the|an?) (?:[a-z-]+ )?(?:interval|set|pair|point|vector)
""")
FILLING = (
    rf"(?:(?:{_FILLERS}|(?:an?|the|his|her|its|their) (?:[a-z]+ )?(?:{_QUANTITIES}) of"
    r"|(?:found|calculated|computed|determined|seen|shown|worked out|evaluated) (?:to be|as|at)"
    r"|(?:each|every|both|all|the|his|her|their) (?:of )?(?!total|sum|number|multiple|first|last|next)[a-z]+(?<!other)"
    r")(?:,|:)? )*"
)
LABELS = (
    rf"(?:the )?(?:[a-z]+ ){{0,3}}(?:{_QUANTITIES}|earnings|expenses|solutions?|left|remaining|received)"
    r"(?: (?:of|for|in|on|at|per|from|to|left|after|and)(?: (?:the|all|his|her|their|each))?(?: [a-z]+)?){0,2}"
)

# A sentence that holds one of these anywhere states nothing for certain.
HEDGES = alternatives("""
    maybe/perhaps/possibly/probably/presumably/supposedly/apparently/hopefully/seems?/seemed/appear(?:s|ed)?(?! in )/i think
    i guess/i believe/i suppose/i suspect/i(?:'d| would) (?:say|guess)/we think/we guess/my guess/not sure/unsure
    uncertain/give or take/or so/more or less/or thereabouts/for example/for instance/hypothetically/if i recall
    likely to be/most likely/somewhere/in the region of/unless/or else/\\?/presumed/tentatively/arguably/who knows
    unclear/unknown/a guess/at a guess/doubt(?:s|ed|ful|ing)?/den(?:y|ies|ied)/no reason/hard to/questionable/chances are
    according to the wrong/in theory/in principle
    (?<!only )(?<!the )(?<!just )(?<!exactly )one (?:possible |such |valid )?(?:solution|root|answer)
    (?<!only )(?<!the )(?<!just )(?<!exactly )one (?:possible |such |valid )?(?:value|option|possibility|candidate)
    if only/would like/so far/thus far/for now/for the moment/for the time being/up to now/until now/at this stage
    one of (?:the|these|its|their|those) [a-z]+ (?:is|are|was|equals)
""")
SUPPOSING = alternatives("""
    if/suppose/supposing/assume/assuming/assumes/assumed/let/lets/say/imagine/pretend/consider/provided/whether
    had (?:he|she|it|they|we|you)/were (?:he|she|it|they|we|you|the)/would have/were it/in case/as if/as though/try
    trying
    (?:need|want|ha(?:ve|s)|remains?|aim|hope|asked|left|order|going|required|must|should|us|let's) (?:to )?(?:show|prove|verify)
    (?:need|want|ha(?:ve|s)|remains?|aim|hope|asked|left|order|going|required|must|should|us|let's) (?:to )?(?:confirm|check|see)
    should (?:he|she|it|they|we|you|the)/unless/guessing
""")
# What others hold, and what is given rather than concluded.
REPORTED = alternatives("""
    says/said/claims?/claimed/thinks?/thought(?! of)/believes?/believed/guess(?:es|ed)?/wonders?/wondered
    (?<!question )(?<!problem )asks?
    (?<!was )(?<!were )(?<!as )(?<!question )(?<!problem )(?<!number )(?<!value )(?<!distance )asked
    (?<!this )(?<!that )(?<!which )(?<!theorem )(?<!formula )(?<!rule )(?<!law )(?<!equation )tells?
    told(?<!all told)/hopes?/hoped/predicts?/predicted/wants to (?:know|check|see)/recall/we (?:are|were) given
    is given that/it is known/we know/by assumption/(?:states|stated) that
    according to(?! (?:our|my|this|these|the (?:above|table|graph|rule|formula|calculation)))
    offer(?:s|ed)?/recommend(?:s|ed)?/suggest(?:s|ed)?/bids?/quotes?/quoted
    wish(?:es|ed)?/(?:we|i|he|she|they) (?:tested|tried|guessed)/ought to/would like/dreams?/intends?/intended
    plan(?:s|ned)? to/aim(?:s|ed)? to/mistakenly/wrongly
""")
BEGINNING = alternatives("""
    (?:at|in) the (?:beginning|start|outset)/first/firstly/initially/originally/next/second/secondly/at first
    to begin/to start/step \\ue000/start/check/checking
    verification/verify/proof/proof that/note/given/recall/remember/hint/case \\ue000/example/similarly for
""")
NEGATIONS = alternatives("not/never/no/neither/nor/cannot/nobody/no one/none/nothing/hardly/scarcely/[a-z]+n't")
_CALCULATIONS = alternatives("""
    add(?:ing)?/subtract(?:ing)?/multiply(?:ing)?/divid(?:e|ing)/halv(?:e|ing)/doubl(?:e|ing)/tripl(?:e|ing)
    squar(?:e(?= (?:it|this|that|the|both|each|\\ue000))|ing)/comput(?:e|ing)/calculat(?:e|ing)/convert(?:ing)?
    plug(?:ging)?/substitut(?:e|ing)/simplify(?:ing)?/solv(?:e|ing)/continu(?:e|ing)/proceed/determine/figure out
    work out/find out/(?:test|check)(?= (?:it|this|that|the|whether|if|for|by|our|\\ue000))/checking/verify(?:ing)?
    considering/sum up(?! to)/carry(?:ing)?/factor in/account for
    take away/combine/compare/round
""")
CALCULATIONS = rf"(?:{_CALCULATIONS})"
# Phrases after a value that leave it what it is.
HARMLESS = alternatives("""
    in total/in all/altogether/all told/all in all/overall/all together/combined/together/left over/left/remaining/each(?! of)
    apiece/again/too(?=[ .!]*$)/tomorrow/yesterday/tonight/as well/thus/therefore/today/now/long/tall/wide/high/deep
    (?<!the )old/away
    apart/thick/per day/thereby
    to school/to work/to town/late/early/in it/in them/when full/on it/per person
    in change/in rent/in profit/in tips/in savings/in cash/in debt/in interest/in taxe?s?/in the end/in sum/by then/at once
    every day/each day/a piece/exactly/exactly enough/as required/as desired/as claimed/as expected/as asked/as wanted
    (?:as|for) (?:our|the|my) (?:final )?(?:answer|result|total|only option|only solution|lcm|gcd)/from home/at home
    of them/at school/for charity/in the bank/in size/in length/in area/in volume/in height/in width/in weight/in round trips
    after taxe?s?/our final answer/the answer/the final answer/no more(?:,| and) no less/completely/respectively
    as the (?:least common multiple|greatest common divisor|sum|product|remainder|value)/as shown/now and for all
    there and back/both ways/in decimal form/in lowest terms/in simplest form/in words
    back/in hand/to spare/on average/this week/this month/this year/that week/that month/that year/needed/required/used
    available
""")
# Words that may say something else of a value than that it is the answer, wherever a noun stands.
DUBIOUS = alternatives("""
    wrong/incorrect/faulty/naive/rough/tentative/estimates?/estimated/approximate/approximat(?:ion|ed|ions)/alleged/supposed
    assumed/assumption/hypothesis/hypothetical/guess/guesses/guesswork/bound/bounds/moment/meantime/drawings?/sketch/diagram
    picture/model/mind/theory/principle
    paper/stretch/pinch/best/worst/most/least/max/min/minimum/maximum/tops/ish/ballpark/vicinity/neighbou?rhood/region
    outside/extreme/sake/face/draft/attempt/try/case/cases/scenario/mistake/error/errors/typo/place?holders?/example
    instance/starters?/start/beginning/first/second/now/far/fact/opinion/view/reckoning/look/glance/luck/chance/surplus
    off/short/shy/plus/minus/times/modulo/squared/cubed/twice/half/halves/double/triple/thirds?/quarters?|part/parts/fraction
    multiple/multiples/factor/divisor/may/might/could/would/should/must/not/never/no/nor/neither/hardly/say/says/said
    think/thinks/guessed/believe/believes/hope/hopes/assume/assumes/suppose/seems?/appears?/might/yet/still/but/however
    something/thereabouts/circa/roughly/perhaps/maybe/probably/possibly/nearly/almost/about/around/toward
    towards/beyond/behind/ahead/past/too/very/quite/rather/somewhat/odd/some/any/many|few|several/upward/upwards/next/until
    excess/deficit/margin/accuracy/precision/tolerance/average/subtotal/partial/initial/original/former/previous/otherwise
    except/excepting/barring/provided/assuming/unless/lest/depending/subject/pending/prior/like/unlike/versus/to-be
    question/questionable/unknown/unclear/doubt/doubtful/dubious/interim/provisional/preliminary/temporary/intermediate
    lower/upper/limit/limits/range/least/equal/unequal/different/other/others/another/rest/remainder/counting/me/you
    reading/timesheet/slip/peak/photographs?/photos?/weathers/version/telling/disappear/vanish
    we/us/what/whatever/outset/halfway/midway/dream/dreams/imagination/joke/trap/missing/lost/one/ones
""")
# What was or is to be done with things that are counted; not what is done with numbers on the way (`must be subtracted`).
PARTICIPLES = alternatives("""
    needed/required/used/sold/made/bought/produced/donated/collected/planted/baked/eaten/saved/earned/spent/caught/served
    painted/picked/drained/filled/given (?:away|out)/delivered/shipped/packed/raised/paid/owed/lost/won/read/written/occupied
    seated/born/built/played/printed/replaced/harvested/poured/cut/covered/ordered/invited/hired/cooked/washed/cleaned/drunk
    consumed/broken/missing/walked/driven/enrolled/present/absent/empty/full/listed/registered/scored/recycled/stored/loaded
""")
# Nouns that number the steps of a solution, not what is asked for.
STEPS = alternatives(
    "cases?/steps?/equations?/unknowns?/possibilities to/subcases?/conditions?/constraints?/approaches/scenarios?"
)
# Words that end the name of a unit.
AFTER_UNIT = alternatives("""
    in/for/to/on/at/of/by/from/with/after/when/while/where/who/which/that/since/because/as/so/each/left/remaining/more
    less/fewer/greater/larger/smaller/older/younger/taller/longer/shorter/heavier/lighter/faster/slower/higher/lower
    cheaper/bigger/better/worse/short/farther/further/total/altogether/overall/all/and/or/but/if/unless/per/an?/every
    over/under/above
    below/during/before
    until/through/across/between/among/within/without/is/are/was/were/will/would/can/has/have/had/than/than/out/extra
    still/then/now/not/only/too/back/away/together/combined/instead/today/tonight/tomorrow/yesterday/later/again/did/do
    does/his/her/their
    its/our/your/my/the/this/these/those/it/she/he/they/we/you/i/there/here/thus/hence/therefore/apart/overall/ago/old
    once/plus/minus/times/divided/using/including/excluding/given/needed/required/available/worth/long/tall/wide/high
    deep/apiece/late/early/first/initially/originally/originally/about/up/down/off/onto/into/exactly/precisely
""")
# Pasts that no ending shows.
PASTS = alternatives("""
    drove/ran/rode/swam/flew/ate/drank/sold/bought/won/lost/read/wrote/made/caught/grew/slept/held/cut/built/gave/lent/threw/hit
    shot/fed/spent/saw/bled/took/went/kept/got/paid/had/have/put/set/led/sent/stood/told/met/bore/brought/drew/rose/wove/knit
    started with/began with
""")
# What is no verb that states a quantity, though it ends as one.
NO_VERBS = alternatives("""
    [a-z]*ss/this/thus/its/his/as/us/was/is/has been/times/always/plus/minus/perhaps/less/across/besides/towards/afterwards/cases
    steps?/adds?/added/add/subtract(?:s|ed)?/multipl[a-z]+/divid[a-z]+/tr(?:y|ies|ied)/test(?:s|ed)?/check(?:s|ed)?/compare[sd]?/exceed[a-z]*
    round(?:s|ed)?/start(?:s|ed)?/begins?/began/differ(?:s|ed)?/miss(?:es|ed)?/lack(?:s|ed)?/approach(?:es|ed)?/guess(?:es|ed)?
    assume[sd]?/pages?/number(?:s|ed)?/chapters?/days/question/problems?/equations?/will/can/must/would/should/could/might/may/shall/about/half/double/triple/twice/and/or/of/in/at/for/by/to/with/from/than/the/an?/least/most/over/below/above/under/near/after
    before/up/between/beyond/within/without/until/around/behind/past/pending/during
    [a-z]+ly/[a-z]+ing/means?/implies/implied/(?:shows?|showed|proves?)(?= that)/need(?:s|ed)? to/suggests?/hundred/expects?
    expected/aimed/planned/hoped/wanted/wants/intend[a-z]*/estimate[sd]?/supposed/limited/compared/based/increased/decreased/reduced
""")
# Words that say of a quantity that it is another than the one asked for.
PROVISIONAL = alternatives("""
    wrong/incorrect/faulty/flawed/naive/rough/tentative/estimates?/estimated/estimation/approximate/approximations?/alleged
    supposed/assumed/assumptions?/hypothetical/hypothesi[sz]ed/guess/guesses/bounds?/theory/paper/drafts?/attempts?/mistaken?
    error/errors/typo/example/placeholder/dummy/trial/provisional/preliminary/interim/intermediate/temporary/sub-?totals?
    partial/former/previous/prior/earlier/projected/projections?/predicted/predictions?/forecasts?/budgeted/planned/targets?
    goals?/quota/so-called/nominal/intended/hoped/would-be/rival/competing/alternative/classmate's
    answer of (?!(?:the|this|that|our) )[a-z]+/(?!(?:question|problem|exercise|today)'s)[a-z]+'s (?:final )?answer
    textbook/rumou?red
    posted/presumed/imagined/guessed/scheduled/anticipated/forecast(?:ed)?/recommended/misquoted/miscalculated/overstated/understated
    advertised/quoted/claimed/reported/published/upper/lower/ballpark/ideal/without/before/except/ignoring/neglecting
    forgetting/omitting/skipping/barring/unlike/like/something/anything/someone/somebody/anyone/anybody/almost/nearly
    roughly/about/around(?! (?:the|an?|his|her|its) [a-z]+)/tempting/trap/decoy/distractor/false/fake/unadjusted
    uncorrected/unsimplified/raw/incomplete
    expected(?! (?:value|number|time|gain|payoff|profit|cost|score|winnings))/prospective/potential/suggested/proposed/half of
    (?:a|one|two|three) (?:third|quarter|fifth|half|halve)s? of/twice/double/triple/thrice/(?<!the )part of
    some of/most of/suspected
    initial/original estimate/old/fictional/imaginary/counterfactual/student's/pupil's/friend's answer/neighbou?r's/calculator
    candidates?/options?/(?:one|a|another|some)(?: [a-z]+)? possib[a-z]+/possibility
    nearest(?! (?:whole|dollar|cent|integer|tenth|hundredth|thousandth|percent|degree|hour|minute))/reciprocal/threshold/cap
    floor/ceiling/minuend/numerator
    (?<!common )denominator/exponent/intermediary/the carry/digit sum/runner-up/erroneous/miscounted/invalid/spurious
    extraneous/discarded
    (?:he|she|it|they|we|i) first/running (?:total|tally|sum|count|score|balance)/rejected/misread/misprinted/unless
    only if/provided/granted/given
""")
# Words that take a remark after a value (`, which …`, `, rounding …`) out of the harmless: it denies, corrects,
# compares, weighs or goes on to calculate.
TROUBLE = rf"{PROVISIONAL}|{NEGATIONS}|{CALCULATIONS}|" + alternatives("""
    must/should/could/would/might/may/can(?! (?:verify|check|confirm|see))/will/need(?:s|ed)?/still/then/now/next/later/yet/only
    but/though/although/however/or/if/most/some/half/part/least/best/worst/too/more/less/fewer/higher/lower/greater/smaller
    impossible/absurd/halfway/midway/outset/contradict[a-z]*/exceed[a-z]*/below/above/(?<!left )over/under/under[a-z]+/off
    short/long/close/near/far/minus
    plus/rest/other/others/another/remainder/extra/even(?! number)/odd/before/until/after/so/i/me/you/down/out/up to
    subtract[a-z]*/add(?:s|ed)/multipl[a-z]*/divid[a-z]*/doubl[a-z]*/halv[a-z]*/pending
""")
# Adverbs that take nothing away.
ADVERBS = alternatives("""
    only/family/july/daily/weekly/monthly/yearly/hourly/nightly/early/reply/supply/apply/fly/multiply/finally/exactly
    precisely/simply/clearly/consequently/accordingly/ultimately/equivalently/indeed/correctly/rally/jelly/belly/bully/lily
    emily/sally/molly/kelly/polly/billy/holly/milly/willy/carly/beverly/kimberly/shelly/nelly/ally/assembly/butterfly
    uniformly/randomly/evenly/equally/respectively/completely/fully/assembly/positively/actually/really/certainly
    currently/definitely/obviously/directly/jointly/annually/annual/totally/independently/italy
""")
# Of an answer that is only said to be one: words that qualify it, and an adjective before it that is not of these.
_FINE = r"we|us|one|best|would|must|should|question|most|options?|given|alternative|possib\w*|false"
QUALIFIED = re.compile(
    rf"\b(?!(?:{_FINE})\b)(?:{DUBIOUS}|{PROVISIONAL})\b"
    rf"|\b(?!(?:{ADVERBS}|likely)\b)[a-z]+ly\b|\bbar (?:one|two)\b|\bin [a-z]+ only\W*$"
    r"|\b(?!(?:the|a|an|our|my|this|that|is|be|we|i|d|ll|would|selected|chosen|should|must|answer|exactly|second|third"
    r"|fourth|of|or|and|correct|right|best|final|only|remaining|closest|matching|valid|true|one|to|as"
    r"|plausible|likely|accurate|appropriate|consistent|suitable|reasonable|possible|good|desired|required|given|single|so|thus"
    r"|hence|therefore|choose|select|pick|with|in|by|matches|multiple|listed|viable|for|the|from|correspond|sole|an|us|leaves"
    r"|leaving|left|select|satisfying|feasible|favou?red|preferred|stated|main|statement|exact|overall|no|it's|than|match)\b)"
    r"[a-z-]+ (?:answer|choice|explanation|description|candidate|selection|pick|letter)\b",
    re.IGNORECASE,
)
