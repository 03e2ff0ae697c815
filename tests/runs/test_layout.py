"""Which run_dirs a path stands for."""

import pytest

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs.layout import find_run_dirs
from lm_eval_takeover.runs.run_folder import read_run_folder, read_run_folders


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


def test_runs_of_a_comparison_are_called_as_its_rows(comparison):
    assert [run.label for run in read_run_folders([comparison, comparison / "base"])] == ["base", "guided"]
    assert read_run_folder(comparison / "guided").label == "guided"
    with pytest.raises(RunDirError, match=r"holds 2 runs; give one of '.*base', '.*guided'"):
        read_run_folder(comparison)
