"""The file of a journal: its tables, a digest in every row, how it is made and opened, and what counts as damage.

SQLite keeps no checksums of its own outside its log, so every row ends with a digest of its values, and every trace begins with
one of its bytes.
"""

import hashlib
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs.layout import is_part_name
from lm_eval_takeover.storage.regular_files import open_regular
from lm_eval_takeover.storage.whole_files import sync_folder

SCHEMA = 2  # 1 had no `truncated`
APPLICATION = 0x54414B45  # 'TAKE', in the header of the file
# For each table: the columns that its digest is of, and what follows them. In `samples`, `trace` is packed (`traces`) behind a
# checksum until it is in a part; then it is null, `part` the name of that file and `place` the digest of (key, part).
TABLES = {
    "samples": (
        "key BLOB NOT NULL UNIQUE, task TEXT NOT NULL, doc_id INTEGER NOT NULL, sample INTEGER NOT NULL, text TEXT NOT NULL, "
        "tokens INTEGER NOT NULL, takeovers INTEGER NOT NULL, base_passes INTEGER NOT NULL, guide_passes INTEGER NOT NULL, "
        "truncated INTEGER NOT NULL",
        "digest BLOB NOT NULL, trace BLOB, part TEXT, place BLOB",
    ),
    "asked": (
        "command TEXT NOT NULL, task TEXT NOT NULL, doc TEXT NOT NULL, idx INTEGER NOT NULL, sample INTEGER NOT NULL, "
        "doc_id INTEGER NOT NULL, prompt TEXT NOT NULL, key BLOB NOT NULL",
        "digest BLOB NOT NULL, PRIMARY KEY (command, task, doc, idx, sample)",
    ),
    "attempts": (
        "id INTEGER PRIMARY KEY, command TEXT NOT NULL, facts TEXT NOT NULL, seconds REAL NOT NULL",
        "digest BLOB NOT NULL",
    ),
    "verdicts": (
        "doc TEXT NOT NULL, response BLOB NOT NULL, answer TEXT, outcome TEXT NOT NULL",
        "digest BLOB NOT NULL, PRIMARY KEY (doc, response)",
    ),
}
COLUMNS = {table: [column.split()[0] for column in columns.split(", ")] for table, (columns, _) in TABLES.items()}


_KINDS: dict[str, tuple[type, ...]] = {"BLOB": (bytes,), "TEXT": (str,), "INTEGER": (int,), "REAL": (int, float)}
_TYPES = {  # what the values may be that the digest is of, by table; the one column without NOT NULL is `verdicts.answer`
    table: [(*_KINDS[kind], *(() if rest else (type(None),))) for _, kind, *rest in map(str.split, columns.split(", "))]
    for table, (columns, _) in TABLES.items()
}
_LARGEST = 2**53  # of a count or a number of a document


def column_names(table: str) -> str:
    """The columns that the digest of a row is of, for a query."""
    return ", ".join(COLUMNS[table])


def row_digest(row: Sequence[Any]) -> bytes:
    """16 bytes over types and values of a row; no two rows run into each other."""
    found = hashlib.blake2b(digest_size=16)
    for value in row:
        if isinstance(value, bytes):
            kind, data = b"b", value
        elif isinstance(value, str):
            kind, data = b"s", value.encode(errors="surrogatepass")
        else:
            kind, data = b"n", repr(value).encode()
        found.update(b"%s%d:" % (kind, len(data)))
        found.update(data)
    return found.digest()


def is_row_sound(table: str, row: Sequence[Any], digest: Any) -> bool:
    """Whether a row agrees with its digest and has the types of its table, which SQLite does not ask for."""
    typed = all(isinstance(value, kind) for value, kind in zip(row, _TYPES[table], strict=True))
    numbers = (value for value in row if isinstance(value, (int, float)))
    return row_digest(row) == digest and typed and all(0 <= number <= _LARGEST for number in numbers)


def add_checksum(trace: bytes) -> bytes:
    """8 bytes of digest, then the trace."""
    return hashlib.blake2b(trace, digest_size=8).digest() + trace


def strip_checksum(blob: Any) -> bytes | None:
    """The trace behind its checksum; None where they do not agree."""
    sound = isinstance(blob, bytes) and hashlib.blake2b(blob[8:], digest_size=8).digest() == blob[:8]
    return blob[8:] if sound else None


def is_trace_sound(key: Any, trace: Any, part: Any, place: Any) -> bool:
    """Whether a sample's trace agrees with its checksum, or the name of its part with `place`; a sample may have no trace."""
    if part is not None:
        return is_part_name(part) and bool(row_digest((key, part)) == place)
    return trace is None or strip_checksum(trace) is not None


class Damaged(Exception):
    """A journal that is not sound; the text says where."""


# Primary result codes of SQLite that say nothing of the file: disk, rights, memory, another process.
ENVIRONMENT = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT,
}  # fmt: skip


def is_damage(error: BaseException) -> bool:
    """Whether an error says that the file is not sound."""
    if isinstance(error, sqlite3.DatabaseError):
        return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in ENVIRONMENT
    return isinstance(error, (ValueError, TypeError)) and not isinstance(error, RunDirError)


def check_header(path: Path) -> None:
    """Raises Damaged for headers that SQLite would take for an empty file, or for one of a version that it may only read."""
    with os.fdopen(open_regular(path), "rb") as stream:
        header = stream.read(20)
    if len(header) < 20:
        raise Damaged("it is cut off")
    if not header.startswith(b"SQLite format 3\0") or not {header[18], header[19]} <= {1, 2}:
        raise Damaged("it is no SQLite file")


def connect(path: Path, read_only: bool) -> sqlite3.Connection:
    """A connection to a file that exists."""
    options = "?mode=ro" if read_only else "?mode=rw"
    if read_only and not path.with_name(path.name + "-wal").exists():
        options += "&immutable=1"  # no log, so no writer: works in a read-only folder, too
    return sqlite3.connect(path.absolute().as_uri() + options, uri=True, timeout=30, check_same_thread=False)


def create_journal(path: Path) -> None:
    """An empty journal, there whole or not at all: a file without tables is a damaged one."""
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.unlink(missing_ok=True)
    with closing(sqlite3.connect(unfinished)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        for table, (columns, rest) in TABLES.items():
            connection.execute(f"CREATE TABLE {table} ({columns}, {rest})")
        connection.execute("CREATE INDEX untraced ON samples (part) WHERE part IS NULL")
        connection.execute("CREATE INDEX named ON samples (task, doc_id, sample)")
        connection.execute(f"PRAGMA application_id={APPLICATION}")
        connection.execute(f"PRAGMA user_version={SCHEMA}")
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()  # closing does not report a full disk
    unfinished.replace(path)
    sync_folder(path.parent)
