"""A worker's process: this Python with a module, ended with its parent."""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Sequence

_PARENT_DIED = 1  # PR_SET_PDEATHSIG of Linux's prctl


class CallFailed(Exception):
    """A process ended with this exit status; it has said why."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


def start_worker(words: Sequence[str]) -> None:
    """A module of this Python that writes logs of its own, to its end; its bars and errors go to stderr. Raises CallFailed."""
    first = _end_with_parent if sys.platform == "linux" else None
    process = subprocess.Popen([sys.executable, "-m", *words], stdout=2, preexec_fn=first)
    try:
        status = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if status:
        raise CallFailed(128 - status if status < 0 else status)


def _end_with_parent() -> None:
    """Let the kernel stop this process where its parent is killed, so that it holds no run_dir."""
    ctypes.CDLL(None).prctl(_PARENT_DIED, signal.SIGTERM)
