"""The file of a journal: its tables, how it is made and opened. Rows and traces have digests, since SQLite keeps no checksums."""

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from lm_eval_takeover import __version__
from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.storage.regular_files import open_regular
from lm_eval_takeover.storage.whole_files import sync_folder

_SCHEMA = 8
_APPLICATION = 0x54414B45  # 'TAKE', in the header of the file
# Of each table the digested columns, and the others.
_TABLES = {
    "samples": (
        "key BLOB NOT NULL UNIQUE, task TEXT NOT NULL, doc_id INTEGER NOT NULL, sample INTEGER NOT NULL, text TEXT NOT NULL, "
        "tokens INTEGER NOT NULL, takeovers INTEGER NOT NULL, changed INTEGER, asked INTEGER NOT NULL, "
        "base_passes INTEGER NOT NULL, guide_passes INTEGER NOT NULL, truncated INTEGER NOT NULL, score_sum REAL, spikes INTEGER",
        "digest BLOB NOT NULL",
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
COLUMNS = {table: [column.split()[0] for column in columns.split(", ")] for table, (columns, _) in _TABLES.items()}
_STATEMENTS = (
    *(f"CREATE TABLE {table} ({columns}, {rest})" for table, (columns, rest) in _TABLES.items()),
    "CREATE TABLE traces (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, trace BLOB NOT NULL)",  # a trace behind its checksum
)

_KINDS: dict[str, tuple[type, ...]] = {"BLOB": (bytes,), "TEXT": (str,), "INTEGER": (int,), "REAL": (int, float)}
_TYPES = {  # of the columns that the digest is of, by table; those without NOT NULL may be null
    table: [(*_KINDS[kind], *(() if rest else (type(None),))) for _, kind, *rest in map(str.split, columns.split(", "))]
    for table, (columns, _) in _TABLES.items()
}
_LARGEST = 2**53  # of a count or a number of a document
# No journal of ours needs more.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 2**27, sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10**5, sqlite3.SQLITE_LIMIT_COLUMN: 50,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 20, sqlite3.SQLITE_LIMIT_ATTACHED: 0, sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}  # fmt: skip


def column_names(table: str) -> str:
    """The columns that the digest of a row is of, for a query."""
    return ", ".join(COLUMNS[table])


def row_digest(row: Sequence[Any]) -> bytes:
    """16 bytes over types and values of a row, as Python writes them in ASCII: no two rows run into each other."""
    return hashlib.blake2b(ascii(tuple(row)).encode(), digest_size=16).digest()


def add_checksum(key: bytes, trace: bytes) -> bytes:
    """8 bytes of digest over the sample's key and the trace, then the trace."""
    return hashlib.blake2b(key + trace, digest_size=8).digest() + trace


def strip_checksum(key: bytes, blob: Any) -> bytes:
    """The trace behind its checksum. Raises Damaged where it is not the trace of this key as it was written."""
    if not isinstance(blob, bytes) or add_checksum(key, blob[8:]) != blob:
        raise Damaged("a trace has changed")
    return blob[8:]


class Damaged(Exception):
    """A journal that is not sound; the text says where."""


# Result codes of SQLite for disk, rights, memory and other processes: the file may be sound.
_ENVIRONMENT = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT,
}  # fmt: skip


@contextmanager
def finding_damage() -> Iterator[None]:
    """Raise Damaged for errors that say that the file is not sound."""
    try:
        yield
    except (sqlite3.DatabaseError, ValueError, TypeError) as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if isinstance(error, RunDirError) or code & 0xFF in _ENVIRONMENT:
            raise
        raise Damaged(str(error)) from error


def open_journal_file(path: Path, *, read_only: bool, check: bool = True) -> sqlite3.Connection:
    """A connection to a journal that is there and sound, its traces apart. Raises Damaged, or RunDirError for another version.

    Without `check` the rows are not compared with their digests: they were a moment ago.
    """
    _check_header(path)
    options = "?mode=ro" if read_only else "?mode=rw"
    if read_only and not path.with_name(path.name + "-wal").exists():
        options += "&immutable=1"  # no log, so no writer: works in a read-only folder, too
    connection = sqlite3.connect(path.absolute().as_uri() + options, uri=True, timeout=30, check_same_thread=False)
    try:
        for limit, most in _LIMITS.items():
            connection.setlimit(limit, most)
        with finding_damage():
            connection.execute("PRAGMA trusted_schema=OFF")
            connection.execute("PRAGMA synchronous=FULL")
            _check_schema(connection, path)
            if check:
                _check_content(connection, *([] if read_only else ["traces"]))
    except BaseException:
        connection.close()
        raise
    return connection


def _check_header(path: Path) -> None:
    """Raises Damaged for headers that SQLite would take for an empty file, or for one of a version that it may only read."""
    with os.fdopen(open_regular(path), "rb") as stream:
        header = stream.read(20)
    if len(header) < 20:
        raise Damaged("it is cut off")
    if not header.startswith(b"SQLite format 3\0") or not {header[18], header[19]} <= {1, 2}:
        raise Damaged("it is no SQLite file")


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Tables are exactly ours: a stranger's could have computed columns, triggers and views."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise Damaged("it is no journal")
    if schema != _SCHEMA:
        raise RunDirError(
            f"'{path}' was written by another version of lm-eval-takeover, and this is {__version__}, which cannot read it; give "
            f"another run_dir, or use that version"
        )
    statements = [sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT 99")]
    if sorted(statements) != sorted(_STATEMENTS):
        raise Damaged("its tables are not those of a journal")


def _check_content(connection: sqlite3.Connection, *more: str) -> None:
    """Compare every row with its digest and its types: SQLite checks neither. Of the tables `more` only the structure."""
    for table in (*COLUMNS, *more):
        problem = connection.execute(f"PRAGMA integrity_check({table})").fetchone()[0]
        if problem != "ok":
            raise Damaged(problem.splitlines()[-1])
    for table in COLUMNS:
        for *row, digest in connection.execute(f"SELECT {column_names(table)}, digest FROM {table}"):
            typed = all(isinstance(value, kind) for value, kind in zip(row, _TYPES[table], strict=True))
            numbers = (value for value in row if isinstance(value, (int, float)))
            if row_digest(row) != digest or not typed or not all(0 <= number <= _LARGEST for number in numbers):
                raise Damaged(f"a row of the table {table} has changed")


def create_journal(path: Path) -> None:
    """An empty journal, there whole or not at all: a file without tables is a damaged one."""
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.unlink(missing_ok=True)
    with closing(sqlite3.connect(unfinished)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        for statement in _STATEMENTS:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id={_APPLICATION}")
        connection.execute(f"PRAGMA user_version={_SCHEMA}")
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()  # closing does not report a full disk
    unfinished.replace(path)
    sync_folder(path.parent)
