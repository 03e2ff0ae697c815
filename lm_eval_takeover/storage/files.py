"""Files that someone else may have named or made, read within bounds; files of ours, written whole or not at all; locks."""

import contextlib
import errno
import fcntl
import glob
import os
import re
import secrets
import stat
from collections.abc import Callable
from os.path import realpath
from pathlib import Path
from typing import BinaryIO

_PACKAGE = Path(__file__).parent.parent
# Folders of data; in a checkout they are links to folders at its top.
TASK_CONFIGS, CALIBRATIONS = _PACKAGE / "task_configs", _PACKAGE / "data" / "calibration"
_LONGEST = 200  # bytes of a component; file systems take 255, and suffixes follow


def make_component(name: str) -> str:
    """A name as one component of a path: letters, digits and `._+@=-` stay, all else is a `-`. Never empty, hidden or `..`."""
    component = re.sub(r"[^\w.+@=-]", "-", name).encode()[:_LONGEST].decode(errors="ignore")
    return re.sub(r"^\.", "_", component) or "_"


def join_inside(root: Path, *components: str) -> Path:
    """A path below `root`. Raises ValueError where `..`, an absolute name or a link leads out of it."""
    path = root.joinpath(*components)
    if not Path(realpath(path)).is_relative_to(realpath(root)) or ".." in path.relative_to(root).parts:
        raise ValueError(f"'{path}' lies outside of '{root}'")
    return path


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


# Writing

written: list[Path] = []  # by the command at hand


def describe_written() -> str:
    """What a command that is stopped has written so far."""
    if not written:
        return "nothing was written"
    return f"files that were written: {len(written)}, the last one '{written[-1]}'; the same command writes all of them again"


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """`write` fills a file that then takes the name. Keeps an old file's mode, makes folders. An OSError names `path`."""
    make_folder(path.parent)
    _remove_abandoned(path)
    unfinished, handle = _create_locked(path)
    try:
        with os.fdopen(handle, "wb") as stream:
            with contextlib.suppress(FileNotFoundError):  # the rights of the file that it replaces
                mode = path.lstat().st_mode
                if stat.S_ISREG(mode):
                    os.fchmod(handle, stat.S_IMODE(mode) & 0o777)
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
            unfinished.replace(path)
        written.append(path)
        sync_folder(path.parent)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise


def _create_locked(path: Path) -> tuple[Path, int]:
    """A new hidden file beside this one, locked while its handle is open."""
    while True:
        unfinished = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return unfinished, handle
        os.close(handle)  # before it was locked, another process took it for abandoned


def _remove_abandoned(path: Path) -> None:
    """Remove what processes that were killed left of this file: nobody has a lock on it."""
    for unfinished in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 12}"):
        with contextlib.suppress(OSError), os.fdopen(open_regular(unfinished), "rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unfinished.unlink()


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, and write their names to disk."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        if folder == folder.parent:
            break
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        sync_folder(new.parent)


def sync_folder(folder: Path) -> None:
    """Write the folder to disk, so that a new name survives a power failure. Some file systems cannot."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    """`write_whole` of a text in UTF-8."""
    write_whole(path, lambda stream: stream.write(text.encode()))


# Locks


class Locked(Exception):
    """Another process holds the lock; the text says which, where that is known."""


class Lock(contextlib.AbstractContextManager["Lock"]):
    """An exclusive lock on a file, held until `release` or the end of the process. Raises OSError, and Locked unless `wait`."""

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        self.path = path
        handle = open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BaseException as error:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip()
            os.close(handle)
            if isinstance(error, BlockingIOError):
                raise Locked(holder or "another process") from None
            raise
        self._handle: int | None = handle
        _write_holder(handle, f"process {os.getpid()} on {os.uname().nodename}\n")

    def is_in_place(self) -> bool:
        """Whether the locked file still has its name: not where its folder was moved or removed."""
        try:
            return self._handle is not None and os.path.samestat(os.fstat(self._handle), self.path.lstat())
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self, *error: object) -> None:
        """Release the lock. The file stays."""
        if self._handle is not None:
            _write_holder(self._handle, "")
            os.close(self._handle)
            self._handle = None

    __exit__ = release


def _write_holder(handle: int, text: str) -> None:
    """For people: on a full disk the lock holds, too. Not into a hard link, since another file has this content."""
    with contextlib.suppress(OSError):
        if os.fstat(handle).st_nlink == 1:
            os.truncate(handle, 0)
            os.pwrite(handle, text.encode(), 0)
