"""`paper` on the bundled pair: every item in one command, killed and called again; each number is one of a command's files."""

import csv
import json
import os
import re
import signal
import subprocess

import numpy as np
import pytest
from helpers.browser import CHROMIUM, open_browser
from helpers.processes import TAKEOVER, environment, run, wait_until
from helpers.stock import comparing_here

from lm_eval_takeover.analysis.tokens import list_parts, read_scored_samples
from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.paper import running
from lm_eval_takeover.commands.paper.manifest import read_manifest
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.published import read_tables
from lm_eval_takeover.runs.scores import list_score_files

PRINTED = [f"T{number}" for number in range(1, 15)]
FIGURES = [f"F{number}" for number in range(1, 10)]
CLAIMS = {
    "S1": "near 0", "S2": "Cross-sampling", "S3": "early", "S4": "candidates", "S5": "One word", "S6": "SFT", "S7": "checkpoints",
    "S8": "weights",
}  # fmt: skip
SMALL = [
    "--",
    "--gen_kwargs",
    "max_gen_toks=64",
    "--num_prompts",
    "4",
    "--num_held_out",
    "3",
    "--batch_size",
    "64",
    "--quiet",
]


def test_the_manifest_has_every_table_figure_and_claim():
    items = read_manifest().items
    assert list(items) == [*PRINTED, *FIGURES, *CLAIMS]
    assert all(word in items[name].title for name, word in CLAIMS.items())
    assert [item.printed for name, item in items.items() if name in PRINTED] == list(read_tables())
    assert {name for name, item in items.items() if item.missing} == {"F3"}


