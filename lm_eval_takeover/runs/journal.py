"""The journal of a run: one row per finished sample, in SQLite, which commits a row whole or not at all.

SQLite keeps no checksums of its own outside its log, so every row ends with one: what comes out is what went in, or the row does
not count.
"""

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.tasks.verdict_log import Verdict

SCHEMA = 1
_APPLICATION = 0x54414B45  # 'TAKE', in the header of the file
# For each table: columns under the digest, and what follows them.
_TABLES = {
    "samples": (
        "key BLOB NOT NULL UNIQUE, task TEXT NOT NULL, doc_id INTEGER NOT NULL, sample INTEGER NOT NULL, text TEXT NOT NULL, "
        "tokens INTEGER NOT NULL, takeovers INTEGER NOT NULL, base_passes INTEGER NOT NULL, guide_passes INTEGER NOT NULL",
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
_COLUMNS = {table: [column.split()[0] for column in its.split(", ")] for table, (its, _) in _TABLES.items()}
_AT_ONCE = 500  # keys in one question


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished sample. `tokens`, `takeovers` and passes are counts; `trace` holds its tokens until they are in a part.

    A key stands for a text: where several tasks ask for it, `task`, `doc_id` and `sample` are those of the first.
    """

    key: bytes
    task: str
    doc_id: int
    sample: int
    text: str
    tokens: int
    takeovers: int
    base_passes: int
    guide_passes: int
    trace: bytes | None = None

    @property
    def row(self) -> tuple[Any, ...]:
        return (
            self.key, self.task, self.doc_id, self.sample, self.text,
            self.tokens, self.takeovers, self.base_passes, self.guide_passes,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """One sample that a command asked for, and the key that answers it. `doc` and `prompt` are digests."""

    task: str
    doc: str
    idx: int
    sample: int
    doc_id: int
    prompt: str
    key: bytes


def digest(row: Sequence[Any]) -> bytes:
    """16 bytes that stand for the values of a row, whatever their types are."""
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


def sealed(trace: bytes) -> bytes:
    """With a digest in front, so that a damaged one is noticed."""
    return hashlib.blake2b(trace, digest_size=8).digest() + trace


def unsealed(blob: Any) -> bytes | None:
    """What was sealed; None if it is damaged."""
    sound = isinstance(blob, bytes) and hashlib.blake2b(blob[8:], digest_size=8).digest() == blob[:8]
    return blob[8:] if sound else None


class Damaged(Exception):
    """A journal that is not sound; the text says where."""


class Journal:
    """One journal file, of one process. Raises Damaged for a file that is not sound, and sqlite3's errors.

    All calls come from one thread at a time. What is read is compared with its digest, and left out where it differs.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        if not read_only and not path.exists():
            create(path)
        _check_header(path)
        self._connection = _connect(path, read_only)
        self._attempt: tuple[int, float] | None = None  # its number, and when it began
        self._command = "", "{}"
        try:
            self._check()
        except BaseException as error:
            self._connection.close()
            if is_damage(error):
                raise Damaged(str(error)) from error
            raise

    def _check(self) -> None:
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (schema,) = self._connection.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION:
            raise Damaged("it is no journal")
        if schema > SCHEMA:
            raise RunDirError(
                f"'{self.path}' was written by a newer version (schema {schema}, known {SCHEMA}); upgrade lm-eval-takeover"
            )
        names = {name for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if missing := _TABLES.keys() - names:
            raise Damaged(f"the table {min(missing)} is missing")
        found = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise Damaged(found.splitlines()[-1])
        self._connection.execute("PRAGMA synchronous=FULL")

    def check_rows(self) -> None:
        """Compare every row with its digest: the content that SQLite itself does not check."""
        try:
            for table in _TABLES:
                for *row, seal in self._connection.execute(f"SELECT {_names(table)}, digest FROM {table}"):
                    if digest(row) != seal:
                        raise Damaged(f"a row of the table {table} has changed")
            for key, *trace in self._connection.execute("SELECT key, trace, part, place FROM samples"):
                if not _trace_is_sound(key, *trace):
                    raise Damaged("a trace has changed")
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            if is_damage(error):
                raise Damaged(str(error)) from error
            raise

    def _sound(self, table: str, rest: str = "", values: Sequence[Any] = ()) -> Iterator[list[Any]]:
        """Rows of a table, those that have changed left out."""
        for *row, seal in self._connection.execute(f"SELECT {_names(table)}, digest FROM {table} {rest}", values):
            if digest(row) == seal:
                yield row

    def _put(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        marks = ", ".join("?" * (len(_COLUMNS[table]) + 1))
        self._connection.executemany(
            f"INSERT OR REPLACE INTO {table} ({_names(table)}, digest) VALUES ({marks})",
            [(*row, digest(row)) for row in rows],
        )

    # Samples

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Sample]:
        """The samples of these keys that are here, sound ones only."""
        found = {}
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            for row in self._sound("samples", f"WHERE key IN ({','.join('?' * len(some))})", some):
                found[row[0]] = Sample(*row)
        return found

    def add(self, samples: Iterable[Sample]) -> None:
        """Commit these rows, on disk when this returns; a key that is here already stays as it is."""
        rows = [(*one.row, digest(one.row), None if one.trace is None else sealed(one.trace)) for one in samples]
        with self._connection:
            self._connection.executemany(
                f"INSERT OR IGNORE INTO samples ({_names('samples')}, digest, trace) VALUES ({','.join('?' * 11)})",
                rows,
            )
            self._tick()

    def untraced(self, tokens: int) -> list[Sample]:
        """Samples whose traces are in no part yet, up to about so many tokens."""
        found: list[Sample] = []
        total = 0
        rows = self._connection.execute(
            f"SELECT {_names('samples')}, trace FROM samples WHERE part IS NULL AND trace IS NOT NULL ORDER BY rowid"
        )
        for *row, blob in rows:
            trace = unsealed(blob)
            if trace is None:
                raise Damaged("a trace has changed")
            found.append(replace(Sample(*row), trace=trace))
            total += found[-1].tokens
            if total >= tokens:
                break
        return found

    def untraced_tokens(self) -> int:
        """How many tokens are in no part yet."""
        question = "SELECT total(tokens) FROM samples WHERE part IS NULL AND trace IS NOT NULL"
        return int(self._connection.execute(question).fetchone()[0])

    def into_part(self, keys: Sequence[bytes], part: str) -> None:
        """The traces of these samples are in the part of that name."""
        with self._connection:
            cursor = self._connection.executemany(
                "UPDATE samples SET part = ?, place = ?, trace = NULL WHERE key = ?",
                [(part, digest((key, part)), key) for key in keys],
            )
            if cursor.rowcount != len(keys):
                raise sqlite3.DatabaseError(f"{len(keys) - cursor.rowcount} rows cannot be found by their keys")
            self._tick()

    def parts(self) -> set[str]:
        """The parts that traces of this journal's samples are in."""
        return {
            part for (part,) in self._connection.execute("SELECT DISTINCT part FROM samples WHERE part IS NOT NULL")
        }

    def holds(self, names: Iterable[tuple[str, int, int]]) -> bool:
        """Whether there is a traced sample of every (task, doc_id, sample)."""
        traced = "(trace IS NOT NULL OR part IS NOT NULL)"
        question = f"SELECT count(*) FROM samples WHERE task = ? AND doc_id = ? AND sample = ? AND {traced}"
        return all(self._connection.execute(question, name).fetchone()[0] for name in names)

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM samples").fetchone()[0])

    # Attempts

    def begin_attempt(self) -> None:
        """One more process is at work; its time counts from here on, and its command once it is known."""
        (number,) = self._connection.execute("SELECT coalesce(max(id), 0) + 1 FROM attempts").fetchone()
        self._attempt = number, time.monotonic()
        self._command = "", "{}"
        with self._connection:
            self._tick()

    def begin_command(self, command: str, facts: dict[str, Any]) -> None:
        """What this attempt works on; where that has been another one, a new attempt begins."""
        if self._command[0] not in ("", command):
            self.tick()
            self.begin_attempt()
        self._command = command, json.dumps(facts)
        self.tick()

    def _tick(self) -> None:
        if self._attempt is not None:
            number, started = self._attempt
            self._put("attempts", [(number, *self._command, time.monotonic() - started)])

    def tick(self) -> None:
        """Enter the time that this attempt has taken so far."""
        with self._connection:
            self._tick()

    def attempts(self, command: str) -> list[tuple[dict[str, Any], float]]:
        """All attempts at a command, the oldest first: facts of each, and its seconds."""
        rows = self._sound("attempts", "WHERE command = ? ORDER BY id", (command,))
        return [(json.loads(facts), seconds) for _, _, facts, seconds in rows]

    def commands(self) -> list[str]:
        """All commands that were at work here, the latest last."""
        rows = self._sound("attempts", "ORDER BY id DESC")
        return list(dict.fromkeys(command for _, command, _, _ in rows if command))[::-1]

    # What was asked, and what it was worth

    def ask(self, command: str, asked: Iterable[Asked]) -> None:
        """Remember which sample answers what."""
        with self._connection:
            self._put("asked", ((command, a.task, a.doc, a.idx, a.sample, a.doc_id, a.prompt, a.key) for a in asked))

    def asked(self, command: str) -> list[Asked]:
        """All that a command has asked for."""
        return [Asked(*row[1:]) for row in self._sound("asked", "WHERE command = ?", (command,))]

    def judge(self, verdicts: Iterable[Verdict]) -> None:
        """Remember verdicts."""
        with self._connection:
            self._put("verdicts", verdicts)
            self._tick()

    def verdicts(self) -> dict[tuple[str, bytes], tuple[str | None, str]]:
        """(answer, outcome) by (digest of the document, digest of the response)."""
        return {(doc, response): (answer, outcome) for doc, response, answer, outcome in self._sound("verdicts")}

    def checkpoint(self) -> None:
        """Have everything in the file, and nothing in its log. Closing does it, too, but keeps silent where it cannot."""
        (busy, *_) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise sqlite3.OperationalError("its log cannot be written back")

    def close(self) -> None:
        self._connection.close()


def _names(table: str) -> str:
    return ", ".join(_COLUMNS[table])


def _trace_is_sound(key: Any, trace: Any, part: Any, place: Any) -> bool:
    """Whether a trace is what was written, or where it was put; a sample may have none."""
    if part is not None:
        return bool(digest((key, part)) == place)
    return trace is None or unsealed(trace) is not None


def is_damage(error: BaseException) -> bool:
    """Whether the file is to blame, and not the disk, its rights, another process or who reads it."""
    if isinstance(error, sqlite3.DatabaseError):
        return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _ENVIRONMENT
    return isinstance(error, (ValueError, TypeError)) and not isinstance(error, RunDirError)


_ENVIRONMENT = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT,
}  # fmt: skip


def _check_header(path: Path) -> None:
    """What SQLite would take for an empty file, or for one of another version that it may only read."""
    with path.open("rb") as stream:
        header = stream.read(20)
    if len(header) < 20:
        raise Damaged("it is cut off")
    if not header.startswith(b"SQLite format 3\0") or not {header[18], header[19]} <= {1, 2}:
        raise Damaged("it is no SQLite file")


def _connect(path: Path, read_only: bool) -> sqlite3.Connection:
    options = "?mode=ro" if read_only else "?mode=rw"
    if read_only and not path.with_name(path.name + "-wal").exists():
        options += "&immutable=1"  # nobody is at work, and the folder may be read-only
    return sqlite3.connect(path.absolute().as_uri() + options, uri=True, timeout=30, check_same_thread=False)


def create(path: Path) -> None:
    """An empty journal, there whole or not at all: a file without tables is a damaged one."""
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.unlink(missing_ok=True)
    with closing(sqlite3.connect(unfinished)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        for table, (columns, rest) in _TABLES.items():
            connection.execute(f"CREATE TABLE {table} ({columns}, {rest})")
        connection.execute("CREATE INDEX untraced ON samples (part) WHERE part IS NULL")
        connection.execute("CREATE INDEX named ON samples (task, doc_id, sample)")
        connection.execute(f"PRAGMA application_id={_APPLICATION}")
        connection.execute(f"PRAGMA user_version={SCHEMA}")
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()  # closing would not say that the disk is full
    unfinished.replace(path)


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What is sound in a damaged journal: samples, each with the part that holds its trace, and rows of the other tables."""

    samples: list[tuple[Sample, str | None]]
    others: dict[str, list[list[Any]]]

    def write(self, journal: Journal) -> None:
        """Enter the rows of the other tables."""
        with journal._connection:
            for table, rows in self.others.items():
                journal._put(table, rows)


@contextmanager
def _suppress_damage() -> Iterator[None]:
    """Go on behind what cannot be read; but a full memory or a locked file is no damage."""
    try:
        yield
    except (sqlite3.Error, ValueError, TypeError) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _ENVIRONMENT and code != sqlite3.SQLITE_IOERR:  # a file that is cut off gives it, too
            raise


def salvage(path: Path) -> Salvaged:
    """The sound rows of a damaged journal, each table read from both ends. The file stays as it is."""
    found: dict[str, dict[bytes, list[Any]]] = {table: {} for table in _TABLES}
    with _suppress_damage(), closing(_connect(path, True)) as connection:
        connection.text_factory = lambda text: text.decode(errors="replace")
        for table in _TABLES:
            more = ", trace, part, place" if table == "samples" else ""
            question = f"SELECT {_names(table)}, digest{more} FROM {table} NOT INDEXED ORDER BY rowid"
            for order in ("ASC", "DESC"):
                with _suppress_damage():
                    for row in connection.execute(f"{question} {order}"):
                        count = len(_COLUMNS[table])
                        if digest(row[:count]) == row[count]:
                            found[table][row[count]] = list(row)
    samples = []
    for *row, _, trace, part, place in found.pop("samples").values():
        if _trace_is_sound(
            row[0], trace, part, place
        ):  # without its trace a sample would have to be written again, too
            samples.append((replace(Sample(*row), trace=unsealed(trace) if part is None else None), part))
    return Salvaged(samples, {table: [row[:-1] for row in rows.values()] for table, rows in found.items()})
