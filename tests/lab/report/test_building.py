"""The report as a file: what is in it, what it costs, and what a page made of hostile texts does in a real browser."""

import base64
import json
import re
import shutil
import subprocess
import zlib
from itertools import product

import numpy as np
import pytest
from helpers.analyses import write_analysis, write_run
from helpers.pairs import ROOT, TableTokenizer

from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import ArgumentError, ResultsError, RunDirError
from lm_eval_takeover.lab.report.inputs import read_figure
from lm_eval_takeover.lab.report.story import WordCounts, _tell_places
from lm_eval_takeover.runs.run_reader import RunReader

HOSTILE = [
    "</script><script>console.log('broken out')</script>",
    "</style><img src=x onerror=console.log(1)>",
    "\u202eevil\u2066",
    "\ud800",
    "<b>bold</b>&amp;",
    "x" * 200_000,
    "<!--<script>",
]
WORDS = [" the", " of", " and", "\n", " 12", " so", " then", *HOSTILE]


def write_report(folder, *options, out=None):
    out = out or folder / "report.html"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunReader, "load_tokenizer", lambda *_: TableTokenizer(WORDS))
        assert main(["report", str(folder / "analysis"), "--out", str(out), *options]) == 0
    return out


def write_small(folder, texts, problem="What is $x^2$ for $x = 3$?", docs=4, answer="\\frac{9}{1}"):
    """Base and guided by 4 problems, of which the first is rescued and the second harmed; 8 samples of 40 tokens."""
    random = np.random.default_rng(0)
    base, guided = {}, {}
    for doc in range(docs):
        for number in range(8):
            tokens = random.integers(0, texts, 40)
            other = tokens.copy()
            other[20:] = random.integers(0, texts, 20)
            other[5], other[20] = tokens[5], (tokens[20] + 1) % texts
            base["toy", doc, number] = tokens, {}, doc == 1, "8"
            taken = {5: int(tokens[5]), 20: int(tokens[20]), 30: (int(other[30]) + 1) % texts}
            guided["toy", doc, number] = other, taken, doc == 0, answer
    problems = {("toy", doc): (f"{problem} ({doc})", answer) for doc in range(docs)}
    write_run(folder / "base", "base", base, problems)
    write_run(folder / "guided", "disagreement", guided, problems, target=0.05)
    write_analysis(folder / "analysis", folder / "base", folder / "guided")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A report of ordinary texts."""
    write_small(folder := tmp_path_factory.mktemp("small"), 7)
    return write_report(folder)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A report of texts that would like to be more than texts."""
    problem = "</script><script>console.log('out')</script> $\\href{javascript:alert(1)}{x}$ \\[\\unknown\\] \u202e"
    answer = "</style><script>console.log(2)</script>\\x\u202e"
    write_small(folder := tmp_path_factory.mktemp("hostile"), len(WORDS), problem + "y" * 200_000, 2, answer)
    return write_report(folder)


def read_index(path):
    found = re.search(r'<script type="application/json" id="index">(.*?)</script>', path.read_text(), re.DOTALL)
    return json.loads(found[1])


def read_rollout(path, number):
    """The rollout, and its columns `[4, tokens]`."""
    found = re.search(rf'data-rollout="{number}">([^<]*)<', path.read_text())
    packed = json.loads(zlib.decompress(base64.b64decode(found[1])))
    return packed, np.array([packed[name] for name in ("score", "host_logprob", "donor_logprob", "rank")], float)


def test_a_rollout_is_packed_with_all_that_is_shown_of_it_and_a_rate_off_the_asked_one_is_marked(small):
    index = read_index(small)
    assert [run["name"] for run in index["runs"]] == ["base", "guided"]
    assert (index["base"], index["compared"]) == (0, 1)
    samples = [sample for problem in index["problems"] for run in problem["runs"] for sample in run]
    assert {sample[-1] for sample in samples} == {*range(64)}
    header, (score, host, donor, rank) = read_rollout(small, index["problems"][0]["runs"][1][0][-1])
    assert header["taken"] == [5, 20, 30] and header["same"] == [5]
    assert header["host"].keys() == {"20", "30"}
    assert all(3 <= score[place] <= 5 and rank[place] == 5 for place in header["taken"])
    assert np.abs(-host - score).max() <= 0.002 and np.abs(-donor - score / 8).max() <= 0.002
    unscored, columns = read_rollout(small, index["problems"][0]["runs"][0][0][-1])
    assert unscored["taken"] == [] and np.isnan(columns[0]).all()
    text = small.read_text()  # 3 takeovers of 40 tokens, and 2 were asked for
    assert ">7.5% †</td>" in text and "guided: the guide wrote 7.5% of the tokens. 25.0% of its answers" in text


