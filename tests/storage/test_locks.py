"""A lock has one holder."""

import pytest

from lm_eval_takeover.storage.locks import Lock, Locked


def test_a_lock_is_let_go(tmp_path):
    lock = Lock(tmp_path / "lock")
    with pytest.raises(Locked, match="process"):
        Lock(tmp_path / "lock")
    lock.release()
    Lock(tmp_path / "lock").release()
