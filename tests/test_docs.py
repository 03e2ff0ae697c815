"""README.md and docs/ say what the code does: tables, links, names of files, and every command in a code block."""

import re
import shlex
import shutil
import sys
import textwrap
import tomllib

import pytest
import write_docs_tables
import yaml
from helpers.pairs import ROOT
from helpers.results import takeover, write_results
from helpers.stock import parse_stock

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.compare.comparison import read_comparison
from lm_eval_takeover.commands.compare.running import check_rows
from lm_eval_takeover.pair.policy_choice import parse_arguments
from lm_eval_takeover.runs.parquet import TRACE_SCHEMA
from lm_eval_takeover.storage.files import CALIBRATIONS, TASK_CONFIGS
from lm_eval_takeover.tasks.verdicts import list_metrics

README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]
of_every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")


def first_cells(text, header):
    """All names in backticks in the first column of the tables with this header, as a list: a name twice is there twice."""
    names = []
    for table in re.findall(rf"^\| {re.escape(header)} \|.*\n\|[-:| ]+\n((?:\|.*\n?)*)", text, re.MULTILINE):
        for row in table.splitlines():
            names += re.findall(r"`([^`]+)`", row.split("|")[1])
    return names


def code_blocks(text):
    """The fenced and the indented blocks of code of a page, in their order."""
    found = re.finditer(r"^```\w*\n(.*?)^```$|((?:^    [^\n]*\n)+)", text, re.MULTILINE | re.DOTALL)
    return [block[1] or textwrap.dedent(block[2]) for block in found]


def commands(text, *programs):
    """The words of each command in a page's code, from the program's name on; without settings of the environment before it."""
    found = []
    for block in code_blocks(text):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            try:
                words = shlex.split(line, comments=True)
            except ValueError:  # no command
                continue
            while words and re.match(r"[A-Z_]+=", words[0]):
                words = words[1:]
            if words[:2] == ["accelerate", "launch"]:
                words = words[words.index("-m") + 1 :]
            words = words[: next((i for i, word in enumerate(words) if word in (">", "|")), len(words))]
            if words and words[0] in programs:
                found.append(words)
    return found


