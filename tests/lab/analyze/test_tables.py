"""The analyses of real runs: files, what they find on the demo pair, and a line for whatever cannot be shown."""

import csv
import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from helpers.run_dirs import plant, query

from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import TakeoverError
from lm_eval_takeover.lab.analyze import tables
from lm_eval_takeover.lab.measures.catalogue import COLUMNS
from lm_eval_takeover.lab.measures.figures import DRAWN
from lm_eval_takeover.runs.journal import AskedSample, Journal
from lm_eval_takeover.storage.files import Lock, Locked


def analyze(out, *folders, only=None):
    words = ["analyze", *map(str, folders), "--out", str(out), *(["--only", only] if only else [])]
    return main(words)


@pytest.fixture(scope="module")
def analysed(demo_runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("analysis") / "out"
    assert analyze(out, *demo_runs.values()) == 0
    return out


@pytest.fixture
def copies(demo_runs, tmp_path):
    """The runs, to be changed."""
    return {name: shutil.copytree(path, tmp_path / name) for name, path in demo_runs.items()}


def read(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


def test_every_analysis_is_a_table_and_a_figure(analysed):
    index = read(analysed, "analysis")
    shown = [name for name in COLUMNS if name != "cross"]  # no score=js
    assert index["analyses"] == shown
    assert "none is given" in index["cannot_show"]["cross"]
    assert [run["policy"] for run in index["runs"]] == ["base", "disagreement", "guide"]
    assert all((analysed / run["path"] / "journal-000.sqlite").exists() for run in index["runs"])
    for name in shown:
        rows = list(csv.reader((analysed / f"{name}.csv").read_text().splitlines()))
        assert tuple(rows[0]) == COLUMNS[name]
        assert len(rows) - 1 == len(read(analysed, name)) > 0
        assert (analysed / f"{name}.svg").exists() == (name in DRAWN)


def test_files_are_of_one_call_where_there_is_an_index(analysed, demo_runs, tmp_path, monkeypatch):
    """A call that is stopped changes none of another one's, or leaves no index; two at once write one after the other."""
    out, plain = shutil.copytree(analysed, tmp_path / "out"), tables.write_analysis

    def stop_at_second(folder, name, table):
        with pytest.raises(Locked):
            Lock(folder.parent / "analysis.lock")
        if name == "rates":
            raise KeyboardInterrupt
        plain(folder, name, table)

    monkeypatch.setattr(tables, "write_analysis", stop_at_second)
    assert analyze(out, demo_runs["guided"], only="budget,rates") == 130
    held, left = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in (analysed, out))
    assert held == left
    monkeypatch.undo()
    plain_replace = Path.replace

    def stop_at_first(path, target):
        if target == out / "rates.csv":
            raise KeyboardInterrupt
        return plain_replace(path, target)

    monkeypatch.setattr(Path, "replace", stop_at_first)
    (out / ".analysis.json.unfinished").mkdir()  # of a call that was killed
    assert analyze(out, demo_runs["guided"], only="budget,rates") == 130
    assert not (out / "analysis.json").exists() and not (out / ".analysis.json.unfinished").exists()


def test_on_the_demo_pair_scores_predict_failures_and_nothing_is_harmed(analysed):
    by_signal = {row["signal"]: row for row in read(analysed, "failure") if row["task"] == "takeover_demo"}
    assert by_signal["js"]["auroc"] > 0.75 > by_signal["entropy"]["auroc"]
    flips = {row["run"]: row for row in read(analysed, "flips") if row["task"] == "takeover_demo"}
    assert flips["guided"]["rescued"] > 0
    assert {row["harmed"] for row in flips.values()} == {0}
    takeovers = [row for row in read(analysed, "planning") if row["set"] == "takeovers" and row["task"] == "mean"]
    assert {row["run"] for row in takeovers} == {"guided"}
    gini = {row["score"]: row["gini"] for row in read(analysed, "concentration")}
    assert min(gini[score] for score in ("ce", "rkl", "js", "entropy")) > 0.9


def test_texts_that_two_tasks_share_are_in_the_tables_of_both(copies, tmp_path):
    """As after a second command: what it asks for has the keys of texts that stand under the first task."""
    rows = query(copies["base"], "SELECT command, task, doc, idx, sample, doc_id, prompt, key FROM asked")
    with closing(Journal(copies["base"] / "journal-000.sqlite")) as journal:
        journal.set_asked(rows[0][0], [AskedSample(task, *row[2:]) for row in rows for task in (row[1], "twin")])
    assert analyze(tmp_path / "out", copies["base"], only="concentration,rates,failure") == 0
    gini = {(row["task"], row["score"]): row for row in read(tmp_path / "out", "concentration")}
    for score in ("ce", "entropy"):
        assert gini["twin", score]["gini"] == gini["takeover_demo", score]["gini"]
        assert gini["mean", score]["samples"] == 64 - 2 * gini["twin", score]["skipped"]


def score_by_another_pair(run):
    """Half of the texts, as if the command had gone on with other models."""
    plant(run, "evidence", "kind = 'score' AND rowid % 2", content=lambda scores: scores.replace(b"base=", b"base=other-", 1))


def use_other_tokens(run):
    def change(content):
        prompt = json.loads(content)
        return json.dumps(prompt | {"prompt_ids": prompt["prompt_ids"][1:]})

    plant(run, "prompts", content=change)


@pytest.mark.parametrize(
    ("change", "given", "only", "message"),
    [
        (lambda runs: query(runs["base"], "DELETE FROM evidence WHERE kind = 'score'"), ["base"], "lorenz",
         r"lorenz cannot be shown: the base run 'base' is not scored; run: lm-eval-takeover score .*base$"),
        (lambda runs: None, ["guided"], "concentration",
         r"needs a base run, and you gave guided \(policy=disagreement\); run policy=base with the same tasks"),
        (lambda runs: None, ["base"], "ranks", "needs a run in which two models write, and none is given"),
        (lambda runs: query(runs["guided"], "DELETE FROM evidence"), ["base", "guided"], "ranks",
         "trace of task .* is missing; the run"),
        (lambda runs: use_other_tokens(runs["guided"]), ["base", "guided"], None, None),
        (lambda runs: query(runs["base"], "DELETE FROM verdicts WHERE rowid % 2 = 0"), ["base"], "lorenz,failure",
         r"failure cannot be shown: \d+ of 32 samples of 'base' have no verdict: it was stopped before"),
        (lambda runs: query(runs["guided"], "DELETE FROM samples WHERE doc_id = 3"), ["base", "guided"], None,
         "24 of 32 samples are finished; wait for it, or run the same command again"),
        (lambda runs: score_by_another_pair(runs["base"]), ["base"], "lorenz",
         r"run_dir='.*' was scored with base=.*, and with base=.*; score it again with --overwrite"),
        (lambda runs: None, ["base"], "lorentz", "'lorentz' is not an analysis; did you mean 'lorenz'"),
        (lambda runs: runs.update(twin=shutil.copytree(runs["base"], runs["base"].parent / "x" / "other")),
         ["base", "twin"], "lorenz", "it needs one base run, or several seeds of it, and base, other have other models"),
        (lambda runs: runs.update(twin=shutil.copytree(runs["base"], runs["base"].parent / "x" / "base")),
         ["base", "twin"], "lorenz", "two of the runs are called 'base'"),
    ],
    ids=["unscored", "guided", "no-guided", "lost-traces", "tokenizer", "verdicts", "unfinished", "two-pairs", "typo",
         "two-bases", "names"],
)  # fmt: skip
def test_what_cannot_be_shown_is_said(copies, tmp_path, capsys, change, given, only, message):
    change(copies)
    folders = [copies[name] for name in given]
    if message is None:  # the rest is shown all the same
        assert analyze(tmp_path / "out", *folders, only="planning") == 0
        planning = read(tmp_path / "out", "planning")
        assert {row["set"] for row in planning} == {"peaks"}
        assert "planning at takeovers cannot be shown: 'guided' was written with a different" in capsys.readouterr().err
        return
    with pytest.raises(TakeoverError, match=message) as raised:
        analyze(tmp_path / "out", *folders, only=only)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()
