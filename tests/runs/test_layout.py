"""Which run_dirs a path stands for."""

import pytest
from helpers.analyses import write_run

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs.layout import find_run_dirs
from lm_eval_takeover.runs.run_reader import read_run_folder, read_run_folders


@pytest.fixture
def comparison(demo_runs, tmp_path):
    """A folder as `compare` leaves it: ROW/samples, and what else lies there."""
    for row in ("base", "guided"):
        (tmp_path / row).mkdir()
        (tmp_path / row / "samples").symlink_to(demo_runs[row])
    (tmp_path / "probe" / "base" / "samples").mkdir(parents=True)
    (tmp_path / "leaderboard.json").write_text("{}")
    return tmp_path


def test_a_comparison_a_row_and_a_run_dir_are_found(comparison, demo_runs):
    rows = [comparison / "base" / "samples", comparison / "guided" / "samples"]
    assert find_run_dirs(comparison) == rows
    assert find_run_dirs(comparison / "base") == rows[:1]
    assert find_run_dirs(demo_runs["base"]) == [demo_runs["base"]]
    assert find_run_dirs(comparison / "nothing") == [comparison / "nothing"]
    assert [run.label for run in read_run_folders([comparison, comparison / "base"])] == ["base", "guided"]
    assert read_run_folder(comparison / "guided").label == "guided"
    with pytest.raises(RunDirError, match=r"holds 2 runs; give one of '.*base', '.*guided'"):
        read_run_folder(comparison)


def test_a_row_of_compare_is_one_run_with_a_rate_for_each_task_and_limit(tmp_path):
    """The guided row realizes another rate on each task, and on a part of its problems; `--match task` solves one for each."""

    def write(policy, rate, task, docs, target=None):
        rollouts = {(task, doc, 0): ([1, 2, 3], {1: 5}, True, "1") for doc in range(docs)}
        problems = {(task, doc): ("2 + 2", "4") for doc in range(docs)}
        write_run(tmp_path / policy / "samples", policy, rollouts, problems, rate=rate, target=target)

    for rate, task, docs in ((0.05, "takeover_amc23", 3), (0.04, "takeover_amc23", 2), (0.1, "takeover_demo", 2)):
        write("random", rate, task, docs)
    run = read_run_folder(tmp_path / "random")
    assert (run.tasks, run.asked, len(run.answered)) == (["takeover_amc23", "takeover_demo"], 5, 5)
    assert [one.stored.text.split()[-1] for one in run.answered] == ["0.05"] * 3 + ["0.1"] * 2
    assert len(list(run.read_traces(["token_id"]))) == 5
    for rate, task in ((0.05, "takeover_demo"), (0.1, "takeover_amc23")):
        write("lossy", rate, task, 1)
        write("solved", rate, task, 1, 0.07)
    solved = read_run_folder(tmp_path / "solved")
    assert (solved.tasks, solved.takeover["target_rate"], solved.takeover["rate"]) == (run.tasks, 0.07, None)
    with pytest.raises(RunDirError, match="holds 2 runs of several models or policies"):
        read_run_folder(tmp_path / "lossy")
