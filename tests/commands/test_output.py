"""What commands print, and what they load: tables at any width, and model arguments of all commands."""

import json
import logging
import re
from typing import get_type_hints

import pytest
from helpers.printed_numbers import check_numbers
from helpers.results import takeover, write_results
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.arguments import KINDS, ModelArguments, write_words
from lm_eval_takeover.cli import main
from lm_eval_takeover.commands._options import LOADING, PAIR, read_loading, read_stored_pair
from lm_eval_takeover.commands._output import WRITERS, Table
from lm_eval_takeover.commands.compare import planning
from lm_eval_takeover.commands.compare.comparison import read_comparison
from lm_eval_takeover.commands.compare.planning import read_workload
from lm_eval_takeover.commands.compare.rows import plan_calls, plan_rows
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.escaping import for_csv, for_latex, for_markdown, for_terminal, make_notices_visible
from lm_eval_takeover.results.files import MATHEMATICAL


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Five runs of six tasks, and of a task of one's own."""
    folder = tmp_path_factory.mktemp("runs")
    tasks = [task for task in MATHEMATICAL if not task.endswith("_100")]
    shifts = {"base": 0, "random": 1, "disagreement": 4, "guide": 5}
    for policy, shift in shifts.items():
        counts = {task: [(3 * i + shift * j) % 9 for i in range(17 + j)] for j, task in enumerate(tasks)}
        run = takeover(policy, parameters={"base": 460_000, "guide": 1_610_000})
        write_results(folder / policy, counts, run=run)
    write_results(folder / "own", {"my_own_puzzles_of_three": [0, 1, 2, 3, 3]}, run=takeover(seed=3), samples=3)
    main(["regress", str(folder / "base"), "--baseline", str(folder / "b.json"), "--update"])
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["leaderboard", "{runs}", "--columns", "intervals", "maj8", "cost"],
        ["leaderboard", "{runs}", "--vs", "{runs}/base"],
        ["leaderboard", "--published"],
        ["regress", "{runs}/random", "--baseline", "{runs}/b.json", "--metric", "acc", "pass@8", "--allow", "policy", "rate",
         "score", "tau", "kappa", "window"],
        ["regress", "--baseline", "{runs}/b.json", "--plan", "--tasks", "takeover_amc23"],
    ],
    ids=["all-columns", "versus", "published", "regress", "plan"],
)  # fmt: skip
def test_every_number_of_a_table_is_whole_and_of_the_json(runs, printed, answered, monkeypatch, words):
    words = [word.format(runs=runs) for word in words]
    status, document = answered(*words, statuses=(0, 1))
    for width in (60, 160):
        monkeypatch.setenv("COLUMNS", str(width))
        shown = printed(*words, status=status)
        # A path of the machine has no place to be folded.
        assert max(len(line) for line in shown.splitlines() if "/" not in line.replace(" / ", "")) <= width
        check_numbers(shown, document, least=6)


SPECIAL = "\x1b\x9b\r\n\x85\u2028\u202e\\{}%$&#_^~<>|[]()!`=+-@a1 "
HOSTILE = st.text(max_size=40) | st.text(alphabet=SPECIAL, max_size=30)


@given(HOSTILE)
def test_no_text_acts(text):
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202a-\u202e\u2066-\u2069]", for_terminal(text))
    latex = for_latex(text)
    assert len(latex.splitlines()) <= 1
    assert not re.search(r"(?<!\\)[%&#$_]", latex) and not re.search(r"\\(?![\^%&#$_{}]|text)", latex)
    markdown = for_markdown(text)
    assert len(markdown.splitlines()) <= 1 and "<" not in markdown and not re.search(r"(?<!\\)(\\\\)*[|`\[]", markdown)
    assert str(for_csv(text)).lstrip()[:1] not in ("=", "+", "@")


def test_tables_of_all_formats_are_inert():
    table = Table(["Model", "Acc"], [[name := "\x1b[31m<img src=x onerror=y>\n\\input{/etc/passwd}", "1.0"]], notes=[name])
    written = {form: write(table) for form, write in WRITERS.items()}
    assert "\x1b" not in "".join(written.values()) and "<img" not in written["md"] and r"\input{" not in written["latex"]
    assert all(line.startswith(("%", "\\")) or "&" in line for line in written["latex"].splitlines())


