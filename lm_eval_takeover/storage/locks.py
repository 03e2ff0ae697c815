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
        self._handle: int | None = _acquire(path, wait)
        if os.fstat(self._handle).st_nlink > 1:  # a hard link: another file has this content
            return
        with contextlib.suppress(OSError):  # the name is for people; on a full disk the lock holds, too
            os.truncate(self._handle, 0)
            os.pwrite(self._handle, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)

    def is_in_place(self) -> bool:
        """Whether the locked file still has its name: not where its folder was moved or removed."""
        return self._handle is not None and _is_at(self._handle, self.path)

    def release(self) -> None:
        """Release the lock. The file stays."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                if os.fstat(self._handle).st_nlink == 1:
                    os.truncate(self._handle, 0)
            os.close(self._handle)
            self._handle = None

    def remove(self) -> None:
        """Remove the file if it is still this lock's, then release it. A waiting process sees that the file has no name."""
        with contextlib.suppress(OSError):
            if self.is_in_place():
                self.path.unlink()
        self.release()


def _acquire(path: Path, wait: bool) -> int:
    """A locked descriptor of the file that has this name now."""
    while True:
        handle = open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_at(handle, path):
                return handle
        except BlockingIOError:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip()
            os.close(handle)
            raise Locked(holder or "another process") from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its holder removed the file between the two calls


def _is_at(handle: int, path: Path) -> bool:
    """Whether the open file is the one of this name."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return False
