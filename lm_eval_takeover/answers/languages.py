"""Last sentences in other languages: a value with its unit, or a value after a copula, at the very end.

German, Spanish, French, Italian, Portuguese, Dutch, Polish, Swedish, Turkish, Russian, Hindi, Bengali, Arabic, Indonesian,
Vietnamese, Swahili, Thai, Chinese, Japanese and Korean have their words here for asking, supposing, doubting, denying, comparing
and calculating, which refuse a sentence. Units of measure come out in English, so that minutes are not taken for hours; decimal
commas come out as points.
"""

import re

from lm_eval_takeover.answers.lexicon import alternatives
from lm_eval_takeover.answers.sentences import OPAQUE, VALUE, Sentence, append_unit

_ENGLISH = re.compile(
    r"\b(?:the|is|are|she|he|it|they|we|of|that|this|thus|hence|therefore|and|for|from|there|has|have|his|its|was|were|will"
    r"|each|with|to|by|costs?|pays?|makes?|equals?|gives?|comes|their|you|my|all|total|left|so|answer|value)\b"
)
_FOREIGN = re.compile(
    "\\b(?:"
    + alternatives("""
    der/das/dem/den/des/ist/sind/und/sie/er/ein/eine/einen/einem/insgesamt/zusammen/somit/daher/damit/folglich/beträgt
    kostet/ergibt/bleiben/zahlt/bezahlt/man/wir/mit/auf/hat/haben/also bleiben/el/la/los/las/un/una/es/en/por/del/que
    son/hay/entonces/luego/tiene/cuesta/paga/quedan/queda/respuesta/resultado/le/les/du/une/est/il/elle/ils/elles/et
    donc/coûte/paie/reste/ainsi/nous/réponse/résultat/au/aux/di/che/sono/lo/gli/quindi/costa/rimangono/risposta
    risultato/dunque/ha/os/um/uma/são/portanto/logo/custa/ela/ele/resposta/assim/het/een/dus/zijn/betaalt/kost/antwoord
    totaal/samen/ze/hij/wij/bedraagt/det/och/är/jest/więc/toplam/totale/au total/em/no/na/die/im/zum/nach/noch/dauert
    dura/cada/recibe/restam/sobram/quedan/jeder/jede/jedes/bekommt/erhält/braucht/benötigt/verdient/así/gana/necesita
    égale/razem/mają/ma/zatem/łącznie/zostało/totalt
    kostar/svaret/alltså/toplamda/sonuç/olarak/böylece/yani/cevap/kalır/vậy/tổng/có/còn/là/phải/được/jadi/totalnya
    adalah/yang/jumlah
    jedes kind/besitzt/jetzt/kauft/verkauft/gibt/fährt/läuft/wiegt/wiegen/also (?:ist|hat|sind|besitzt)/und/insgesamt/bleibt/dann
    chaque/chacun/aura/auront/avait/avons/leur/leurs/cette/ce/pour/avec/sur/dans/reçoit/gagne/roule/coûte/fait/enfants?
    cada/pagó/gastó/compró/vendió/recibirá/tendrá/sus/para/este/niños?
    ogni/ciascuno/riceve/restano/percorre/nel/della/del/questo/suo/sua/con/ragazz[oi]/bambin[oi]
    gastou/pagou/ficou/terá/comprou/vendeu/recebe/seu/sua/cada/uma/tinha
    ieder/iedere/elke?/zitten/zit/liggen/krijgt/rijdt/nog/haar/zijn/voor/uur/deze
    odpowied[źz]/wynosi/kosztuje/ich/dla/dziecko/dostanie/zostanie/w sumie/och/har/varje/kronor/får/barn
    é/è/preço/kwa/hiyo/jumla/ana/anapata/yake/tutto/totale/complessivamente/pertanto/perciò/dunque/quindi/en tout/en conjunto
    por lo tanto/por tanto/ao todo/daarom/nu/spende/paga/costano/costa/gasta/cuestan/quedan/pesa/pesan/mide/dure/coûtent
""")
    + ")\\b"
)
_SCRIPT = re.compile("[\u0370-\u1fff\u3040-\ud7ff]")


def is_foreign(text: str) -> bool:
    """Whether a masked sentence is in another language than English, by its script or its commonest words."""
    foreign = len(_FOREIGN.findall(text))
    return _SCRIPT.search(text) is not None or (foreign > 0 and foreign >= len(_ENGLISH.findall(text)))


