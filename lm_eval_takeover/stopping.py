"""Ctrl-C and SIGTERM: finished work is kept, and the exit status is the one that shells expect (130, 143)."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

_CHILDREN_WITHIN = 5.0  # seconds to end by themselves


class Terminated(BaseException):
    """Raised by SIGTERM. Like KeyboardInterrupt, it is no Exception."""


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def catch_sigterm() -> None:
    """Let SIGTERM raise Terminated from here on, unless a handler is set already."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the main thread if Python code takes longer; elsewhere nothing is limited."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no end in {seconds:g} s")

    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def end_at_once() -> None:
    """From here on the kernel ends the process at Ctrl-C or SIGTERM: what is kept is kept, and exit handlers may take long."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def end_with_children() -> None:
    """From here on Ctrl-C or SIGTERM ends this process and those that it started, until others handle them."""

    def end(number: int, frame: FrameType | None) -> None:
        import psutil

        asked = []
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if "resource_tracker" not in "".join(child.cmdline()):  # it ends after all others, and cleans up
                    child.terminate()
                    asked.append(child)
        for child in psutil.wait_procs(asked, timeout=_CHILDREN_WITHIN)[1]:
            with suppress(psutil.Error):
                child.kill()
        os.write(2, b"stopped\n")
        os._exit(128 + number)  # an exception would be lost in a finaliser, and in callbacks of the import system

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


_kept: ContextVar[Callable[[], str]] = ContextVar("what was kept", default=lambda: "nothing was written")


def on_stop(kept: Callable[[], str]) -> None:
    """Set the function that says what was kept when the process is stopped."""
    _kept.set(kept)


def on_stop_in(folder: Path) -> None:
    """The same for a command that keeps what it finished in folders of this one, and finds it there when it is given again."""
    going_on = f"what was finished is kept in '{folder}', and the same command goes on from there"
    on_stop(lambda: going_on if any(folder.glob("*/*")) else "nothing was written")


def last_words() -> str:
    """The line that is printed when the process is stopped."""
    return f"stopped; {_kept.get()()}"


def find_stop(error: BaseException | None) -> BaseException | None:
    """The Ctrl-C or SIGTERM that this error is or was caused by: Python 3.11 wraps what is raised within a class body."""
    while error is not None and not isinstance(error, (KeyboardInterrupt, Terminated)):
        error = error.__cause__
    return error


def status(stop: BaseException) -> int:
    """The exit status: 128 and the number of the signal."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)
