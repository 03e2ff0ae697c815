"""`paper` on the bundled pair: every item in one command, stopped and called again; each number is one of a command's files."""

import json
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import split
from unittest.mock import Mock

import pytest
from helpers.printed_numbers import NAMES, NUMBER, is_of, numbers_of
from helpers.read_once import made_once
from helpers.stock import comparing_here

from lm_eval_takeover import stopping
from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.compare import worker
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.lab.paper import manifest
from lm_eval_takeover.lab.paper.manifest import read_manifest
from lm_eval_takeover.results.published import read_tables
from lm_eval_takeover.runs.run_reader import read_run_folder

PRINTED = [f"T{number}" for number in range(1, 15)]
FIGURES = [f"F{number}" for number in range(1, 10)]
CLAIMS = {"S2": "Cross-sampling", "S3": "early", "S4": "candidates", "S8": "weights"}
SMALL = split("-- --gen_kwargs max_gen_toks=180 --num_prompts 4 --num_held_out 3 --batch_size 64 --quiet")


def test_the_manifest_has_every_table_figure_and_claim():
    items = read_manifest().items
    assert list(items) == [*PRINTED, *FIGURES, *CLAIMS]
    assert all(word in items[name].title for name, word in CLAIMS.items())
    assert [item.printed for name, item in items.items() if name in PRINTED] == list(read_tables())
    assert {name for name, item in items.items() if item.missing} == {"F3"}


def test_names_that_the_manifest_lacks_are_one_line():
    manifest = read_manifest()
    assert list(manifest.choose(None, "T3")) == ["qwen3-0.6b", "qwen3-1.7b"] and "demo" not in manifest.choose(None, "")
    with pytest.raises(ArgumentError, match=r"--setups '.*' cannot be read: .*; expected"):
        read_manifest(Path(__file__))
    wrong = [(None, "T33", "did you mean 'T3'"), ("qwen", "", "--pair 'qwen'"), ("simplerl", "T3", "it has S2")]
    for pair, items, reason in wrong:
        with pytest.raises(ArgumentError, match=reason):
            manifest.choose(pair, items)


