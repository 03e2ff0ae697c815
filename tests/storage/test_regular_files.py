"""Reading what someone else may have put there: regular files only, of a bounded size."""

import os

import pytest
from helpers.results import takeover, write_results

from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import TakeoverError
from lm_eval_takeover.storage.regular_files import open_input, read_bounded

REGRESS = ["regress", "{folder}/run", "--baseline", "{folder}/baseline.json"]


def test_a_link_to_a_regular_file_is_read_and_one_that_is_too_large_is_not(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_bounded(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 0 MB"):
        read_bounded(tmp_path / "link", 4)


@pytest.mark.parametrize("target", ["/dev/zero", "pipe", "."])
def test_pipes_devices_and_folders_are_refused_at_once(tmp_path, target):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(OSError, match="it is a folder, a pipe or a device"):
        open_input(tmp_path / "link")


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("p.jsonl", ["calibrate", "--prompts", "{folder}/p.jsonl", "--out", "{folder}/out.json"]),
        ("h.jsonl", [*REGRESS, "--history", "{folder}/h.jsonl"]),
        ("results_2026-01-01.json", ["leaderboard", "{folder}"]),
        ("baseline.json", REGRESS),
    ],
    ids=["prompts", "history", "results", "baseline"],
)
def test_inputs_of_commands_that_are_pipes_are_one_line(tmp_path, link, words):
    os.mkfifo(tmp_path / "pipe")
    write_results(tmp_path / "run", {"takeover_demo": [4, 8]}, run=takeover())
    if "--history" in words:
        assert main([word.format(folder=tmp_path) for word in [*REGRESS, "--update"]]) == 0
    (tmp_path / link).symlink_to("pipe")
    with pytest.raises(TakeoverError, match="it is a folder, a pipe or a device"):
        main([word.format(folder=tmp_path) for word in words])