def test_the_page_opens_with_a_picture_the_mean_and_what_it_means(tmp_path):
    """Rows of a comparison. Of two tasks one has longer texts: the rate is a share of all tokens, in headline and table."""
    random, names = np.random.default_rng(0), {"base": 2, "random": 2, "guided": 5, "guide": 7, "thinking": 6}
    problems = {(task, doc): ("?", "8") for task in ("takeover_gsm8k", "takeover_amc23") for doc in range(9)}
    for name, right in names.items():
        rollouts = {}
        for (task, doc), number in product(problems, range(8)):
            tokens = random.integers(0, 7, 20 if task == "takeover_gsm8k" else 60)
            taken = {3: 0} if name in ("random", "guided") else {}
            rollouts[task, doc, number] = tokens, taken, number < right + doc % 2, "8"
        policy = {"guided": "disagreement", "thinking": "guide"}.get(name, name)
        write_run(tmp_path / name / "samples", policy, rollouts, problems)
    recovery = {"acc": 0.75, "acc_low": 0.5, "acc_high": 1.25, "pass8": None, "pass8_low": None, "pass8_high": None}
    kept = [{"model": name, "reference": "thinking", "recovery": recovery if name == "guided" else {}} for name in names]
    (tmp_path / "leaderboard.json").write_text(json.dumps({"rows": kept, "warnings": ["rows differ in <seed>"]}))
    write_analysis(tmp_path / "analysis", *(tmp_path / name / "samples" for name in names))
    text = write_report(tmp_path).read_text()
    shown = text[text.index('id="good"') : text.index('id="where"')]
    lead, picture, table, costs, tasks = (shown.index(part) for part in ("lead", "<svg", "<table", "Guide passes", "<details"))
    assert lead < picture < table < costs < tasks < shown.index(">takeover_amc23<") and shown.count("<svg") == 1
    rows = re.findall(r"<tr[^>]*><td>(\S+)</td><th scope=\"row\">(\w+)</th>", shown)
    tasks = ("mean", "takeover_amc23", "takeover_gsm8k")
    assert [task for task, _ in rows] == [task for task in tasks for _ in names] and {name for _, name in rows} == {*names}
    assert "guided: the guide wrote 2.5% of the tokens. 68.1% of its answers are correct; base 30.6%" in shown
    assert shown.count(">2.5%</td>") == 2  # of random and guided; by task 5.0 and 1.7
    (row,) = json.loads((tmp_path / "analysis" / "budget.json").read_text())[-3:-2]
    assert (row["task"], row["run"]) == ("mean", "guided") and f"{row['acc']:.1%}\n[{row['acc_low']:.1%}, " in shown
    assert ">Recovery against thinking, Acc<" in shown
    assert shown.count('data-name="Recovery against thinking, Acc">75%\n[50%, 125%]<') == 1  # of the mean alone
    (line,) = re.findall(r"Guide passes per token: ([^<]*)\.</p>", shown)
    assert all(f"{name} " in line for name in names) and "Tokens per second" in line
    assert ">rows differ in &lt;seed&gt;<" in shown  # what compare warned of
    kept[0]["tasks"] = {"takeover_gsm8k": {"acc": 0.0}}
    (tmp_path / "leaderboard.json").write_text(json.dumps({"rows": kept, "warnings": []}))
    assert "Recovery against" not in write_report(tmp_path).read_text()  # its verdicts are not those of today
    table = tmp_path / "analysis" / "budget.json"
    table.write_text(table.read_text().replace('"acc": 0.3', '"acc": 0.2'))
    with pytest.raises(ResultsError, match="has other verdicts than its runs have now; run lm-eval-takeover analyze again"):
        write_report(tmp_path)


