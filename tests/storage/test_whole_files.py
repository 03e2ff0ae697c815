"""A file is the old one or the new one, whatever happens in between."""

import pytest

from lm_eval_takeover.storage.whole_files import write_text, write_whole


def test_a_file_and_its_folder_are_made_readable_for_all(tmp_path):
    path = tmp_path / "new" / "file.txt"
    write_text(path, "größer\n")
    assert path.read_bytes() == "größer\n".encode()
    assert path.stat().st_mode & 0o777 == 0o644
    write_text(path, "other")
    assert [one.name for one in path.parent.iterdir()] == ["file.txt"]
    assert path.read_text() == "other"


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