def test_ordinary_texts_stay_and_others_are_seen():
    for show in (for_terminal, for_markdown, for_csv):
        assert show("Qwen3-0.6B + Qwen3-8B, größer, 20.5 %") == "Qwen3-0.6B + Qwen3-8B, größer, 20.5 %"
    assert for_terminal("a\x1b[31m\u202eb\ud800\tc\n") == "a\\u001b[31m\\u202eb\\ud800\tc\n"
    assert for_terminal("::error::x\n a ##[debug] b::c") == "\\::error::x\n a \\##[debug] b::c"
    assert for_terminal("\ufffe\uffff") == "\\ufffe\\uffff"
    assert for_csv("=HYPERLINK(1)") == "'=HYPERLINK(1)" and for_csv(-0.5) == -0.5 and for_csv(None) is None


def test_notices_have_no_control_characters_whoever_writes_them(caplog, capsys):
    ours = logging.getLogger("lm_eval_takeover")
    make_notices_visible(), make_notices_visible()
    logger = logging.getLogger("lm_eval_takeover.anything")
    logger.warning("calibration '%s' fits, %d times", "\x1b[2J\u202ex", 2)
    assert caplog.messages == ["calibration '\\u001b[2J\\u202ex' fits, 2 times"]
    ours.parent = logging.Logger("nobody listens")
    logger.warning("once \x07")
    logger.info("not shown")
    assert capsys.readouterr().err == "once \\u0007\n"


LOADS = [name for name, kind in KINDS.items() if kind.loads and name not in PAIR]
HINTS = get_type_hints(ModelArguments)


def choose_value(name):
    """A value that the argument does not have by default, as JSON has it."""
    if bool in (kinds := getattr(HINTS[name], "__args__", (HINTS[name],))):
        return True
    return {"quant_method": "bitsandbytes", "load_in_4bit": True} if "quantization" in name and str not in kinds else "float32"


def check(parsed, name, value):
    given = parsed if isinstance(parsed, ModelArguments) else ModelArguments.parse(parsed)
    assert getattr(given, name) == value, name


@pytest.fixture(scope="module")
def loads(tmp_path_factory, parse):
    """The work of the demo task, whatever the models are."""
    words = ["compare", "--tasks", "takeover_demo", "--run_dir", str(tmp_path_factory.mktemp("run")), "--rows", "base"]
    return read_workload(read_comparison(parse(*words)))


@pytest.mark.parametrize("name", LOADS)
def test_an_argument_reaches_the_models_of_calibrate_score_and_effects(name, parse):
    value = choose_value(name)
    words = ["--model_args", json.dumps({name: value})]
    calibrate = ["calibrate", "--prompts", "p", "--out", "o.json"]
    check(read_loading(parse(*calibrate, *words)), name, value)
    if name in LOADING:
        option = [f"--{name}", *([] if value is True else [value])]
        check(read_loading(parse(*calibrate, *option)), name, value)
        check(read_stored_pair(parse("score", "run", *option)), name, value)
    for stored in (["score", "run"], ["effects", "run", "--out", "o"]):
        check(read_stored_pair(parse(*stored, *words)), name, value)


@pytest.mark.parametrize("name", LOADS)
def test_an_argument_of_compare_reaches_its_rows_and_their_calibration(name, parse, tmp_path, monkeypatch, demo_pair, loads):
    value, loaded = choose_value(name), []
    words = ["compare", "--tasks", "takeover_demo", "--run_dir", str(tmp_path), "--rows", "guided", "--target_rate", "0.07"]
    words += ["--base", str(DEMO["base"]), "--guide", str(DEMO["guide"])]
    written = json.dumps(value) if isinstance(value, dict) else value
    asked = read_comparison(parse(*words, "--model_args", f"{name}={written}"))
    (row,) = plan_rows(asked)
    monkeypatch.setattr(planning, "load_pair", lambda given: loaded.append(given) or demo_pair)
    plan = planning.plan_calibration(asked, [row], loads)
    check(loaded[0], name, value)
    check(read_loading(parse("calibrate", *write_words(plan.options))), name, value)
    (call,) = plan_calls(asked, row, plan.calibration)
    given = call.options["model_args"] | {key: each for key, each in call.options.items() if key in LOADING}
    check({key: each for key, each in given.items() if KINDS[key].loads}, name, value)