def test_names_that_the_manifest_lacks_are_one_line():
    manifest = read_manifest()
    assert list(manifest.choose(None, "T3")) == ["qwen3-0.6b", "qwen3-1.7b"]
    assert "demo" not in manifest.choose(None, "")
    for pair, items, reason in [
        (None, "T33", "did you mean 'T3'"),
        ("qwen", "", "--pair 'qwen'"),
        ("sft", "T3", "it has S1"),
    ]:
        with pytest.raises(ArgumentError, match=reason):
            manifest.choose(pair, items)


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    """All items of the bundled pair, on 3 problems, in this process."""
    run_dir = tmp_path_factory.mktemp("paper")
    with comparing_here(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(running, "start_worker", lambda words: main(words[1:]))
        assert main(["paper", "--pair", "demo", "--limit", "3", "--run_dir", str(run_dir), *SMALL]) == 0
    return run_dir


def test_every_item_is_made_in_one_command(paper):
    text = (paper / "index.md").read_text()
    sections = {part.split()[0]: part for part in text.split("\n## ")[1:]}
    assert list(sections) == [*PRINTED, *FIGURES, *CLAIMS]
    for name, item in read_manifest().items.items():
        assert "cannot be shown" not in sections[name] and "not complete" not in sections[name], sections[name]
        own = sections[name].partition("### Printed")[0]
        assert own.count("\n| ---") == bool(item.board) + len(item.parts) + item.calibrate, name
        assert own.count("\n![") == len(item.figures), name
        assert ("Missing: " in own) == bool(item.missing) and ("report.html" in own) == item.report
    for path in re.findall(r"\]\((\S+?)\)", text):
        assert (paper / path).exists()


def test_each_number_is_one_of_the_files_that_commands_wrote(paper):
    text, demo = (paper / "index.md").read_text(), paper / "demo"
    sections = {part.split()[0]: part.partition("### Printed")[0] for part in text.split("\n## ")[1:]}
    board = {row["model"]: row for row in json.loads((demo / "leaderboard.json").read_text())["rows"]}
    for name, item in read_manifest().items.items():
        rows = [line.strip("| ").split(" | ") for line in sections[name].splitlines() if line.startswith("| ")]
        if item.board and item.board != "recovery":
            shown = {cells[0].replace("\\", ""): cells for cells in rows if cells[0].replace("\\", "") in board}
            assert list(shown) == [row for row in item.rows if row != "thinking"]
            for label, cells in shown.items():
                cell = board[label]["tasks"]["takeover_demo"]
                assert cells[1:3] == [
                    f"{100 * board[label]['realized_rate']:.1f}",
                    f"{100 * cell['acc']:.1f} / {100 * cell['pass8']:.1f}",
                ]
        for part in item.parts:
            lines = json.loads((demo / "analysis" / item.place / f"{part.analysis}.json").read_text())
            values = [line[column] for line in lines for column in part.columns if isinstance(line[column], float)]
            known = {f"{value:.4g}" for value in values} | {f"{100 * value:.1f}" for value in values}
            numbers = {cell for cells in rows[2:] for cell in cells if re.fullmatch(r"-?\d+\.\d+(e-?\d+)?", cell)}
            assert numbers <= known, (name, numbers - known)
    thresholds = json.loads(next((demo / "thresholds").glob("*.json")).read_text())["scores"]["ce"]["table"]
    cells = {row["rho"]: f"{row['tau']:.3f} / {row['kappa_threshold_to_mean']:.3f}" for row in thresholds}
    assert [cells[ratio] for ratio in (0.01, 0.03, 0.05)] == re.findall(r"[\d.]+ / [\d.]+", sections["T13"])


def test_signals_are_the_values_that_failure_reads(paper):
    with (paper / "demo" / "analysis" / "base" / "signals.csv").open() as file:
        rows = list(csv.DictReader(file))
    failure = {
        row["signal"]: row for row in json.loads((paper / "demo" / "analysis" / "base" / "failure.json").read_text())
    }
    own = {(row["doc_id"], row["sample"]): row["correct"] for row in rows if row["score"] == "ce"}
    assert len(own) == failure["ce"]["samples"] == 24 and set(own.values()) <= {"True", "False"}


def test_guides_and_checkpoints_are_compared_on_the_texts_of_one_base_run(paper):
    """The base as a checkpoint is no one's second guide; overlaps are those of the largest scores of either file."""
    run, analysis = paper / "demo" / "base" / "samples", paper / "demo" / "analysis" / "base"
    steps, guides = (json.loads((analysis / f"{name}.json").read_text()) for name in ("checkpoints", "guides"))
    assert [(row["guide"], row["step"]) for row in steps if row["measure"] == "gini" and row["score"] == "js"] == [
        *([("step-0", 0), ("step-1", 1)] * 2)
    ]
    far = {row["step"]: row["value"] for row in steps if row["measure"] == "far" and row["score"] == "js"}
    assert far[0] == 0 < far[1] and (analysis / "checkpoints.svg").exists()
    tops = [
        {one.name: one.top("js", 5) for one in read_scored_samples(list_parts(list_score_files(run, name)), ["js"])}
        for name in ("", "bfloat16")
    ]
    iou = [(tops[0][name] & tops[1][name]).sum() / (tops[0][name] | tops[1][name]).sum() for name in tops[0]]
    shown = [row["value"] for row in guides if row["measure"] == "iou_top5" and row["score"] == "js"]
    assert shown == pytest.approx([np.mean(iou)] * 2) and 0.5 < np.mean(iou) < 1


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_its_window(paper, tmp_path, width, theme):
    with open_browser(tmp_path) as page:
        page.look(width, 900, theme)
        page.open((paper / "index.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelectorAll('section').length") == 31
        assert page.messages == []


@pytest.mark.slow
def test_a_killed_command_goes_on_to_the_same_index(tmp_path):
    words = [*TAKEOVER, "paper", "--pair", "demo", "--items", "T4,F2", "--limit", "2", "--run_dir"]
    assert run([*words, str(tmp_path / "whole"), *SMALL]).returncode == 0
    process = subprocess.Popen([*words, str(tmp_path / "killed"), *SMALL], env=environment(), start_new_session=True)
    wait_until(lambda: list(tmp_path.glob("killed/demo/*/results-*/call.json")))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "index.md").exists()
    assert run([*words, str(tmp_path / "killed"), *SMALL]).returncode == 0
    whole, killed = ((tmp_path / name / "index.md").read_text() for name in ("whole", "killed"))
    assert killed == whole and "T4 Matched budgets" in whole


def test_a_set_up_that_cannot_be_loaded_is_one_line_of_the_index(tmp_path, monkeypatch, capsys):
    def fail(words):
        raise running.CallFailed(2)

    monkeypatch.setattr(running, "start_worker", fail)
    assert main(["paper", "--items", "T12,F3", "--run_dir", str(tmp_path)]) == 2
    text = (tmp_path / "index.md").read_text()
    assert "ended with exit status 2" in text and "takeover_gpqa_diamond_50" in text and "37.1" in text
