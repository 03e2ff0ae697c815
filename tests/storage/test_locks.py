"""A lock has one holder, and takes no file that is not a lock's."""

import fcntl
import os

import pytest

from lm_eval_takeover.storage import locks
from lm_eval_takeover.storage.locks import Lock, Locked


def test_a_lock_is_let_go(tmp_path):
    lock = Lock(tmp_path / "lock")
    with pytest.raises(Locked, match="process"):
        Lock(tmp_path / "lock")
    lock.release()
    Lock(tmp_path / "lock").release()


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


def test_a_removed_lock_has_one_holder(tmp_path, monkeypatch):
    """Between opening the file and locking it, its holder removes it and someone else locks a new one."""
    path = tmp_path / "lock"
    first, others = Lock(path), []
    flock = fcntl.flock

    def remove_in_between(handle, how):
        if not others:
            others.append(None)
            first.remove()
            others.append(Lock(path))
        return flock(handle, how)

    monkeypatch.setattr(locks.fcntl, "flock", remove_in_between)
    with pytest.raises(Locked):
        Lock(path)
    first.remove()  # the second time: the file is another's now
    assert path.exists()
    others[1].remove()
    assert not path.exists()