def test_runs_of_two_comparisons_meet_by_document_and_none_has_the_recovery_of_the_other(tmp_path):
    """`guided` has its own leaderboard, half the samples, and first a problem that `base` was not asked."""
    tokens = np.arange(20) % 7
    for name, documents, count in (("base", ["first", "second"], 8), ("guided", ["other", "first"], 4)):
        problems = {("toy", number): (problem, problem) for number, problem in enumerate(documents)}
        right = documents.index("first")
        rollouts = {(*key, sample): (tokens, {}, key[1] == right, "8") for key in problems for sample in range(count)}
        write_run(tmp_path / name / name / "samples", "disagreement" if name == "guided" else name, rollouts, problems)
        rows = [{"model": each, "reference": "guide", "recovery": {"acc": 0.11}} for each in ("base", "guided")]
        (tmp_path / name / "leaderboard.json").write_text(json.dumps({"rows": rows, "warnings": [f"of {name}"]}))
    write_analysis(tmp_path / "analysis", *(tmp_path / name / name for name in ("base", "guided")))
    text = (report := write_report(tmp_path)).read_text()
    held = {problem["problem"]: [len(run) for run in problem["runs"]] for problem in read_index(report)["problems"]}
    assert held == {"first": [8, 4], "second": [8, 0], "other": [0, 4]}
    assert "Recovery against" not in text and "of base" not in text and "of guided" not in text
    assert ">Pass@k<" in text and "Pass@8" not in text and "k = 8: 50.0%" in text and "k = 4: 50.0%" in text


def test_a_takeover_whose_host_was_not_asked_is_not_told_as_changed():
    places = [0.1, 0.5]
    assert "1 of them changed the token" in _tell_places(places, WordCounts({(3, 5): 1}))
    assert _tell_places(places, WordCounts({(-1, 5): 2})) == "2 takeovers: 50% stand in the first quarter of an answer."


def test_what_is_embedded_fits_and_tells_which(small, tmp_path):
    limit, part = round((small.stat().st_size - 12_000) / 1e6, 3), tmp_path / "part.html"
    write_report(small.parent, "--max-size", str(limit), out=part)
    assert part.stat().st_size <= limit * 1e6
    index = read_index(part)
    kept = [[[sample[0] for sample in run if len(sample) > 6] for run in problem["runs"]] for problem in index["problems"]]
    embedded = sum(len(run) for problem in kept for run in problem)
    assert 8 <= embedded < 64
    assert f"{embedded} of 64 answers are in this file" in part.read_text()
    assert all(base == guided and base for base, guided in kept)  # a sample is there with the base's, and one of each problem
    assert len(kept[0][0]) >= len(kept[2][0])  # what changed comes first
    with pytest.raises(ArgumentError, match=r"--max_size 0.1: the page needs 0\.\d MB before any answer is in it"):
        write_report(small.parent, "--max-size", "0.1", out=part)


def test_figures_hold_nothing_but_shapes_and_texts(tmp_path):
    path = tmp_path / "budget.svg"
    path.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" onload="x()" width="3">'
        '<style>*{}</style><script>x()</script><a xlink:href="javascript:x()"><path/></a><foreignObject/>'
        '<g id="a" style="fill: #000000; font: 9px sans; clip-path: url(#c); stroke: url(http://x)"><use xlink:href="#m"/>'
        '<use xlink:href="http://x"/><title>&lt;p&gt;<text>x</text></title><text>&lt;b&gt;</text></g></svg>'
    )
    assert read_figure(path) == (
        '<svg role="img" aria-label="Accuracy against the share of tokens taken over">'
        '<g id="budget-a" fill="currentColor" font-size="9" clip-path="url(#budget-c)"><use href="#budget-m" />'
        "<use /><title>&lt;p&gt;</title><text>&lt;b&gt;</text></g></svg>"
    )


def test_no_text_leaves_its_place_in_the_file(hostile):
    """What runs is told by its digest; a text ends no element, and no byte of the file is out of UTF-8."""
    text = hostile.read_bytes().decode()
    kinds = re.findall(r"<script([^>]*)>", re.sub(r"<script>.*?</script>", "<script></script>", text, flags=re.DOTALL))
    assert kinds.count("") == 2 and len(kinds) == 3 + 32
    assert text.count("</style>") == 1 and "\u202e" not in text
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src &#39;none&#39;; script-src &#39;sha256-") and "unsafe" not in policy
    assert not re.search(r"""\b(?:src|href)=["']?(?:https?:|//)""", re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL))


