"""One process at a time: a lock that the kernel lets go of when its process dies, however it dies."""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO


class Locked(Exception):
    """Another process holds the lock; the text says which, where that is known."""


class Lock:
    """An exclusive lock on a file, held until `release` or the end of the process. Raises Locked, or OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] = path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read(200).strip()
            self._file.close()
            raise Locked(holder or "another process") from None
        except OSError:
            self._file.close()
            raise
        with contextlib.suppress(OSError):  # the name is for people: a full disk does not unlock anything
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {os.uname().nodename}\n")
            self._file.flush()

    def release(self) -> None:
        """Let go. The file stays: removing it would let two processes lock two files of one name."""
        if not self._file.closed:
            with contextlib.suppress(OSError):
                self._file.truncate(0)
            self._file.close()