@contextmanager
def paper_here():
    """Every command in this process."""
    with comparing_here(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(worker, "start_worker", lambda words, **_: main(words[1:]))
        yield patched


def read_small(own=None):
    """The manifest whose demo has one budget of each method, and the second one of ce, so that half as many rows run."""
    manifest = read_manifest(own)
    rows = dict.fromkeys(row for item in manifest.items.values() for row in item.rows if row != "ce:spike_ratio=0.05")
    method = {row: re.sub(r"(@|ratio=)[\d.]+$", "", row) for row in rows}
    first = {method[row]: row for row in reversed(rows)}
    demo = replace(manifest.pairs["demo"], instead={row: first[method[row]] for row in rows})
    return replace(manifest, pairs=manifest.pairs | {"demo": demo})


@pytest.fixture(scope="module")
def paper(shared_folder):
    """All items of the bundled pair, on 2 problems, made in the first process that asks."""

    def make(finished):
        with paper_here() as patched:
            patched.setattr(manifest, "read_manifest", read_small)
            assert main(["paper", "--pair", "demo", "--limit", "2", "--run_dir", str(shared_folder / "paper"), *SMALL]) == 0
        finished.touch()

    return made_once(shared_folder / "paper-finished", make).with_name("paper")


def test_every_item_is_made_in_one_command(paper):
    text = (paper / "index.md").read_text()
    sections = {part.split()[0]: part for part in text.split("\n## ")[1:]}
    assert list(sections) == [*PRINTED, *FIGURES, *CLAIMS]
    for name, item in read_manifest().items.items():
        assert "cannot be shown" not in sections[name] and "not complete" not in sections[name], sections[name]
        own = sections[name].partition("### Printed")[0]
        assert own.count("\n| ---") == bool(item.board) + len(item.parts) + item.calibrate, name
        assert own.count("\n![") == len(item.figures), name
        assert ("Missing: " in own) == ("### demo" not in own) == bool(item.missing) and ("report.html" in own) == item.report
    for path in re.findall(r"\]\((\S+?)\)", text):
        assert (paper / path).exists()


def test_each_number_is_one_of_the_files_that_commands_wrote(paper):
    text, demo, count = (paper / "index.md").read_text(), paper / "demo", 0
    sections = {part.split()[0]: part.partition("### Printed")[0] for part in text.split("\n## ")[1:]}
    board, (thresholds,) = json.loads((demo / "leaderboard.json").read_text()), (demo / "thresholds").glob("*.json")
    calibrated = json.loads(thresholds.read_text())["scores"]["ce"]["table"]
    for name, item in read_small().choose("demo", "")["demo"].items():
        analyses = [demo / "analysis" / item.place / f"{part.analysis}.json" for part in item.parts]
        known = numbers_of([board, calibrated, *(json.loads(path.read_text()) for path in analyses)])
        for line in re.findall(r"^\|.*", sections[name], re.M) if {part.analysis for part in item.parts} - {"examples"} else ():
            found = NUMBER.findall(NAMES.sub("", re.sub(r" (4-10|11-100) ", " ", line)))  # ranks
            assert not [number for number in found if not is_of(number, known)], (name, line)
            count += len(found)
    assert count > 150


def test_examples_are_chosen_by_their_rule(paper):
    shown = json.loads((paper / "demo" / "analysis" / "base+ce-spike_ratio-0.05" / "examples.json").read_text())
    largest = [row for row in shown if row["rule"] == "largest"]
    run = read_run_folder(paper / "demo" / "ce-spike_ratio-0.05" / "samples")
    best = []
    for one, found in run.read_traces(["token_id", "host_token_id", "chosen_from", "score"]):
        other = (found["host_token_id"] != -1) & (found["host_token_id"] != found["token_id"])
        scores = found["score"][other & (found["chosen_from"] == "guide")]
        best += [(float(scores.max()), one.name)] if len(scores) else []
    assert [row["score"] for row in largest] == [score for score, _ in sorted(best, reverse=True)[:3]]
    assert all(re.search(r"\[[^]|]+\|[^]]+\]", row["text"]) and row["problem"] for row in largest)


def test_the_page_fits_its_window(browser, paper):
    browser.open((paper / "index.html").as_uri())
    for width, theme in ((390, "light"), (1280, "dark")):
        browser.look(width, 900, theme)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate("document.querySelectorAll('section').length") == 27
        texts = "[...document.querySelectorAll('.scroll:has(.texts)')]"
        assert browser.evaluate(f"{texts}.length == 3 && {texts}.every((box) => box.scrollWidth <= box.clientWidth)")
        assert browser.messages == []


def test_a_stopped_command_goes_on_and_writes_the_index_at_its_end(tmp_path, monkeypatch):
    """Stopped behind each command that it runs. What is killed inside of one goes on by the tests of that command."""
    words = ["paper", "--pair", "demo", "--items", "F1,F2,S4,T13", "--run_dir", str(tmp_path)]
    done = dict[tuple[str, ...], int]()

    def run_and_stop(command, **_):
        done[tuple(command)] = done.get(tuple(command), 0) + 1
        if done[tuple(command)] == 1:
            raise stopping.Terminated

    monkeypatch.setattr(worker, "start_worker", run_and_stop)
    while main(words) == 143:
        assert not (tmp_path / "index.md").exists()
    assert {command[1] for command in done} >= {"compare", "score", "analyze", "calibrate"}
    assert sorted(done.values(), reverse=True) == [*range(len(done) + 1, 1, -1)]  # finished ones are given again
    assert len((tmp_path / "index.md").read_text().split("\n## ")) == 5


def test_a_dry_run_prints_commands_and_memory(tmp_path, printed):
    """Of all items, so each of their rows is one of compare's."""
    words = ["paper", "--pair", "demo", "--limit", "3", "--run_dir", str(tmp_path)]
    with paper_here():
        shown = printed(*words, "--dry_run", *SMALL[:5])
    assert "Cache / batch" in shown
    assert "lm-eval-takeover score" in shown and "lm_eval --model guided-takeover" in shown
    assert not (tmp_path / "index.md").exists()


def test_a_set_up_that_cannot_be_loaded_is_one_line_of_the_index(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(worker, "start_worker", Mock(side_effect=worker.CallFailed(2, ["compare"])))
    assert main(["paper", "--items", "T12,F3", "--run_dir", str(tmp_path)]) == 2
    text = (tmp_path / "index.md").read_text()
    assert "ended with exit status 2" in text and "takeover_gpqa_diamond_50" in text and "37.1" in text
