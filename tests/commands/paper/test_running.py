"""`paper` on the bundled pair: every item in one command, killed and called again; each number is one of a command's files."""

import csv
import json
import os
import re
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from shlex import split

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers.browser import CHROMIUM, open_browser
from helpers.processes import TAKEOVER, environment, run, wait_until
from helpers.stock import comparing_here

from lm_eval_takeover.analysis.tokens import list_parts, read_scored_samples
from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.paper import running
from lm_eval_takeover.commands.paper.figures import draw_rates
from lm_eval_takeover.commands.paper.manifest import read_manifest
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.escaping import for_markdown
from lm_eval_takeover.results.published import read_tables
from lm_eval_takeover.runs.run_reader import read_run_folder
from lm_eval_takeover.runs.scores import list_score_files
from lm_eval_takeover.storage.locks import Lock, Locked

PRINTED = [f"T{number}" for number in range(1, 15)]
FIGURES = [f"F{number}" for number in range(1, 10)]
CLAIMS = {
    "S1": "near 0", "S2": "Cross-sampling", "S3": "early", "S4": "candidates", "S5": "One word", "S6": "SFT", "S7": "checkpoints",
    "S8": "weights",
}  # fmt: skip
SMALL = split("-- --gen_kwargs max_gen_toks=64 --num_prompts 4 --num_held_out 3 --batch_size 64 --quiet")


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
    wrong = [(None, "T33", "did you mean 'T3'"), ("qwen", "", "--pair 'qwen'"), ("sft", "T3", "it has S1")]
    for pair, items, reason in wrong:
        with pytest.raises(ArgumentError, match=reason):
            manifest.choose(pair, items)


