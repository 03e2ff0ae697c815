"""Every command of every page runs, and prints the headings and sentences that the page prints.

Runs and results of the demo pair lie where the commands look for theirs. What needs another checkpoint, a GPU, vLLM or minutes is
only parsed (`test_docs.py`), and `lm_eval` commands on the demo pair run there, too. `results/test_any_logs.py` compares logs of
other models.
"""

import re
import shlex
import shutil

import pytest
from helpers.results import takeover, write_results
from test_docs import PAGES, code_blocks, commands

from lm_eval_takeover.cli import main
from lm_eval_takeover.storage.paths import CALIBRATIONS, TASK_CONFIGS

pytestmark = pytest.mark.slow
ELSEWHERE = (
    r"Qwen/|--pair qwen|--backend vllm|^serve |^calibrate --base|^(compare|paper) (?!.*--dry_run)|^frontier |my_gate\.py"
    r"|--after gate|org/|results/new|runs/paper/"
)
SMALL = {
    "effects": ["--takeovers", "8", "--controls", "1", "--continuations", "3"],
    "pairs": ["--confidence", "0.1"],  # of so few continuations
}
NUMBER = re.compile(r"[-+]?\d[\d,.]*%?")
RUNS = {"runs/base": "base", "runs/guided": "guided", "runs/guide": "guide", "runs/math500": "guided",
        "runs/demo/guided/samples": "guided"}  # fmt: skip
RESULTS = ("base", "guided", "random", "thinking", "mine", "my-pair", "good", "now", "seed0", "seed1", "seed2")


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


@pytest.fixture(scope="module")
def place(tmp_path_factory, demo_runs):
    """What the pages' commands take for granted."""
    folder = tmp_path_factory.mktemp("pages")
    for name, kind in RUNS.items():
        shutil.copytree(demo_runs[kind], folder / name, dirs_exist_ok=True)
    shutil.copytree(TASK_CONFIGS, folder / "my-tasks")
    for name in ("my-pair.json", "other-prompts.json"):
        shutil.copy(CALIBRATIONS / "demo.json", folder / name)
    for number, name in enumerate(RESULTS):
        policy = name if name in ("base", "random") else "disagreement"
        run = takeover(policy, seed=number, base="some/base", guide="some/guide")
        correct = {"takeover_gsm8k": [4, 8, 0, 4 + number % 2], "takeover_demo": [8, 4]}
        write_results(folder / "results" / name, correct, run=run)
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if own_commands(page)], ids=lambda page: page.stem)
def test_commands_of_a_page_run_and_print_what_it_prints(place, tmp_path, monkeypatch, capsys, page):
    shutil.copytree(place, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "100")
    printed = ""
    for words in own_commands(page):
        status = main([*words, *(more for name in SMALL if name in words[:1] for more in SMALL[name])])
        shown = capsys.readouterr()
        printed += shown.out + shown.err
        assert status in ((0, 1) if words[0] == "regress" else (0,)), f"{shlex.join(words)}\n{shown.err}"
    lines, words = set(map(mask, printed.splitlines())), set(printed.split())
    # Headings that a page folds for its width are looked for by their words.
    missing = [line for line in outputs_of(page) if mask(line) not in lines and not words.issuperset(line.split())]
    print(page.stem, len(own_commands(page)), "commands;", "missing:", missing)
    assert not missing
