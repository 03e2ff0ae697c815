"""A row's process: this Python with a module, ended with its parent."""

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

_PARENT_DIED = 1  # PR_SET_PDEATHSIG of Linux's prctl
_BAR = re.compile(r"\d+%\|.*")  # of tqdm, behind its description
_LAST = 5  # lines of the log that are shown where nothing in it is an error of a user


class CallFailed(Exception):
    """A process of a row, or of the calibration, ended with this exit status; it has said why."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


def start_worker(words: Sequence[str]) -> None:
    """A module of this Python that writes logs of its own, to its end; its bars and errors go to stderr. Raises CallFailed."""
    process = _open([sys.executable, "-m", *words], stdout=2)
    try:
        _check(process.wait())
    except BaseException:
        process.terminate()
        process.wait()
        raise


def _open(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, preexec_fn=_end_with_parent if sys.platform == "linux" else None, **options)


def _check(status: int) -> None:
    if status:
        raise CallFailed(128 - status if status < 0 else status)


def start(words: Sequence[str], name: str, log: Path, *, quiet: bool = False) -> None:
    """A module of this Python with these arguments, to its end. What it prints goes into `log`; its bar is shown as `name: …`.

    A signal to this process goes on to that one, which keeps what is finished. Raises CallFailed once it has said why.
    """
    command = [sys.executable, "-m", *words]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as kept:
        process = _open(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            _copy(process, kept, name, quiet=quiet)
            status = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if status:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        said = [line for line in lines if line.startswith("error: ")][-1:] or lines[-_LAST:]
        print("\n".join([*said, f"{name}: failed; all that it printed is in '{log}'"]), file=sys.stderr)
        _check(status)


def _copy(process: "subprocess.Popen[bytes]", kept: BinaryIO, name: str, *, quiet: bool) -> None:
    """Write all that a process prints to `kept`, and show its bars: as they move on a terminal, else each one's last state."""
    assert process.stdout is not None
    with process.stdout as printed:
        _show_bars(printed.fileno(), kept, name, quiet=quiet)


def _show_bars(printed: int, kept: BinaryIO, name: str, *, quiet: bool) -> None:
    left, shown, moving = b"", "", sys.stderr.isatty() and not quiet
    while chunk := os.read(printed, 65536):
        kept.write(chunk)
        kept.flush()
        *lines, left = re.split(rb"[\r\n]", left + chunk)
        bars = [found for line in lines if (found := _BAR.search(line.decode(errors="replace")))]
        if bars:
            shown = bars[-1][0]
            if moving:
                print(f"\r{name}: {shown}\x1b[K", end="", file=sys.stderr, flush=True)
    if shown and not quiet:
        print(f"\r{name}: {shown}\x1b[K" if moving else f"{name}: {shown}", file=sys.stderr)


def _end_with_parent() -> None:
    """Let the kernel stop this process where its parent is killed, so that it holds no run_dir."""
    ctypes.CDLL(None).prctl(_PARENT_DIED, signal.SIGTERM)