# Verbs that state a quantity, and what may stand between one and its value.
_VERBS = alternatives("""
    ist/sind/beträgt/betragen/ergibt/ergeben/lautet/kostet/kosten/gleich/zahlt/bezahlt/bezahlen/hat/haben/braucht/brauchen
    wiegen/fahren/laufen/trinken/essen/kaufen/verkaufen/dauert/bleiben/bleibt/bekommt/bekommen/erhält/erhalten/macht/verdient/benötigt/wiegt/fährt/läuft/verkauft/gibt/verbraucht
    es/son/está/hay/tiene/tienen/cuesta/cuestan/paga/pagan/queda/quedan/recibe/reciben/gana/ganan/necesita/necesitan/recorre
    tarda/gasta/vende/ahorra/mide/pesa/obtiene/suma/es de/es igual a/equivale a/da/gastó/pagó/vendió/ganó
    est/sont/vaut/égale?/égal à/égale? à/est de/coûte/coûtent/paie/paient/reste/restent/a/ont/il y a/met/roule/roule à/reçoit
    gagne
    a parcouru/a payé/a gagné/a vendu/parcourt/dépense/faut/dure/mesure/pèse/fait
    è/è di/sono/ha/hanno/costa/costano/rimangono/resta/restano/riceve/ricevono/guadagna/impiega/spende/uguale a/percorre/serve
    servono/pesa/misura/vende/ci sono/ha pagato/ha speso/risparmia
    é/são/tem/têm/custa/custam/gasta/gastou/pagou/restam/sobram/recebe/recebem/percorreu/precisa de/precisa/é de/igual a/há
    ganhou/ganha/vendeu/leva/economiza/(?<!de )(?<!di )(?:um|un) totale? d[ei]
    is/zijn/bedraagt/kost/kosten/betaalt/heeft/hebben/rijdt/krijgt/blijven/blijft/verdient/duurt/weegt/er zijn
    är/kostar/har/blir/jest/wynosi/kosztuje/mają/ma/zostało/jest ich/to/ni/dola/adalah/totalnya/jumlahnya/memiliki/là/có
    còn/trả
    равн[аоы]?/равен/составляет/составит/это/стоит/заплатит/получится/получаем/остаётся/останется/осталось/платит
    заработал[аи]?
    проехал[аи]?/получилось/получит/нужно/потребуется/потратил[аи]?/заплатил[аи]?/купил[аи]?/всего/итого/ответ/ответ:/итог:
    toplam/toplamda/geriye/maliyet/sonuç/cevap/fiyat/कुल/उत्तर/लागत/योग/মোট/উত্তর/هو/هي/بقي/المجموع/الجواب
""")
_BETWEEN = alternatives("""
    genau/also/somit/daher/damit/dann/donc/ainsi/exactement/entonces/exactamente/por tanto/quindi/dunque/portanto/então/dus
    precies/ровно/поэтому/também/insgesamt/zusammen/noch/en total/au total/in totale/in totaal/no total/samen/nog/à/encore
    sie/er/es/das/man/wir/ihm/ihr/ihnen/elle/il/ze/hij/we/ella/él/le/lui/lei/toplam/всего/w sumie/tam/ainda/ancora/todavía/het
""")
_CONCLUDING = alternatives("""
    insgesamt/zusammen/somit/daher/damit/folglich/also/en total/en tout/au total/por (?:lo )?tanto/en conjunto/así que/luego
    por consiguiente/en consecuencia/donc/ainsi/par conséquent/in totale/in tutto/complessivamente/quindi/perciò/dunque
    pertanto
    portanto/logo/assim/no total/ao todo/ao final/in totaal/dus/daarom/samen/итого/всего/значит/следовательно/таким образом
    поэтому/łącznie/razem/więc/zatem/totalt/alltså/toplamda/böylece/yani/jadi/secara keseluruhan/vậy/tổng cộng/kwa hiyo
""")
_STATED = re.compile(
    rf"(?:(?:^|[\s,:])(?:{_VERBS})(?: (?:der|die|das|el|la|le|il|lo|o|a|de|het) [^\W\d_]+)?\s(?:(?:{_BETWEEN})\s)*"
    # A name: `hat Lisa 27`, `у Пети 27`
    # Beside a word of conclusion any verb that stands before its object.
    rf"|(?:^|[\s,])(?:{_CONCLUDING}),? (?:(?!(?:{_VERBS})\s)[^\W\d_]+ )?[^\W\d_]{{3,}}\s(?:(?:{_BETWEEN})\s)*"
    rf"|(?:^|[\s,])(?:(?:also|dus|so|am ende|daher|somit|nun|jetzt|insgesamt|damit|folglich|zusammen|uiteindelijk) (?:hat"
    rf"|heeft|kauft)|у) (?![^\W\d_]+(?:weise|lich|end|stens|wel)\b)[^\W\d_]+\s(?:(?:{_BETWEEN})\s)*"
    r"|[是为為有了付需共得于於剩要赚到下花=:：] ?|[はがで計] ?|(?:คือ|เป็น|เท่ากับ|ทั้งหมด) ?|[=:—]\s?"
    r"|[가-힣](?:은|는|이|가|총)? ?|^(?:so|also|dus|donc|quindi)?\s*)$"
)
# In a sentence with no other number any word may be its verb that is no preposition.
_ANY_VERB = re.compile(
    r"[^\W\d_]{2,}.*[\s'](?!(?:mit|um|von|vor|nach|bei|seit|bis|unter|über|ab|alle|jede[nrs]?|hasta|desde|hace|sobre|tras|avec|pour|depuis|vers"
    r"|sous|sur|après|avant|dès|até|após|dopo|met|van|voor|na|bij|sinds|over|onder|om|через|за|до|от|после|к|с|по|от|på|efter|före"
    r"|po|przed|od|do|za|co|sonra|önce|sau|trước|dari|sampai|untuk|numéro|nummer|número|numero|dan|als|que|che|än|niż|чем|como|comme|wie)\s)[^\W\d_]{2,}\s(?:[^\W\d_]{1,2}\s)?$"
)
_INTRODUCED = re.compile(
    rf"^.*{VALUE}.*, (?=[^,]*{VALUE}[^,]*$)|^[^\W\d_]+ (?:[^\W\d_]+ )?{VALUE} [^\W\d_]+ "
)  # `За 3 часа она проедет …`
_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
# Where a sentence may end after its value: at once, after a unit of at most two words or six characters, and a copula.
_WORD = r"(?:(?![\u3040-\u309f])[^\W\d_]|[つり]|[\u0300-\u036f\u064b-\u0652\u0900-\u0dff\u0e00-\u0e7f])+"  # with its vowel signs
# What a place is not: `im Schnitt`, `en el peor caso`.
_ABSTRACT = (
    r"(?:schnitt|durchschnitt|mittel|fall|theorie|moment|anfang|beginn|praxis|regel|promedio|media|peor|mejor|caso"
    r"|teor[ií]a|principio"
    r"|inicio|momento|pr[aá]ctica|moyenne|cas|th[ée]orie|d[ée]but|instant|pratique|in[ií]cio|come[çc]o|pior|melhor|inizio"
    r"|peggiore|migliore|gemiddelde|begin|theorie|geval|ogenblik|best|beste|worst)(?![^\W\d_])"
)
_QUALIFYING = (
    r"(?:durchschnitt\w*|etwa|rund|plus|minus|total|beispiel|ejemplo|exemple|exemplo|esempio|alto|máximo|maximum|minimum|mínimo|lo|mucho|favor"
    r"|ejemplo|tanto|ahora|maintenant|adesso|anderen?|autres?|otros?|altri|outros?|rest[eo]?|hora)(?![^\W\d_])"
)
_END = re.compile(
    rf"(?P<before>(?:^|[\s,:=(]|[{_CJK}，、：\u0e00-\u0e7f]))(?:[€$£¥] ?)?{VALUE} ?"
    rf"(?P<unit>{_WORD}(?:/[a-z]+)?(?:²|³|\^\d)?\.?(?: {_WORD}(?:²|³|\^\d)?)?)?(?P<of> (?:de|d'|di|von|van|do|da|del) ?{_WORD})?"
    rf"(?P<rate>(?: (?:a|por|par|pro|per|al|na|setiap|kila|mỗi)(?: l[ae])?| à la) {_WORD})?"
    r"(?: (?:var|vardır|eder|olur|kalır|öder|ödemelidir|kazanır|gerekir|हैं?|थे|था|होगा|होगी|होंगे|बचे हैं|আছে|হবে|বাকি আছে))?"
    rf"(?: (?:en|in|auf|op|dans|nel|nella|na|no|sur|sul|sulla|em|à|für|mit|von|zu[mr]?|bei|beim|im|am|pour|avec|chez|au"
    rf"|aux|par|por|para"
    rf"|con|al|del|per|alla|allo|ai|alle|da|dal|com|pelo|pela|ao|do|voor|met|bij|van|w|na|dla|i|для|в|на|för|till|till)"
    rf"(?: (?:la|el|le|les|los|las|l'|der|die|das|dem|den|de|het|il|un|une|una|um|uma|een|ein|einen|einem|einer|sein\w*"
    rf"|ihr\w*|su|sus|son|sa|ses"
    rf"|suo|sua|lo|o|a|os|as|gli|i))? ?(?!{_ABSTRACT}|{_QUALIFYING})[^\W\d_']+(?:'[^\W\d_]+)?)?(?: (?:übrig|over|kvar"
    rf"|restantes?|rimanenti|restants?))?"
    rf"(?:'[^\W\d_]+)?(?: (?:no total|en total|en tout|in tutto|ao todo|au total|in totale|insgesamt|zusammen|in totaal"
    rf"|всего|łącznie|w sumie))?(?:(?:の\w{{1,8}}?)?[がを]\w{{0,6}}?(?:ます|ました))?(?: ?(?:です|だ|である|になる|となる"
    rf"|になります|となります|必要です|残ります|입니다|이다|예요|이에요))?\s*[.!。！।]?$"
)
_REFUSED = re.compile(
    "(?<![^\\W\\d_])(?:"
    + alternatives("""
    (?:d[ei]|sur?|von|aus) (?:uma?|une?|einer?) (?:totale?|gesamt[^\\W\\d_]*)/von insgesamt
    avoisin[^\\W\\d_]*/uns/umas/sui/sugli/sulle/l[áa] pel[ao]s/от силы/quelques?/rond[ae]n?/frôl[^\\W\\d_]*/autour/bordean?
    aproxim[^\\W\\d_]*
    approch[^\\W\\d_]*/sfior[^\\W\\d_]*/avvicin[^\\W\\d_]*/zirka/nahezu/rondom/benader[^\\W\\d_]*/nähert/grenzt/solo un
    apenas(?= ninguno)/tan s[óo]lo ya
    (?:zu|am) (?:beginn|anfang)/anfangs/ursprünglich/vor dem/vor der/dazu kommen/al principio/en un principio/inicialmente
    antes d[eo][^\\W\\d_]*
    au d[ée](?:part|but)/initialement/avant/all'inizio/inizialmente/prima di/in[íi]cio/inizio/aanvankelijk/vooraf/początkowo
    изначально/вначале
    (?:der|die|das) erste/le premier/la première/el primer/la primera/il primo/la prima/o primeiro/a primeira/första
    debían?/querían?/queriam?/wollten?/sollten?/devai(?:t|ent)/voulai(?:t|ent)/dovev[^\\W\\d_]*/volev[^\\W\\d_]*/deviam?/wilden?/moesten?
    sagt/meint/glaubt/behauptet/denkt/schätzt/dice/cree/piensa/afirma/dicen/creen/dit/croit/pense/prétend/affirme/pensa/crede/sostiene
    diz/acha/acredita/zegt/denkt/meent/beweert/говорит/думает/считает/утверждает/twierdzi/mówi/säger/tror/laut/selon/según/secondo
    segundo/volgens/według/enligt/по словам/par exemple/zum beispiel/por ejemplo/ad esempio/por exemplo/bijvoorbeeld/например
    wenn/falls/angenommen/sei/nehmen wir an/vielleicht/möglicherweise/wahrscheinlich/etwa/ungefähr/circa/ca/rund/fast
    knapp/nicht/kein/keine/keinen/nie/mindestens/höchstens/mehr als/weniger als/oder/aber/zwischen/zunächst/zuerst/durch
    vermutlich/bis/kaum/gut(?= \ue000)/grob/schätzungsweise/annähernd/pakweg/grosso modo/pressappoco/sensiblement/si
    supongamos/suponiendo/suponga/quizás?/tal vez/probablemente/posiblemente/aproximadamente
    alrededor de/unos/unas/casi/cerca de/nunca/al menos/como máximo/como mínimo/más de/menos de/pero/entre/primero
    puede que/no(?! total)/supposons/supposant/imaginons/peut-être/probablement/environ/presque/à peu près
    ne(?= [^,]*(?:plus|gu[èe]re|point|rien|aucun|nul))
    n'[^\\W\\d_]+/pas
    jamais/au moins/au plus/plus de/moins de/ou(?! seja)/mais/d'abord/par/pourrait/podría/podria/potrebbe/könnte/zou/se
    supponiamo/supponendo/forse/probabilmente/circa/quase/quasi/non/mai/almeno/al massimo/più di/meno di/o(?= \ue000)
    (?<=, )ma/ma(?! \ue000)/tra/fra/prima
    oppure/suponha/supondo/talvez/provavelmente/cerca/não/nunca/pelo menos/no máximo/mais de/menos de/mas/primeiro/als
    stel/misschien/waarschijnlijk/ongeveer/bijna/niet/geen/nooit/minstens/hoogstens/meer dan/minder dan/maar/of/tussen
    eerst/door/если/пусть/допустим/предположим/возможно/может быть/вероятно/примерно/около/почти/не/нет/ни/никогда
    değil[^\\W\\d_]*/m[ıuü](?:dır|dur|dür)?/yaklaşık/belki/eğer/yok[^\\W\\d_]*/en az/en fazla/fazla/daha/sanırım
    neredeyse/veya
    nie/czy/może/około/prawie/jeśli/gdyby/najmniej/najwyżej/więcej/mniej/ponad/lub/inte/kanske/ungefär/minst/högst
    nästan/eller
    bukan/tidak/jika/mungkin/sekitar/apakah/misalkan/setidaknya/paling/lebih/kurang/hampir/atau/tapi
    không/nếu/có thể/có lẽ/khoảng/giả sử/ít nhất/nhiều nhất/hơn/gần/hoặc/phải chăng/nhưng/chưa
    sio/siyo/kama/labda/takriban/karibu/zaidi/angalau/hana/haina/lakini/hawana
    नहीं/क्या/यदि/अगर/शायद/लगभग/मान/कम/अधिक/ज़्यादा/ज्यादा/करीब/या/न/না/নেই/নয়/কি/যদি/সম্ভবত/প্রায়/ধরি/কমপক্ষে/বেশি/অথবা
    هل/ليس/ليست/لا/إذا/ربما/حوالي/تقريبا/تقريبًا/لو/أكثر/أقل/نفترض/لن/لم/أو
    (?:ser|tendr|habr|costar|pagar|quedar|podr|valdr|recibir|ganar|dar)ían?
    (?:ser|aur|coûter|rester|pourr|paier|faudr)ai(?:ent|t)
    (?:sar|avr|potr|coster|pagher)ebbe(?:ro)?/(?:ser|ter|custar|poder|pagar|haver)iam?/würden?/wären?/hätten?/zouden/бы/б
    länger/kürzer/mehr/weniger/älter/jünger/größer/kleiner/schneller/teurer/billiger/schwerer/más/menos/mayor/menor
    moins/meno/più
    mais/meer/minder/langer/korter/больше/меньше/старше/моложе/дороже/дешевле/длиннее
    хотя бы/по крайней мере/не более/не менее/больше чем/меньше чем/более/менее/или/но/между/сначала/на
""")
    + ")(?![^\\W\\d_])|(?:multipli[zck]|dividi|divid[aeo]|divis[eoé]|diviser|addi[eo]r|subtrah|teilen wir|teilt man|ajout"
    "|soustra|restamos|sumamos|sommiamo|dele[nr] |раздел|умнож|слож|вычт|прибав"
    "|wir (?:teilen|nehmen|rechnen|addieren|ziehen|müssen)|zie(?:hen|ht) |delen we)"
    "|หรือ|ไหม|ไม่|ถ้า|อาจ|ประมาณ|สมมติ|อย่างน้อย|มากกว่า|น้อยกว่า|เกือบ|ราว|นอกจาก"
    "|[^\\s，。]*(?:多|余|餘|来)[。.]?$|とは|限ら|지도|모르|모릅|나 되|넘|못|一开始"
    "|起初|最初|처음|원래|はじめ|始め|元々|もともと|好像|似乎|应该"
    "|應該|估计|估計|据说|據說|号称|左右|看来|看似|勉强|几乎|将近|接近|本来|原来|原本|预计|ほど|くらい|ぐらい|程度|前後|らしい|ようだ|そうで|はず|ないし|見込|予定|つもり|쯤|정도|가량|남짓|듯|같|예정|예상|계획"
    "|如果|假设|假如|設|设|若|可能|也许|大概|大约|约|約|左右|不是|不等于|没有|至少|最多|超过|多于|少于|不足|以上|以下|不到|或者?|但|乘以?|除以|加上|减去|接下来|首先|先"
    "|もし|仮に|たぶん|おそらく|かもしれ|では|じゃな|ません|未満|割る|割り|かける|掛け|足す|足し|引く"
    "|引き|次に|まず|만약|아마|약 |아니|아닙|이상|이하|나누|곱하|더하|빼"
)
_ASKS = re.compile(r"[?？؟]|吗|嗎|呢|か[。.]?$|까[?.]?$")
# Units of measure by how they begin, in English: a unit that is none of these says nothing about a number.
_MEASURES = [
    (re.compile(pattern), name)
    for pattern, name in (
        (r"stunden?|horas?|heures?|or[ae]|uur|uren|час(?:а|ов)?|小时|小時|個小時|个小时|時間|시간", "hours"),
        (r"minut\w*|минут\w*|分钟|分鐘|分|분", "minutes"),
        (r"sekunden?|segundos?|secondes?|second[oi]|seconden?|секунд\w*|秒钟?|초", "seconds"),
        (r"tage?n?|d[ií]as?|jours?|giorn[oi]|dias?|dagen|дн(?:я|ей)|день|天|日", "days"),
        (r"kilom\w*|километр\w*|公里|千米|キロメートル", "km"),
        (r"(?:zentim|cent[ií]m|centim)\w*|сантиметр\w*|厘米|センチ\w*", "cm"),
        (r"(?:quadratzentimeter\w*|cent[ií]m\w* (?:cuadrados|carrés|quadrat\w|quadrados)|平方厘米)", "cm^2"),
        (r"(?:quadratmeter\w*|m[eèé]tr\w* (?:cuadrados|carrés|quadrat\w|quadrados)|平方米)", "m^2"),
        (r"met(?:er|ers|ri|ros?|re|ro)|mètres?|metros?|метр\w*|米|メートル|미터", "m"),
        (r"kilogram\w*|килограмм\w*|公斤|千克|キロ", "kg"),
        (r"gramm?\w*|грамм\w*|克|グラム", "g"),
        (r"cents?|centimes?|centavos?|céntimos?|центов|美分|セント", "cents"),
        (r"prozent|por ciento|pour ?cent|per cento|por cento|procent|процент\w*|パーセント|퍼센트", "%"),
        (r"grad|grados?|degrés?|gradi|graus?|graden|градус\w*|度", "°"),
    )
]
_DECIMAL_COMMA = re.compile(r"([-−]?[^\d\s]?\s?)(\d{1,3}(?:[. ]\d{3})*|\d+),(\d{1,2})(\s?[^\d\s]?)")
_MONEY = re.compile(r"euros?|€|pesos?|reais|dólares|dollars?|dollari|доллар\w*|рубл\w*|kronor")
_DOTTED = re.compile(r"(\D*)(\d{1,3}(?:\.\d{3})+)(\s?\D?)")


