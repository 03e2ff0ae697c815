"""A row's process: this Python with a module, ended with its parent."""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Sequence

_PARENT_DIED = 1  # PR_SET_PDEATHSIG of Linux's prctl


class CallFailed(Exception):
    """A process of a row, or of the calibration, ended with this exit status; it has said why."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


def start(words: Sequence[str]) -> None:
    """A module of this Python with these arguments, to its end. Its output goes to stderr: stdout is for the table.

    A signal to this process goes on to that one, which keeps what is finished. Raises CallFailed.
    """
    command = [sys.executable, "-m", *words]
    process = subprocess.Popen(command, stdout=2, preexec_fn=_end_with_parent if sys.platform == "linux" else None)
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
