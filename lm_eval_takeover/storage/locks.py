"""One process at a time: the kernel releases the lock when its process dies."""

import contextlib
import fcntl
import os
from pathlib import Path

from lm_eval_takeover.storage.regular_files import open_regular


class Locked(Exception):
    """Another process holds the lock; the text says which, where that is known."""


class Lock:
    """An exclusive lock on a file, held until `release` or the end of the process. Raises OSError, and Locked unless `wait`."""

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        self.path = path
        handle = open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BaseException as error:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip()
            os.close(handle)
            if isinstance(error, BlockingIOError):
                raise Locked(holder or "another process") from None
            raise
        self._handle: int | None = handle
        _write_holder(handle, f"process {os.getpid()} on {os.uname().nodename}\n")

    def is_in_place(self) -> bool:
        """Whether the locked file still has its name: not where its folder was moved or removed."""
        try:
            return self._handle is not None and os.path.samestat(os.fstat(self._handle), self.path.lstat())
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        """Release the lock. The file stays."""
        if self._handle is not None:
            _write_holder(self._handle, "")
            os.close(self._handle)
            self._handle = None


def _write_holder(handle: int, text: str) -> None:
    """For people: on a full disk the lock holds, too. Not into a hard link, since another file has this content."""
    with contextlib.suppress(OSError):
        if os.fstat(handle).st_nlink == 1:
            os.truncate(handle, 0)
            os.pwrite(handle, text.encode(), 0)
