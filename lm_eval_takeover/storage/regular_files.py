"""Reads files that someone else may have made: regular files only, and no more bytes than expected."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path, flags: int = os.O_RDONLY, *, follow: bool = False) -> int:
    """A descriptor of a regular file. OSError for pipes, which cannot block it, devices, folders, and links unless `follow`."""
    try:
        handle = os.open(path, flags | (0 if follow else os.O_NOFOLLOW) | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.EINVAL, "it is a symbolic link; remove it", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        why = f"it is a folder, a pipe or a device{'' if follow else '; remove it'}"
        raise OSError(errno.EINVAL, why, str(path))
    return handle


def open_input(path: Path) -> BinaryIO:
    """Open a regular file, or a link to one, for reading. Raises OSError."""
    return os.fdopen(open_regular(path, follow=True), "rb")


def read_bounded(path: Path, most: int = 2**26) -> bytes:
    """A whole regular file. Raises OSError for one of more than `most` bytes, whose rest is not read."""
    with open_input(path) as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most // 2**20} MB", str(path))
    return data
