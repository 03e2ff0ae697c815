"""Writes files whole or not at all: an old file stays until the new one is on disk."""

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

written: list[Path] = []  # by the command at hand


def describe_written() -> str:
    """What a command that is stopped has written so far."""
    if not written:
        return "nothing was written"
    return f"files that were written: {len(written)}, the last one '{written[-1]}'; the same command writes all of them again"


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """`write` fills a file that then takes the name. Keeps an old file's mode, makes folders. An OSError names `path`."""
    make_folder(path.parent)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
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
