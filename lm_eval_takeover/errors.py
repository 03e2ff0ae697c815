"""Errors of a user, each one line that says what was wrong and what to do.

Python callers get the exception. The two commands print its line (`stopping`); every other exception keeps its traceback.
"""

import errno
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import TypeVar

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


# Of files that the system does not open or write: for their rights, their names, a full disk.
_REFUSED = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}


def describe_error(error: BaseException) -> str | None:
    """The line on an error that the user can put right; None for a defect, which keeps its traceback."""
    if isinstance(error, TakeoverError):
        return str(error)
    if isinstance(error, Exception) and is_out_of_memory(error):
        return f"too little memory ({first_line(error)}); free some, or give smaller models, a smaller dtype or batch_size"
    if not isinstance(error, OSError) or error.filename is None or error.errno not in _REFUSED:
        return None
    return f"'{error.filename}' cannot be used: {error.strerror}; change its rights, make room, or choose another"