def named_files(text):
    """The blocks of Python that say in their first line which file they are, and other files that a line before them names."""
    blocks = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    others = re.findall(r"`([\w/-]+\.(?:jsonl|yaml))`[^\n]*:\n\n```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return {name: f"# {name}\n{code}" for name, code in blocks} | dict(others)


def test_what_scripts_write_is_fresh(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["write_docs_tables.py", "--check"])
    assert write_docs_tables.main() == 0, f"{capsys.readouterr().err}\nrun `python scripts/write_docs_tables.py`"


def test_tables_of_pages_name_all_that_there_is_and_no_more():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    package = ROOT / "lm_eval_takeover"
    modules = [path.name for path in package.glob("*.py") if path.name != "__init__.py"]
    configs = [yaml.safe_load(path.read_text().replace("!function", "")) for path in TASK_CONFIGS.glob("*.yaml")]
    tasks = {config["task"] for config in configs if isinstance(config.get("task"), str)}
    draws = {task for task in tasks if re.search(r"_\d+0$", task)}
    for page, header, names in (
        ("tasks.md", "task", tasks - draws),
        ("tasks.md", "group", {config["group"] for config in configs if "group" in config}),
        ("tasks.md", "metric", [metric["metric"] for metric in list_metrics(8)]),
        ("runs.md", "column", TRACE_SCHEMA.names),
        ("install.md", "dependency", {re.match(r"[\w-]+", one)[0] for one in wanted} - {project["name"]}),
        ("contributing.md", "source folder", [*modules, *(f"{path.parent.name}/" for path in package.glob("*/__init__.py"))]),
    ):
        assert sorted(first_cells((DOCS / page).read_text(), header)) == sorted(names), page
    assert draws == set(re.findall(r"`(takeover_\w+_\d+0)`", (DOCS / "tasks.md").read_text()))


def test_every_page_is_in_both_indexes():
    for index, folder in ((README, "docs/"), (DOCS / "README.md", "")):
        linked = set(re.findall(rf"\]\({folder}([\w/-]+\.md)\)", index.read_text()))
        pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
        assert pages - {"README.md"} <= linked


@of_every_page
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert heading in [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings], target


@of_every_page
def test_scripts_make_targets_and_names_in_files_are_there(page):
    text = page.read_text()
    for file in re.findall(r"\b(?:benchmarks|scripts|tests|lm_eval_takeover)/[\w/]+\.\w+", text):
        assert (ROOT / file).exists(), file
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert {word for words in commands(text, "make") for word in words[1:]} <= {*targets}
    found = re.findall(r"`([\w.]+)`(?: and `([\w.]+)`)? in \[`[^`]+`\]\(([^)]+\.(?:py|yaml))\)", text)
    for *names, target in found:
        for name in filter(None, names):
            defined = rf"(?:^task: |\b(?:def|class) |^){re.escape(name.rpartition('.')[2])}\b"
            assert re.search(defined, (page.parent / target).read_text(), re.MULTILINE), f"{name} in {target}"
    assert page.name != "contributing.md" or len(found) >= 7


@of_every_page
def test_options_in_commands_exist_and_runs_ask_as_their_calibration_was_measured(page, parse):
    """A file that a page's `calibrate` writes is used for the same pair, form of prompts and rates, on its page or the README."""
    made = {}
    for source in dict.fromkeys([README, page]):
        for words in commands(source.read_text(), "lm-eval-takeover"):
            options = parse(*words[1:])
            if words[1] == "calibrate" and options.out is not None:
                made[str(options.out)] = options
            if words[1] == "compare" and source == page:
                check_rows(read_comparison(options))
    tasks = {path.stem for path in TASK_CONFIGS.glob("*.yaml")} | {"gpqa_diamond_zeroshot"}  # of lm-eval
    tasks |= set(re.findall(r"^task: (\w+)$", page.read_text(), re.MULTILINE))  # those that the page shows
    for words in commands(page.read_text(), "lm_eval"):
        read = parse_stock(words)
        assert set(read.tasks.split(",") if isinstance(read.tasks, str) else read.tasks) <= tasks, words
        given = read.model_args or {}
        if read.model == "guided-takeover" and "plugins" not in given:  # with plug-ins: run below
            parse_arguments(given)
        if str(given.get("calibration", "")).endswith(".json"):
            options = made[given["calibration"]]
            assert (given["base"], given["guide"]) == (options.base, options.guide), words
            assert ("--apply_chat_template" in words) == options.apply_chat_template, words
            assert given.get("enable_thinking") == options.enable_thinking, words
            assert given.get("target_rate", options.target_rate[0]) in options.target_rate, words


def cheap_commands(page):
    """What runs on the demo pair alone, on its problems or on a task that the page shows, and is on no earlier page."""
    before = [words for other in PAGES[: PAGES.index(page)] for words in commands(other.read_text(), "lm_eval")]
    own = {"takeover_demo", *re.findall(r"^task: (\w+)$", page.read_text(), re.MULTILINE)}
    found = [words for words in commands(page.read_text(), "lm_eval") if own & {*words} and words not in before]
    return [words for words in found if not re.search(r"\b(base|guide|pretrained)=", " ".join(words))]


@pytest.mark.parametrize("page", [page for page in PAGES if cheap_commands(page)], ids=lambda page: page.name)
def test_commands_on_the_demo_pair_run_as_they_stand(page, forked, tmp_path):
    """Of the first problem; files that the page shows lie where the commands look for them."""
    for name, code in named_files(page.read_text()).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(code)
    for words in cheap_commands(page):
        done = forked.run(*words, "--limit", "1", cwd=tmp_path)
        assert "|acc" in done.stdout, done.stdout


ELSEWHERE = (
    r"Qwen/|--pair qwen|--backend vllm|^serve |^calibrate --base|^(compare|paper) (?!.*--dry_run)|^frontier |my_gate\.py"
    r"|--after gate|org/|results/new|runs/paper/|^analyze runs/base runs/guided runs/guide"
)
SMALL = {"effects": ["--takeovers", "8", "--controls", "1", "--continuations", "3"]}
NUMBER = re.compile(r"[-+]?\d[\d,.]*%?")
RUNS = {"runs/base": "base", "runs/guided": "guided", "runs/math500": "guided", "runs/demo/guided/samples": "guided"}
# A configuration of vLLM's lm-eval-harness, for the results below.
FIXED = """\
model_name: small
limit: 4
num_fewshot: 0
tasks:
- {name: takeover_gsm8k, metrics: [{name: "acc,all", value: 0.5}]}
"""
RESULTS = ("base", "guided", "random", "thinking", "mine", "my-pair", "good", "now")


# Our commands: they run, and print the headings and sentences that the page prints. What needs another checkpoint, a GPU, vLLM or
# minutes is only parsed. `results/test_any_logs.py` compares logs of other models.


def own_commands(page):
    """The words of our commands that run here."""
    found = [words[1:] for words in commands(page.read_text(), "lm-eval-takeover")]
    return [words for words in found if not re.search(ELSEWHERE, shlex.join(words))]


def mask(line):
    return " ".join(NUMBER.sub("#", line).split())


def outputs_of(page):
    """Sentences and headings that a page shows as output: lines of code without numbers, commands and their options apart."""
    shown = (block for block in code_blocks(page.read_text()) if not block.startswith(("{", "- ", "class", "#")))
    blocks = "\n".join(shown)
    lines = [line for line in re.sub(r"\\\n", " ", blocks).splitlines() if line.strip()]
    return [line for line in lines if re.match(r"(Task|Positions|Method|Row|concentration|one task|cross)\b", line)]


def fill(folder, demo_runs):
    """What the pages' commands take for granted."""
    for name, kind in RUNS.items():
        shutil.copytree(demo_runs[kind], folder / name, dirs_exist_ok=True)
    shutil.copytree(TASK_CONFIGS, folder / "my-tasks")
    shutil.copy(CALIBRATIONS / "demo.json", folder / "my-pair.json")
    (folder / "Meta-Llama-3-8B-Instruct.yaml").write_text(FIXED)
    for number, name in enumerate(RESULTS):
        policy = name if name in ("base", "random") else "disagreement"
        run = takeover(policy, base="some/base", guide="some/guide")
        correct = {"takeover_gsm8k": [4, 8, 0, 4 + number % 2], "takeover_demo": [8, 4]}
        write_results(folder / "results" / name, correct, run=run)


def test_commands_of_pages_run_and_print_what_they_print(demo_runs, tmp_path, monkeypatch, capsys):
    """A command of several pages runs once."""
    fill(tmp_path, demo_runs)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    said = {}
    for page in PAGES:
        for words in own_commands(page):
            if (line := shlex.join(words)) not in said:
                status = main([*words, *SMALL.get(words[0], [])])
                shown = capsys.readouterr()
                said[line] = shown.out + shown.err
                assert status in ((0, 1) if words[0] == "regress" else (0,)), f"{page}: {line}\n{shown.err}"
        printed = "".join(said[shlex.join(words)] for words in own_commands(page))
        lines, words = set(map(mask, printed.splitlines())), set(printed.split())
        # Headings that a page folds for its width are looked for by their words.
        missing = [line for line in outputs_of(page) if mask(line) not in lines and not words.issuperset(line.split())]
        assert not own_commands(page) or not missing, f"{page}: {missing}"
