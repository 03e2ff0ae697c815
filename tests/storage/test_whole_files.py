"""A file is the old one or the new one, whatever happens in between."""

import os

import pytest

from lm_eval_takeover.storage import whole_files
from lm_eval_takeover.storage.whole_files import write_text, write_whole


@pytest.fixture
def umask():
    """Sets the umask, until the test ends."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def test_a_file_and_its_folder_are_made_as_the_umask_says(tmp_path, umask):
    path = tmp_path / "new" / "file.txt"
    write_text(path, "größer\n")
    assert path.read_bytes() == "größer\n".encode()
    assert path.stat().st_mode & 0o777 == 0o644
    umask(0o077)
    write_text(path, "other")
    assert path.stat().st_mode & 0o777 == 0o644  # the mode that it had
    assert path.read_text() == "other"
    write_text(tmp_path / "own" / "private", "x")
    assert [one.stat().st_mode & 0o777 for one in (tmp_path / "own", tmp_path / "own" / "private")] == [0o700, 0o600]
    umask(0o022)
    write_text(tmp_path / "own" / "private", "y")
    assert (tmp_path / "own" / "private").stat().st_mode & 0o777 == 0o600


def test_a_link_is_replaced_and_what_it_names_stays(tmp_path):
    (tmp_path / "theirs").write_text("content")
    (tmp_path / "file.txt").symlink_to(tmp_path / "theirs")
    write_text(tmp_path / "file.txt", "new")
    assert (tmp_path / "theirs").read_text() == "content" and not (tmp_path / "file.txt").is_symlink()


def test_the_names_of_new_parent_folders_are_on_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(whole_files, "sync_folder", synced.append)
    write_text(tmp_path / "a" / "b" / "file.txt", "x")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


@pytest.mark.parametrize("stop", [OSError("no space left"), KeyboardInterrupt()], ids=["failed", "interrupted"])
def test_a_writer_that_stops_leaves_the_old_file_and_nothing_else(tmp_path, stop):
    path = tmp_path / "file.txt"
    write_text(path, "old")

    def write(stream):
        stream.write(b"ne")
        raise stop

    with pytest.raises(type(stop)):
        write_whole(path, write)
    assert [one.name for one in tmp_path.iterdir()] == ["file.txt"]
    assert path.read_text() == "old"
