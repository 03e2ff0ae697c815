"""The commands of examples/reproduce.md, each run on the demo pair at a small size: the rows of the paper's tables come out."""

import csv
import re

import pytest
from helpers.pairs import ROOT
from helpers.stock import comparing_here
from test_docs import commands

from lm_eval_takeover.cli import main
from lm_eval_takeover.demo import DEMO

PAGE = (ROOT / "examples" / "reproduce.md").read_text()
SECTIONS = {
    found[1]: found[2]
    for found in re.finditer(r"^##+ ((?:Table|Figure) \d+):[^\n]*\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)
}
LARGE = ["--apply_chat_template", "--enable_thinking True", "--base Qwen/Qwen3-0.6B-Base --guide Qwen/Qwen3-8B"]
SMALL = ["--limit", "1", "--num_prompts", "2", "--num_held_out", "3", "--gen_kwargs", "max_gen_toks=12",
         "--batch_size", "16", "--device", "cpu"]  # fmt: skip
ROWS = {
    "Table 3": ["base", "ce@0.05", "ce@0.08", "thinking", "guide"],
    "Table 4": ["base", "ce@0.05", "random@0.25", "early@0.25"],
    "Table 7": ["base", "rkl@0.05", "rkl@0.08", "thinking", "guide"],
    "Table 9": ["base", "entropy@0.05", "entropy@0.08", "thinking", "guide"],
    "Table 10": ["base", "ce@0.05", "ce@0.08",
                 *(f"{name}@{rate}" for name in ("random", "early") for rate in (0.1, 0.15, 0.2, 0.25)), "thinking", "guide"],
    "Figure 5": ["base", *(f"ce@{rate}" for rate in (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2)), "guide"],
}  # fmt: skip


def shrink(words):
    """The words of a command of the page, for the demo pair."""
    text = " ".join(words[1:])
    for option in LARGE:
        text = text.replace(option, "")
    text = text.replace("takeover_paper", "takeover_demo").replace("Qwen/Qwen3-0.6B", str(DEMO["guide"]))
    return text.split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("paper")


@pytest.mark.parametrize("name", ROWS)
def test_a_table_is_one_command(folder, monkeypatch, capsys, name):
    monkeypatch.chdir(folder)
    (words, *_) = commands(SECTIONS[name], "lm-eval-takeover")
    with comparing_here():
        assert main([*shrink(words), *SMALL]) == 0
    with (folder / "runs" / "qwen3-0.6b" / "frontier.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["task"] == "average"]
    assert [line["row"] for line in lines] == ROWS[name]
    assert all(0 <= float(line["acc"]) <= 1 for line in lines)
    assert len(list(folder.glob("runs/*/base/results-*"))) == 1  # all tables share the base's texts


def test_the_table_of_thresholds_is_a_calibration_of_each_set(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    calibrate, compare = commands(SECTIONS["Table 13"], "lm-eval-takeover")
    (names,) = re.findall(r"for set in (.*); do", SECTIONS["Table 13"])
    assert [f"runs/{name}.json" for name in names.split()] == compare[compare.index("--compare") + 1 :]
    assert len(names.split()) == 6
    words = [word.replace("$set", "demo") for word in shrink(calibrate)]
    assert main([*words, "--num_prompts", "4", "--max_gen_toks", "12"]) == 0
    capsys.readouterr()
    assert main(["calibrate", "--compare", "runs/demo.json"]) == 0
    assert "tau" in capsys.readouterr().out
