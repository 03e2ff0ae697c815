"""Folders of runs, and runs of several processes."""

import json
import shutil
import socket

import pytest
from helpers.analyses import write_run
from helpers.pairs import save_struck_guide
from transformers import AutoTokenizer

from lm_eval_takeover.demo import DEMO, PROMPT, problems
from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs.identity import make_label
from lm_eval_takeover.runs.journal import AskedSample, Journal
from lm_eval_takeover.runs.layout import ROW, find_run_dirs, journal_path, list_journals
from lm_eval_takeover.runs.run_reader import read_run_folder, read_run_folders, read_stored_runs


def test_a_comparison_a_row_and_a_run_dir_are_found(demo_runs, tmp_path):
    comparison = tmp_path / "comparison"
    for row in ("base", "guided"):
        (comparison / row).mkdir(parents=True)
        (comparison / row / "samples").symlink_to(demo_runs[row])
    (comparison / "probe" / "base" / "samples").mkdir(parents=True)
    (comparison / "leaderboard.json").write_text("{}")
    rows = [comparison / "base" / "samples", comparison / "guided" / "samples"]
    assert find_run_dirs(comparison) == rows
    assert find_run_dirs(comparison / "base") == rows[:1]
    assert find_run_dirs(demo_runs["base"]) == [demo_runs["base"]]
    assert find_run_dirs(comparison / "nothing") == [comparison / "nothing"]
    assert [run.label for run in read_run_folders([comparison, comparison / "base"])] == ["base", "guided"]
    assert read_run_folder(comparison / "guided").label == "guided"
    for folder in (comparison, comparison.parent):
        with pytest.raises(RunDirError, match=r"holds 2 runs; give one of '.*base', '.*guided'"):
            read_run_folder(folder)
    (comparison / "rows.json").write_text(json.dumps([{"label": "guided"}, {"label": "base"}]))
    assert find_run_dirs(comparison) == rows[::-1]
    (comparison / "rows.json").write_text(json.dumps([{"label": "guided"}]))  # `base` is of an earlier command
    assert find_run_dirs(comparison) == rows[1:]


def write_row(folder, *runs):
    """Runs of `random`, each `(rate, task, documents)`, in one run_dir. Returns the identity of each."""
    for rate, task, docs in runs:
        rollouts = {(task, doc, 0): ([1, 2, 3], {1: 5}, True, "1") for doc in range(docs)}
        problems = {(task, doc): ("2 + 2", "4") for doc in range(docs)}
        write_run(folder, "random", rollouts, problems, rate=rate)
    return [run.identify(run.tasks[0]) for run in read_stored_runs(folder)]


def test_a_row_of_compare_is_what_it_says_with_a_rate_for_each_task(tmp_path):
    folder = tmp_path / "random" / "samples"
    _, few, demo = write_row(folder, (0.05, "takeover_amc23", 3), (0.04, "takeover_amc23", 2), (0.1, "takeover_demo", 2))
    (folder.parent / ROW).write_text(json.dumps({"takeover_amc23": few, "takeover_demo": demo}))
    run = read_run_folder(folder.parent)
    assert (run.tasks, len(run.asked), len(run.answered)) == (["takeover_amc23", "takeover_demo"], 4, 4)
    assert [one.stored.text.split()[-1] for one in run.answered] == ["0.04"] * 2 + ["0.1"] * 2
    assert len(list(run.read_traces(["token_id"]))) == 4 and run.takeover["rate"] is None
    (folder.parent / ROW).write_text(json.dumps({"takeover_amc23": "of other texts"}))
    with pytest.raises(RunDirError, match=r"lacks what 'row.json' names; give the command of compare again"):
        read_run_folder(folder)


def test_of_several_runs_in_a_folder_the_latest_finished_one_counts_whole(tmp_path):
    """Neither another setting, nor another number of documents, nor a command that was stopped locks the folder."""
    write_row(tmp_path, (0.1, "takeover_demo", 5), (0.05, "takeover_amc23", 3), (0.05, "takeover_demo", 2))
    journal = Journal(journal_path(tmp_path, 0))
    journal.begin_command("stopped", {})
    journal.set_asked("stopped", [AskedSample("takeover_demo", "takeover_demo 0", 0, 0, 0, "prompt", b"not written")])
    journal.close()
    run = read_run_folder(tmp_path)
    run.check_finished()
    assert [(one.name, one.stored.text.split()[-1]) for one in run.answered] == [
        (("takeover_amc23", 0, 0), "0.05"), (("takeover_amc23", 1, 0), "0.05"), (("takeover_amc23", 2, 0), "0.05"),
        (("takeover_demo", 0, 0), "0.05"), (("takeover_demo", 1, 0), "0.05"),
    ]  # fmt: skip