@pytest.mark.parametrize("text", ["<g>" * 20_000 + "</g>" * 20_000, " " * 2**24, "x"], ids=["deep", "large", "no figure"])
def test_a_figure_is_bounded(tmp_path, text):
    path = tmp_path / "lorenz.svg"
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg">{text}</svg>' if text != "x" else text)
    with pytest.raises(ArgumentError, match="run lm-eval-takeover analyze again"):
        read_figure(path)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda folder: shutil.rmtree(folder / "analysis"), ArgumentError, "holds no analysis.json of analyze and no run"),
        (lambda folder: (folder / "analysis/analysis.json").write_text("{"), ResultsError, "analysis.json' is not JSON"),
        (lambda folder: shutil.rmtree(folder / "guided"), RunDirError, "guided' is not a folder; expected one that"),
    ],
    ids=["none", "broken", "moved"],
)  # fmt: skip
def test_what_cannot_be_reported_is_said(small, tmp_path, change, error, message):
    folder = shutil.copytree(small.parent, tmp_path / "all")
    change(folder)
    with pytest.raises(error, match=message):
        main(["report", str(folder / "analysis"), "--out", str(tmp_path / "x.html")])
    assert not (tmp_path / "x.html").exists()


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, which is not here")
def test_the_scripts_own_tests_pass():
    """Those of this page, and of the server's."""
    done = subprocess.run(["node", "--test", *(ROOT / "tests").rglob("*.test.js")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


FOCUSED = "document.activeElement.dataset.at"
TOO_WIDE = "document.documentElement.scrollWidth - innerWidth"
TYPE = """globalThis.type = (id, value) => {
    const field = document.querySelector(`#filters #${id}`);
    field.value = value;
    field.dispatchEvent(new Event("input"));
}"""


def test_a_problem_is_found_read_by_keys_and_linked(browser, small):
    browser.messages.clear()
    browser.look(1280, 900, "light")
    browser.open(small.as_uri())
    browser.evaluate(TYPE)
    browser.evaluate("type('find', '#1')")
    assert browser.evaluate(TOO_WIDE) <= 0
    assert browser.evaluate("grid.tBodies[0].innerText").split()[:2] == ["toy", "#1"]
    assert browser.evaluate("grid.tBodies[0].rows.length") == 1
    browser.evaluate("type('find', ''), type('change', 'rescued')")
    assert browser.evaluate("grid.tBodies[0].rows.length + grid.tBodies[0].rows[0].innerText.split(/\\s/)[1]") == "1#0"
    browser.evaluate("document.querySelectorAll('#grid tbody button')[1].click()")
    browser.wait_for("!rollout.hidden")
    for width, height, theme in ((390, 844, "dark"), (1280, 900, "light")):
        browser.look(width, height, theme)
        assert browser.evaluate(TOO_WIDE) <= 0
    assert browser.evaluate("document.querySelectorAll('#problem math').length") == 2
    assert browser.evaluate("document.querySelectorAll('#answers math').length") == 2
    assert "✗ incorrect: differs from the gold answer" in browser.evaluate("answers.innerText")
    assert browser.evaluate("document.querySelector('.same h4').innerText") == "Both, up to token 20"
    places = []
    for key in "nnnp":
        browser.press(key)
        places.append(browser.evaluate(FOCUSED))
    assert places == ["5", "20", "30", "20"]
    assert "score (ce)" in browser.evaluate("facts.innerText") and "> tau 2.00" in browser.evaluate("facts.innerText")
    browser.press("ArrowRight")
    assert browser.evaluate(FOCUSED) == "21"
    place = browser.evaluate("location.href")
    browser.press("?")
    assert browser.evaluate("document.querySelector('#help').open")
    browser.press("Escape")
    browser.open("about:blank")
    browser.open(place)
    assert browser.wait_for(FOCUSED) == "21"
    browser.press("j")
    browser.wait_for("!document.querySelector('#rollout-title').innerText.startsWith('toy #0')")
    assert browser.messages == []


def test_hostile_texts_are_texts(browser, hostile):
    browser.messages.clear()
    browser.look(390, 844, "dark")
    browser.open(hostile.as_uri() + "#task=toy&doc=0&sample=0&run=guided&token=20")
    browser.wait_for(FOCUSED)
    assert browser.evaluate("document.querySelectorAll('main script, main img, main a[href^=javascript]').length") == 0
    shown = browser.evaluate("document.querySelector('#problem').innerText")
    assert "<script>console.log('out')</script>" in shown and "\\u202e" in shown and "\u202e" not in shown
    code = browser.evaluate("[...document.querySelectorAll('#problem code')].map((node) => node.innerText)")
    assert code[-1] == "\\[\\unknown\\]"
    for part in ("#show", "header"):
        assert browser.evaluate(TOO_WIDE) <= 0
        browser.evaluate(f"document.querySelector('{part}').scrollIntoView()")
    assert browser.evaluate(TOO_WIDE) <= 0 and browser.messages == []
