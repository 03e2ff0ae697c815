"""Which run_dirs a path stands for, and the label of a run."""

import json

import pytest
from helpers.analyses import write_run

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs.identity import make_label
from lm_eval_takeover.runs.journal import AskedSample, Journal
from lm_eval_takeover.runs.layout import ROW, find_run_dirs, journal_path
from lm_eval_takeover.runs.run_reader import read_run_folder, read_run_folders, read_stored_runs


@pytest.fixture
def comparison(demo_runs, tmp_path):
    """A folder as `compare` leaves it: ROW/samples, and what else lies there."""
    folder = tmp_path / "comparison"
    for row in ("base", "guided"):
        (folder / row).mkdir(parents=True)
        (folder / row / "samples").symlink_to(demo_runs[row])
    (folder / "probe" / "base" / "samples").mkdir(parents=True)
    (folder / "leaderboard.json").write_text("{}")
    return folder


def test_a_comparison_a_row_and_a_run_dir_are_found(comparison, demo_runs):
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


def write_row(folder, *runs):
    """Runs of `random`, each `(rate, task, documents)`, in one run_dir. Returns the identity of each."""
    for rate, task, docs in runs:
        rollouts = {(task, doc, 0): ([1, 2, 3], {1: 5}, True, "1") for doc in range(docs)}
        problems = {(task, doc): ("2 + 2", "4") for doc in range(docs)}
        write_run(folder, "random", rollouts, problems, rate=rate)
    return [run.identify(run.tasks[0]) for run in read_stored_runs(folder)[0]]


def test_a_row_of_compare_is_what_it_says_with_a_rate_for_each_task(tmp_path):
    folder = tmp_path / "random" / "samples"
    _, few, demo = write_row(folder, (0.05, "takeover_amc23", 3), (0.04, "takeover_amc23", 2), (0.1, "takeover_demo", 2))
    (folder.parent / ROW).write_text(json.dumps({"takeover_amc23": few, "takeover_demo": demo}))
    run = read_run_folder(folder.parent)
    assert (run.tasks, run.asked, len(run.answered)) == (["takeover_amc23", "takeover_demo"], 4, 4)
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
    journal.add_asked("stopped", [AskedSample("takeover_demo", "takeover_demo 0", 0, 0, 0, "prompt", b"not written")])
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
