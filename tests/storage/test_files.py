"""Files and locks: whole or as they were, regular and of a bounded size, inside of their folder, with one holder."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.storage.files import Lock, open_input, read_bounded, write_text, write_whole
from lm_eval_takeover.storage.paths import join_inside, make_component


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


def test_a_link_is_replaced_and_what_it_names_stays(tmp_path):
    (tmp_path / "theirs").write_text("content")
    (tmp_path / "file.txt").symlink_to(tmp_path / "theirs")
    write_text(tmp_path / "file.txt", "new")
    assert (tmp_path / "theirs").read_text() == "content" and not (tmp_path / "file.txt").is_symlink()


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


HOSTILE = st.text() | st.text(alphabet="./\\~\0\n:-a", max_size=20)


@given(HOSTILE)
def test_a_component_is_one_component(tmp_path_factory, name):
    component = make_component(name)
    root = tmp_path_factory.getbasetemp()
    assert join_inside(root, component).parent == root
    assert make_component(model := "Qwen3-0.6B-Base+Qwen3-8B-disagreement") == model
    assert component not in ("", ".", "..") and not component.startswith(".") and len(component.encode()) <= 200


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "link/x", "a/../../x"])
def test_what_leads_out_is_refused(tmp_path, name):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="lies outside"):
        join_inside(tmp_path / "root", name)
    (tmp_path / "loop").symlink_to("loop")
    assert join_inside(tmp_path, "loop") == tmp_path / "loop"  # who opens it is told what it is


def test_a_planted_link_keeps_its_content(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.write_text("content")
    (tmp_path / "symbolic").symlink_to(theirs)
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    (tmp_path / "hard").hardlink_to(theirs)
    os.mkfifo(tmp_path / "pipe")
    for name in ("symbolic", "dangling", "pipe"):
        with pytest.raises(OSError, match="remove it"):
            Lock(tmp_path / name)
    Lock(tmp_path / "hard").release()
    assert theirs.read_text() == "content" and not (tmp_path / "new").exists()