def find_foreign_value(sentence: Sentence) -> str | None:
    """The value with which a sentence of another language ends, if a unit follows it or a copula stands before it."""
    text = sentence.text
    ended = _END.search(text)
    if ended is None or OPAQUE in text or _ASKS.search(text) or _REFUSED.search(text):
        return None
    value, unit = sentence.values[text.count(VALUE, 0, ended.start())], (ended["unit"] or "").strip(". ")
    value = value.removeprefix("R")  # of `R$`
    money = re.search(r"[$€£¥%°]", value) is not None
    before = text[: ended.start("before") + len(ended["before"])]
    if "=" not in value and not (
        _STATED.search(before) or (_INTRODUCED.sub("", text).count(VALUE) == 1 and _ANY_VERB.search(before))
    ):
        return None
    number, name = _read_number(value, bool(_MONEY.fullmatch(unit)) or money), _name_unit(unit)
    return number + name if name in ("%", "°") else append_unit(number, name)


def _read_number(value: str, is_money: bool) -> str:
    """The number with a decimal point; three decimals of money are thousands."""
    if found := _DECIMAL_COMMA.fullmatch(value):
        return f"{found[1]}{re.sub('[. ]', '', found[2])}.{found[3]}{found[4]}"
    if is_money and (dotted := _DOTTED.fullmatch(value)):
        return dotted[1] + dotted[2].replace(".", "") + dotted[3]
    return value


def _name_unit(unit: str) -> str:
    return next((name for pattern, name in _MEASURES if pattern.fullmatch(unit)), "")
