"""The words by which a sentence states a value, or shows that it does not. Alternatives for regular expressions, lower case."""

import re

""


def alternatives(words: str) -> str:
    """`a/b c` as `a|b c`: words of a list, separated by slashes or line ends, for one group of a regular expression."""
    return "|".join(word.strip() for line in words.splitlines() for word in line.split("/") if word.strip())


def words(one_of: str) -> re.Pattern[str]:
    """A pattern of whole words, `one_of` being alternatives."""
    return re.compile(rf"(?<![a-z'])(?:{one_of})(?![a-z'])")


COPULAS = alternatives("""
    is/are/was/were/be/been/'s/'re/equals/equal/equalled/becomes/became/totals/totalled/totaled
    comes? (?:out )?(?:to|at|as)/came (?:out )?(?:to|at|as)/amounts? to/amounted to/adds? up to/added up to
    sums? (?:up )?to/works? out (?:to|at|as)/worked out (?:to|at|as)/turns? out (?:to be|at)/turned out to be/runs? to
    ran to/stands? at/(?:is|are|lies|lie) at/stood at/simplif(?:y|ies) to/reduces? to/evaluates? to/boils? down to
    ends? up (?:at|as)
    settles? at/remains?
""")
# Verbs whose object is a quantity; any other verb needs a word of conclusion (`CONCLUDING`) in its sentence.
STATING = alternatives("""
    costs?/pays?/paid/makes?/made/gives?/gave/yields?/yielded/produces?/produced/leaves?/left with/ha(?:s|ve|d)/did/does
    costing/paying/spending/earning/making/needing/having/getting/saving/weighing/gets?/got/gains?/gained/earns?/earned
    needs?/needed/spends?/spent/saves?/saved/takes?/took/receives?/received/owes?/owed/weighs?/weighed/measures?
    measured/results? in/resulted in/obtains?/obtained/finds?/found/arrives? at/arrived at/contains?/contained/holds?
    held/lasts?/lasted/requires?/required/keeps?/kept/collects?/collected/raises?/raised/ends? up with/ended up with
    left/charges?/charged/brings? in/brought in/brings?/covers?/covered/travels?/travelled/traveled/bought/sold/ate
    (?:practi[cs]ed|worked|slept|studied|waited|lasted|played|talked) for/lasted/enrolled/drank/walked/ran/drove/read
    won/lost/scored/worked/planted/baked/caught/gave away/used up/donated
    wrote/swam
    hand(?:s|ed) over/(?<=must have )(?:started|begun) with/(?<=had )(?:started|begun) with
    (?:travel(?:s|l?ed|l?ing)|mov(?:es|ed|ing)|go(?:es|ing)|went|driv(?:es|ing)|drove|runs?|running) at
    (?:fl(?:ies|ew|ying)|sells?|sold|priced|valued) at
    brings? (?:the|his|her|their|our|its) [a-z]+ (?:up |down )?to/(?:meet|finish|done|ready|full|empty) (?:after|in)
    (?:goes|went|decreased|increased|rose|fell|dropped|grew|changed|declined)(?: (?:up|down))? by
    (?:for|giving|making) an? (?:[a-z]+ )?(?:total|sum|profit|maximum profit|cost|price|average|loss|gain) of
""")
# Verbs that also name who gets the quantity: `it takes Carla V`.
DITRANSITIVE = alternatives(
    "costs?/takes?/took/gives?/gave/leaves?/left/pays?/paid/saves?/saved/owes?/owed/earns?/earned/brings?/brought/charges?/gets?"
    ""
)
CONCLUDING = alternatives("""
    so/thus/hence/therefore/consequently/accordingly/finally/altogether/all told/all in all/overall/in total/in all
    as a result/in conclusion/to sum up/in sum/in summary/in the end/ultimately/it follows/this means/that means
    we conclude/for a total/together/combined/this way/that way/with that
""")
# What may stand between a verb and its value and changes nothing about it.
_QUANTITIES = alternatives("""
    total/grand total/combined total/sum/profit/loss/cost/price/value/probability/chance/area/volume/length/distance
    average/mean/speed/rate/maximum/minimum/discount/balance/change/fee/weight/height/width/savings?/income/revenue/tip
    amount/answer/result/difference/remainder/final score/score/net total/net profit/net gain/gain/refund/bill/payment
    perimeter/time/duration/age/number/figure/bonus/salary/wage/interest/tax/deposit/share/temperature/angle/salary
""")
_FILLERS = alternatives("""
    exactly/precisely/just/only/simply/therefore/thus/then/hence/now/indeed/always/again/clearly/also/finally/altogether
    in total/in all/overall/all told/equal to/equivalent to/given by/with/out/back/up/us/him/her/them/me/you/it
    each other/himself/herself/itself/themselves/everyone/everybody/home/away/as a result/still/currently/the value
    the number/the fraction/the amount/to be/the answer/the result/a whole/a full/worth
""")
FILLING = (
    rf"(?:(?:{_FILLERS}|(?:an?|the|his|her|its|their) (?:[a-z]+ )?(?:{_QUANTITIES}) of"
    r"|(?:found|calculated|computed|determined|seen|shown|worked out|evaluated) (?:to be|as|at)"
    r"|(?:each|every|both|all|the|his|her|their) (?:of )?(?!total|sum|number|multiple|first|last|next)[a-z]+(?<!other)"
    r")(?:,|:)? )*"
)
LABELS = rf"(?:the )?(?:[a-z]+ ){{0,3}}(?:{_QUANTITIES}|earnings|expenses|solutions?|left|remaining)(?: [a-z]+){{0,4}}"