def test_the_score_is_part_of_the_label_unless_it_is_the_usual_one():
    for policy, score, label in (
        ("disagreement", "ce", "base+guide@main-disagreement"),
        ("disagreement", "rkl", "base+guide@main-disagreement-rkl"),
        ("entropy", "entropy", "base+guide@main-entropy"),
        ("segment", "entropy", "base+guide@main-segment-entropy"),
        ("random", None, "base+guide@main-random"),
    ):
        assert make_label(["org/base", "org/guide@main"], policy, score) == label


LIMIT = 3  # so that one rank has a document more than the other


def ends_with(done, folder):
    """What a run ended with: (samples by document, metrics, config.takeover, what it printed)."""
    (results,) = folder.rglob("results_*.json")
    (samples,) = folder.rglob("samples_takeover_demo_*.jsonl")
    content = json.loads(results.read_text())
    rows = {row["doc_id"]: row for row in map(json.loads, samples.read_text().splitlines())}
    metrics = {k: v for k, v in content["results"]["takeover_demo"].items() if "stderr" not in k}
    return rows, metrics, content["config"]["takeover"], done.stderr


def arguments(folder, run_dir, guide=DEMO["guide"]):
    return [
        "--model", "guided-takeover", "--tasks", "takeover_demo", "--limit", str(LIMIT), "--batch_size", "8", "--model_args",
        f"base={DEMO['base']},guide={guide},calibration=demo,allow_calibration_mismatch=True,spike_ratio=0.045,block_size=8,"
        f"run_dir={run_dir}", "--gen_kwargs", "max_gen_toks=48", "--output_path", str(folder), "--log_samples",
    ]  # fmt: skip


def start_two(forked, words):
    """lm_eval on two ranks, by the variables that accelerate's launcher sets."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    group["ACCELERATE_USE_CPU"] = "true"
    return [forked.start("lm_eval", *words, RANK=rank, LOCAL_RANK=rank, **group) for rank in ("0", "1")]


def test_one_and_two_ranks_end_with_the_same(forked, tmp_path):
    def run_alone(folder, run_dir):
        return ends_with(forked.run("lm_eval", *arguments(folder, run_dir)), folder)

    one = run_alone(tmp_path / "one", tmp_path / "run-1")
    ranks = start_two(forked, arguments(tmp_path / "two", tmp_path / "run-2"))
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[1].stderr
    two = ends_with(ranks[0], tmp_path / "two")
    assert one[0] == two[0]
    assert [len(row["resps"][0]) for row in two[0].values()] == [8] * LIMIT
    assert one[1] == two[1]
    times = ("run_dir", "attempts", "seconds")
    assert {k: v for k, v in one[2].items() if k not in times} == {k: v for k, v in two[2].items() if k not in times}
    assert [path.name for path in list_journals(tmp_path / "run-2")] == ["journal-000.sqlite", "journal-001.sqlite"]
    # Another number of ranks uses the samples of all.
    shutil.copytree(tmp_path / "run-2", tmp_path / "run-3")
    again = run_alone(tmp_path / "again", tmp_path / "run-3")
    assert f"{LIMIT * 8} of {LIMIT * 8} samples are finished already; 0 are left to write" in again[3]
    assert again[0] == one[0]


def test_a_request_that_fails_on_one_rank_does_not_hold_up_the_other(forked, tmp_path):
    """The guide cannot read the last token of document 1, which is rank 1's: all that rank 0 has to do is done."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO["guide"])
    words = [set(tokenizer.encode(PROMPT.format(problem=row["problem"]))) for row in problems()[:LIMIT]]
    only = sorted(words[1].difference(*(words[place] for place in range(LIMIT) if place != 1)))
    save_struck_guide(tmp_path / "guide", only[0])
    ranks = start_two(forked, arguments(tmp_path / "out", tmp_path / "run", tmp_path / "guide"))
    assert [rank.wait() for rank in ranks] == [2, 2]
    assert any("task takeover_demo, doc 1, sample 0" in rank.stderr for rank in ranks)
    assert sum(len(run.samples) for run in read_stored_runs(tmp_path / "run")) >= 2 * 8
