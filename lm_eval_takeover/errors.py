"""Errors of a user, each one line that says what was wrong and what to do.

Python callers get the exception. The two commands print its line and exit with 2. After Ctrl-C and SIGTERM they print what was
kept (130, 143). Every other exception keeps its traceback.
"""

import errno
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from lm_eval_takeover import stopping
from lm_eval_takeover.escaping import for_terminal

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


class TakeoverError(ValueError):
    """Something that the user can put right."""


class ArgumentError(TakeoverError):
    """A model argument, generation setting or command option is wrong."""


class VocabularyError(TakeoverError):
    """The two models do not share a vocabulary."""


class CalibrationError(TakeoverError):
    """A calibration file is missing, broken, or belongs to another pair."""


class PluginError(TakeoverError):
    """A score or policy of the user's own is broken."""


class ModelOutputError(TakeoverError):
    """A model could not answer a request: it raised, or its logits are no distribution (NaN)."""


class RunDirError(TakeoverError):
    """A run_dir cannot be written, or is in use."""


class ResultsError(TakeoverError):
    """A results, samples or baseline file is missing, broken, or of another shape."""


def is_out_of_memory(error: Exception) -> bool:
    """A class of torch or a message of its libraries on a GPU, a message of its allocator on a CPU, or Python's own error."""
    texts = ("can't allocate memory", "out of memory", "ALLOC_FAILED")
    named = type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError)
    return named or (isinstance(error, RuntimeError) and any(text in str(error) for text in texts))


def run_in_batches(
    function: Callable[[Sequence[Item]], Result], items: Sequence[Item], size: int
) -> Iterator[tuple[Sequence[Item], Result]]:
    """Batches of `size` items with their results; half as many once memory runs out. Raises what `function` does for one item."""
    start = 0
    while start < len(items):
        batch = items[start : start + size]
        try:
            result = function(batch)
        except Exception as error:
            if len(batch) == 1 or not is_out_of_memory(error):
                raise
        else:
            start += len(batch)
            yield batch, result
            continue
        size = len(batch) // 2
        logger.warning("out of memory; continuing with batch size %d", size)


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` where a known name is close to `name`, else the known names, or the nearest of many."""
    names = sorted(known)
    if close := get_close_matches(name, names, n=1, cutoff=0.6):
        return f"did you mean '{close[0]}'?"
    if len(names) <= 20:
        return f"known: {', '.join(names)}"
    return f"the nearest of {len(names)} are {', '.join(get_close_matches(name, names, n=3, cutoff=0.0))}"


_REFUSED = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}


def describe_refusal(error: BaseException) -> str | None:
    """The line on a file that the system does not open or write: its rights, its name, a full disk. None for other errors."""
    if not isinstance(error, OSError) or error.filename is None or error.errno not in _REFUSED:
        return None
    return f"'{error.filename}' cannot be used: {error.strerror}; change its rights, make room, or choose another"


_COMMANDS = ("lm_eval.__main__", "lm_eval_takeover.cli", "lm_eval_takeover.commands.compare.worker")


def is_our_command() -> bool:
    """Whether this process is `lm_eval` or `lm-eval-takeover`, by which script or module it was started."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name in _COMMANDS:
        return True
    return Path(sys.argv[0]).stem in ("lm_eval", "lm-eval", "lm-eval-takeover")


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


def describe_error(error: BaseException) -> str | None:
    """The line on an error that the user can put right; None for a defect, which keeps its traceback."""
    if isinstance(error, TakeoverError):
        return str(error)
    if isinstance(error, Exception) and is_out_of_memory(error):
        return f"too little memory ({first_line(error)}); free some, or give smaller models, a smaller dtype or batch_size"
    return describe_refusal(error)


def install_error_hook() -> None:
    """Let errors of a user and signals end this process with one line, if it is one of the two commands."""
    if not is_our_command() or getattr(sys.excepthook, "takeover", False):
        return
    _prepare_streams()
    stopping.catch_sigterm()
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if (line := describe_error(error)) is not None:
            print(f"error: {for_terminal(line)}", file=sys.stderr)
            # SystemExit in the hook sets the status; exit handlers still run.
            raise SystemExit(2)
        if (stop := stopping.find_stop(error)) is not None:
            print(for_terminal(stopping.last_words()), file=sys.stderr)
            stopping.end_at_once()
            raise SystemExit(stopping.status(stop))
        previous(kind, error, trace)

    hook.takeover = True  # type: ignore[attr-defined]
    sys.excepthook = hook