# A sentence that holds one of these anywhere states nothing for certain.
HEDGES = alternatives("""
    maybe/perhaps/possibly/probably/presumably/supposedly/apparently/hopefully/seems?/seemed/appears?/appeared/i think
    i guess/i believe/i suppose/i suspect/i(?:'d| would) (?:say|guess)/we think/we guess/my guess/not sure/unsure
    uncertain/give or take/or so/more or less/or thereabouts/for example/for instance/hypothetically/if i recall
    likely to be/most likely/somewhere/in the region of/unless/or else/\\?/presumed/tentatively/arguably/who knows
    unclear/unknown/a guess/at a guess/doubt(?:s|ed|ful|ing)?/den(?:y|ies|ied)/no reason/hard to/questionable/chances are
    according to the wrong/in theory/in principle
    (?<!only )(?<!the )(?<!just )(?<!exactly )one (?:possible |such |valid )?(?:solution|root|answer)
    (?<!only )(?<!the )(?<!just )(?<!exactly )one (?:possible |such |valid )?(?:value|option|possibility|candidate)
    if only/would like
""")
SUPPOSING = alternatives("""
    if/suppose/supposing/assume/assuming/assumes/assumed/let/lets/say/imagine/pretend/consider/provided/whether
    had (?:he|she|it|they|we|you)/were (?:he|she|it|they|we|you|the)/would have/were it/in case/as if/as though/try
    trying/should (?:he|she|it|they|we|you|the)/unless/guessing
""")
# What others hold, and what is given rather than concluded.
REPORTED = alternatives("""
    says/said/claims?/claimed/thinks?/thought(?! of)/believes?/believed/guess(?:es|ed)?/wonders?/wondered/asks?/asked
    tells?/told(?<!all told)/hopes?/hoped/predicts?/predicted/wants to (?:know|check|see)/recall/we (?:are|were) given
    is given that/it is known/we know/by assumption/(?:states|stated) that/according to
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
# After a value: what takes it back, goes on, or makes it less than the value that is asked for.
RETRACTING = alternatives("""
    but/however/although/though/whereas/yet/wrong/incorrect/impossible/contradict[a-z]*/absurd/mistake/so far
    to begin with/to start with/initially/at first/originally/for now/at the start/for a start/as a first/first of all
    too (?:much|many|few|large|small|big|low|high|long|short|little)/doesn't/cannot/can't/isn't/wouldn't/won't/or/nor
    and then/then,/next
    before (?:adding|taking|subtracting|applying|we|the tip|tip|tax(?:es)?|expenses|fees|interest|(?:the )?discounts?|deductions)
    must be
    (?:is|are|has|have|had|need|needs|remains?|still|yet|left) to be/needs?/have to/has to/must/still/let's/let us
    at least/at most/plus/minus/times(?= \\ue000)/at (?:the )?(?:minimum|maximum)
    (?:now|so|and|which|that|to which) (?:we|i|you)(?! (?:are done|have (?:the|our|an) answer|conclude))
    as (?:much|many|large|big|long|tall|old|far|high|fast|heavy|wide|deep)/and more/and counting/or over/and over
    half/part of/(?:third|quarter|fifth) of/some of/one of/every one/could/might/may (?:be|have|also|not|still)/would
    farther/further/to be/short of/former/latter/previous/wanted/missing
    (?:[a-z]+er|more) than/as one of/as an? (?:[a-z]+ )?(?:bound|guess|estimate|limit|start|factor|multiple|check)
    as (?:assumed|supposed)/off
    instead of the (?:right|correct|true|actual)
    at (?:the )?best/at (?:the )?worst
    to check/to (?:try|test|consider|examine|compute|calculate|solve|verify|find|simplify|go|convert|carry|work)
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
    still/then/now/not/only/too/back/away/together/combined/instead/today/tomorrow/later/again/did/do/does/his/her/their
    its/our/your/my/the/this/these/those/it/she/he/they/we/you/i/there/here/thus/hence/therefore/apart/overall/ago/old
    once/plus/minus/times/divided/using/including/excluding/given/needed/required/available/worth/long/tall/wide/high
    deep/apiece/first/initially/originally/originally/about/up/down/off/onto/into/exactly/precisely
""")
# Nouns that a number names: `row 7` is no quantity.
_NUMBERED = (
    "row/seat/house/gate/floor/volume/version/lane/track/column/item/box/team/player/position/place/stage/phase/round/lesson"
    "/unit/exercise/example/door/platform/flight/size/channel/station/building/exit/verse/act/scene/rank/class/section"
)
_BETWEEN = "an?/the/each/every/both/all/its/his/her/their/this/that/these/those/our/your/my/another/other/any/some/no"
# Words directly before a value that is no object of a verb.
NOT_VERBS = alternatives(
    f"""
    {_BETWEEN}/{_NUMBERED}/by/from/to/for/in/on/at/of/into/onto/over/under/above/below/between/among/through/across
    within/without
    per/and/or/but/nor/than/as/if/when/while/since/because/so/thus/hence/therefore/then/that/which/who/where/least/most
    more/less/fewer/greater/about/around/roughly/approximately/nearly/almost/approx/circa/some/up/down/out/off/not/never
    no/plus/minus/times/divided/multiplied/mod/modulo/versus/against/with/after/before/until/during/number/case/step
    page/chapter/equation/part/question/problem/figure/table/day/week/month/year/room/bus/route/level/grade/type/group
    next/last/first/only/just/exactly/precisely/also/even/either/neither/both/divide/multiply/add/subtract/square/double
    halve/compute/calculate/consider/try/tries/tests/guesses/considers/assumes/multiplies/divides/adds/subtracts/chooses
    picks/squares/doubles/halves/this/thus/less/its/his/use/using/used/choose/pick/set/put/plug/substitute/check/test
    let/suppose/assume/say/guess/considering/adding/multiplying/dividing/subtracting/taking/knowing/given/like/including
    excluding/near/exceed/exceeds/exceeded/want/wants/hopes/follow/following/line/order/mod/base/power/factor/numbers
    values/option/choice/answer/possibly/altogether/total/overall/examine/compare/combine/round/convert/factor/factorise
    factorize/expand/cancel/remember/call/denote/write/start/begin/started/began/starts/begins/considered/tried/tested
    added/subtracted/doubled/halved/squared/half/twice/double/triple/thrice/quarter/third/average/nothing/sure/enough/if
"""
)