@contextmanager
def paper_here():
    """Every command in this process."""
    with comparing_here(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(running, "start_worker", lambda words, **_: main(words[1:]))
        yield


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    """All items of the bundled pair, on 3 problems, in this process."""
    run_dir = tmp_path_factory.mktemp("paper")
    with paper_here():
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


def read_rows(section):
    """The tables of a section, each without its heading."""
    blocks = re.findall(r"(?:^\|.*\n)+", section, re.M)
    return [[line[2:-2].split(" | ") for line in block.splitlines()[2:]] for block in blocks]


def show_two(cell):
    return " / ".join("–" if (cell or {}).get(name) is None else f"{100 * cell[name]:.1f}" for name in ("acc", "pass8"))


def list_forms(value):
    """How a value may stand in a cell: a share in percent, another number to four digits, a text."""
    shown = {f"{value:.4g}", f"{100 * value:.1f}"} if isinstance(value, float) else {for_markdown(str(value))}
    return {""} if value is None else {form.strip() for form in shown}


def test_each_number_is_that_of_the_file_that_its_command_wrote(paper):
    text, demo = (paper / "index.md").read_text(), paper / "demo"
    sections = {part.split()[0]: part.partition("### Printed")[0] for part in text.split("\n## ")[1:]}
    board = json.loads((demo / "leaderboard.json").read_text())["rows"]
    board = {row["kind"] if row["kind"] == "thinking" else row["model"]: row for row in board}
    for name, item in read_manifest().items.items():
        tables = read_rows(sections[name])
        if item.board:
            expected = []
            for label in item.rows:
                row, rate = board[label], board[label]["realized_rate"]
                figures = [row["tasks"]["takeover_demo"], row["average"]] if item.board != "recovery" else []
                cells = map(show_two, [*figures, row["recovery"]])
                expected.append([label, "" if rate is None else f"{100 * rate:.1f}", *cells])
            assert [[cell.replace("\\", "").strip() for cell in row] for row in tables.pop(0)] == expected, name
        for part in item.parts:
            lines = json.loads((demo / "analysis" / item.place / f"{part.analysis}.json").read_text())
            lines = [line for line in lines if all(line[key] in known for key, known in part.where.items())]
            shown = tables.pop(0)
            assert len(shown) == len(lines) and (lines or part.analysis == "examples"), name
            for cells, line in zip(shown, lines, strict=True):
                for cell, column in zip(cells, part.columns, strict=True):
                    assert cell.strip() in list_forms(line[column]), (name, column)
    thresholds = json.loads(next((demo / "thresholds").glob("*.json")).read_text())["scores"]["ce"]["table"]
    cells = {row["rho"]: f"{row['tau']:.3f} / {row['kappa_threshold_to_mean']:.3f}" for row in thresholds}
    assert [cells[ratio] for ratio in (0.01, 0.03, 0.05)] == read_rows(sections["T13"])[0][0][1:]


def test_accuracy_by_rate_has_a_panel_for_each_task_and_the_thinking_model_as_a_line(paper):
    lines = json.loads((paper / "demo" / "frontier.json").read_text())
    thinking = next(line for line in lines if line["row"] == "thinking")
    assert "Acc, thinking" in (paper / "demo" / "rates_by_task.svg").read_text() and thinking["acc"] is not None
    two = [line | {"task": task} for task in ("aime24", "amc23", "average") for line in lines if line["task"] == "average"]
    picture = draw_rates(two, ["base", "ce@0.05", "thinking"])
    titles = [text for text in re.findall(r">([^<]+)</text>", picture) if text in ("aime24", "amc23", "average")]
    assert titles == ["aime24", "amc23", "average"] and picture.count("stroke-dasharray: 3.7,1.6") >= 6


def test_weights_are_the_divergence_at_both_tokens_of_each_takeover(paper):
    """Where both tokens follow the same text, both have the score that the run's gate saw."""
    rows = pq.read_table(paper / "demo" / "weights" / "pairs.parquet").to_pylist()
    run = read_run_folder(paper / "demo" / "js-tau-0.1-kappa-0" / "samples")
    scores = {one.name: table["score"].to_pylist() for one, table in run.read_traces(["score"])}
    for row in rows:
        seen = scores[row["task"], row["doc_id"], row["sample"]][row["position"]]
        assert row["chosen_weights"] == row["rejected_weights"] == [pytest.approx(seen, abs=1e-4)]
    assert len(rows) > 5


def test_examples_are_chosen_by_their_rule(paper):
    shown = json.loads((paper / "demo" / "analysis" / "base+ce@0.08" / "examples.json").read_text())
    largest = [row for row in shown if row["rule"] == "largest"]
    run = read_run_folder(paper / "demo" / "ce@0.08" / "samples")
    best = []
    for one, table in run.read_traces(["token_id", "host_token_id", "chosen_from", "score"]):
        rows = [row for row in table.to_pylist() if row["chosen_from"] == "guide"]
        scores = [row["score"] for row in rows if row["host_token_id"] not in (None, row["token_id"])]
        best += [(max(scores), one.name)] if scores else []
    assert [row["score"] for row in largest] == [score for score, _ in sorted(best, reverse=True)[:3]]
    assert all(re.search(r"\[[^]|]+\|[^]]+\]", row["text"]) and row["problem"] for row in largest)


def test_signals_are_the_values_that_failure_reads(paper):
    with (paper / "demo" / "analysis" / "base" / "signals.csv").open() as file:
        rows = list(csv.DictReader(file))
    failure = {row["signal"]: row for row in json.loads((paper / "demo" / "analysis" / "base" / "failure.json").read_text())}
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
        if "REPORT_PICTURES" in os.environ:
            page.save_picture(Path(os.environ["REPORT_PICTURES"]) / f"paper-{width}-{theme}.png")


def is_free(lock):
    try:
        Lock(lock).release()
    except Locked:
        return False
    return True


@pytest.mark.slow
def test_a_killed_command_goes_on_to_the_same_index(tmp_path):
    """Killed behind its first row."""
    words = [*TAKEOVER, "paper", "--pair", "demo", "--items", "F1,F2", "--limit", "2", "--run_dir"]
    assert run([*words, str(tmp_path / "whole"), *SMALL]).returncode == 0
    process = subprocess.Popen([*words, str(tmp_path / "killed"), *SMALL], env=environment(), start_new_session=True)
    wait_until(lambda: list(tmp_path.glob("killed/demo/*/results-*/call.json")))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: is_free(tmp_path / "killed" / "demo" / "compare.lock"))
    assert not (tmp_path / "killed" / "index.md").exists()
    with paper_here():
        assert main([*words[len(TAKEOVER) :], str(tmp_path / "killed"), *SMALL]) == 0
    whole, killed = ((tmp_path / name / "index.md").read_text() for name in ("whole", "killed"))
    assert killed == whole and "F1 How much" in whole


def test_a_dry_run_prints_commands_memory_and_hours(tmp_path, capsys):
    words = ["paper", "--pair", "demo", "--items", "F1,F2", "--limit", "3", "--run_dir", str(tmp_path)]
    with paper_here():
        assert main([*words, "--dry_run", "--probe", *SMALL[:5]]) == 0
    printed = capsys.readouterr().out
    hours = re.search(r"base +([\d,]+) +([\d.]+)", printed)
    assert hours and float(hours[1].replace(",", "")) > 0 and "Hours at most" in printed and "Cache / batch" in printed
    assert "lm-eval-takeover score" in printed and "lm_eval --model guided-takeover" in printed
    assert not (tmp_path / "index.md").exists()


def test_a_set_up_that_cannot_be_loaded_is_one_line_of_the_index(tmp_path, monkeypatch, capsys):
    def fail(words):
        raise running.CallFailed(2)

    monkeypatch.setattr(running, "start_worker", fail)
    assert main(["paper", "--items", "T12,F3", "--run_dir", str(tmp_path)]) == 2
    text = (tmp_path / "index.md").read_text()
    assert "ended with exit status 2" in text and "takeover_gpqa_diamond_50" in text and "37.1" in text
