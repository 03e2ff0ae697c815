"""How a command of ours ends: with one line and status 2 for an error of the user; after Ctrl-C and SIGTERM what is finished is
kept, and the status is the one that shells expect (130, 143).
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from io import TextIOWrapper
from pathlib import Path
from types import FrameType, TracebackType

from lm_eval_takeover.errors import describe_error
from lm_eval_takeover.escaping import for_terminal

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


def say_stopped(stop: BaseException) -> int:
    """Say what was kept, in one line. Returns the exit status; at a second signal one of our commands ends without a word."""
    print(for_terminal(f"stopped; {_kept.get()()}"), file=sys.stderr)
    if is_our_command():
        end_at_once()
    return status(stop)


def find_stop(error: BaseException | None) -> BaseException | None:
    """The Ctrl-C or SIGTERM that this error is or was caused by: Python 3.11 wraps what is raised within a class body."""
    while error is not None and not isinstance(error, (KeyboardInterrupt, Terminated)):
        error = error.__cause__
    return error


def status(stop: BaseException) -> int:
    """The exit status: 128 and the number of the signal."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


# The command

_COMMANDS = ("lm_eval.__main__", "lm_eval_takeover.cli", "lm_eval_takeover.commands.compare.worker")


def is_our_command() -> bool:
    """Whether this process is `lm_eval` or `lm-eval-takeover`, by which script or module it was started."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name in _COMMANDS:
        return True
    return Path(sys.argv[0]).stem in ("lm_eval", "lm-eval", "lm-eval-takeover")


def _use_utf8() -> None:
    """Start this process again with UTF-8, which its children inherit, where the C locale makes names of files ASCII."""
    if sys.getfilesystemencoding() == "ascii":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _prepare_streams() -> None:
    """Let a stream that was closed at the start go nowhere, and write letters that its encoding lacks as codes."""
    while (handle := os.open(os.devnull, os.O_RDWR)) < 3:  # no other file gets the number of a closed stream
        os.set_inheritable(handle, True)
    os.close(handle)
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def install_error_hook() -> None:
    """Let errors of a user and signals end this process with one line, if it is one of the two commands."""
    if not is_our_command() or getattr(sys.excepthook, "takeover", False):
        return
    _use_utf8()
    _prepare_streams()
    catch_sigterm()
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if (line := describe_error(error)) is not None:
            print(f"error: {for_terminal(line)}", file=sys.stderr)
            # SystemExit in the hook sets the status; exit handlers still run.
            raise SystemExit(2)
        if (stop := find_stop(error)) is not None:
            raise SystemExit(say_stopped(stop))
        previous(kind, error, trace)

    hook.takeover = True  # type: ignore[attr-defined]
    sys.excepthook = hook
