"""Opening a file under a fixed name in a folder that someone else may have made: a regular file, or an error."""

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


def _refuse(path: Path, what: str) -> OSError:
    return OSError(errno.EINVAL, f"it is {what}; remove it", str(path))
