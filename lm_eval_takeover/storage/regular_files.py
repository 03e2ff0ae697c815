"""Reads files that someone else may have made: regular files only, and no more bytes than expected."""

import errno
import os
import stat
from pathlib import Path


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file. Raises OSError for symbolic links, pipes, devices and folders; a pipe cannot block it."""
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refuse(path, "a symbolic link") from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _refuse(path, "no regular file")
    return handle


def read_bounded(path: Path, most: int = 2**26) -> bytes:
    """The whole file. Raises OSError for one of more than `most` bytes, whose rest is not read."""
    with path.open("rb") as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most // 2**20} MB", str(path))
    return data


def _refuse(path: Path, what: str) -> OSError:
    return OSError(errno.EINVAL, f"it is {what}; remove it", str(path))
