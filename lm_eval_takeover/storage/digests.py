"""Digests of values, texts, files and folders.

A file counts by all its bytes. Those of a large one are read once: its digest is kept in the user's cache folder, under its path,
size, times and inode, as long as none of them changes.
"""

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from os.path import realpath
from pathlib import Path
from typing import Any

from lm_eval_takeover.storage.files import open_input, read_bounded, write_whole

_KEPT = 2**24  # bytes of a file whose digest is kept: a smaller one is read in 20 ms
_SETTLED = 2.0  # seconds; a file that was written later may change again within one tick of its file system's clock


def digest_of(value: Any) -> str:
    """32 hexadecimal digits of a task's document, or of any other JSON value."""
    return digest_of_text(json.dumps(value, sort_keys=True, default=str, ensure_ascii=True)).hex()


def digest_of_text(text: str) -> bytes:
    """16 bytes of a text."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def digest_path(path: Path) -> str:
    """Of a file, or of all files in a folder, sub-folders too, but for hidden ones and Python's caches. Raises OSError."""
    if not path.is_dir():
        return _digest_file(path)
    inside = (file.relative_to(path) for file in path.rglob("*") if file.is_file())
    return digest_files(path, (f for f in inside if not any(part[0] == "." or part == "__pycache__" for part in f.parts)))


def digest_files(folder: Path, names: Iterable[Path]) -> str:
    """Of these files of a folder with their names, whatever the folder's own is. Raises OSError."""
    ordered = sorted(set(names))
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:  # hashlib lets others run meanwhile
        digests = threads.map(lambda name: _digest_file(folder / name), ordered)
        return digest_of([[name.as_posix(), digest] for name, digest in zip(ordered, digests, strict=True)])


def _digest_file(path: Path) -> str:
    """32 hexadecimal digits of a file's bytes."""
    opened: Any = open_input(path)
    with opened as stream:
        state = os.fstat(stream.fileno())
        kept = None
        if state.st_size >= _KEPT:
            times = state.st_mtime_ns, state.st_ctime_ns
            name = digest_of([realpath(path), state.st_size, *times, state.st_dev, state.st_ino])
            kept = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lm-eval-takeover" / "digests" / name
            with contextlib.suppress(OSError):
                if re.fullmatch(rb"[0-9a-f]{32}", digest := read_bounded(kept, 32)):
                    return digest.decode()
        made = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        changed = os.fstat(stream.fileno())
    settled = time.time() - max(state.st_mtime, state.st_ctime) > _SETTLED
    if kept and settled and (state.st_size, state.st_mtime_ns) == (changed.st_size, changed.st_mtime_ns):
        with contextlib.suppress(OSError):  # no folder of the user's, or a full disk: it is read again next time
            write_whole(kept, lambda stream: stream.write(made.encode()))
    return made
