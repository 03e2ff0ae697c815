"""The journal of a run: one row per finished sample, in SQLite, which commits a row whole or not at all.

SQLite keeps no checksums of its own outside its log, so every row has one: what comes out is what went in, or the row does not
count. A file that is not sound is moved aside, and its sound rows go into a new one.
"""

import hashlib
import json
import logging
import sqlite3
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm_eval_takeover.errors import RunDirError

logger = logging.getLogger(__name__)

SCHEMA = 1
_APPLICATION = 0x54414B45  # 'TAKE', in the header of the file
_TABLES = """
CREATE TABLE samples (
    key BLOB NOT NULL UNIQUE, task TEXT NOT NULL, doc_id INTEGER NOT NULL, sample INTEGER NOT NULL, text TEXT NOT NULL,
    tokens INTEGER NOT NULL, takeovers INTEGER NOT NULL, base_passes INTEGER NOT NULL, guide_passes INTEGER NOT NULL,
    digest BLOB NOT NULL, trace BLOB, part TEXT
);
CREATE INDEX untraced ON samples (part) WHERE part IS NULL;
CREATE TABLE asked (
    settings TEXT NOT NULL, task TEXT NOT NULL, doc TEXT NOT NULL, idx INTEGER NOT NULL, sample INTEGER NOT NULL,
    doc_id INTEGER NOT NULL, prompt TEXT NOT NULL, key BLOB NOT NULL, PRIMARY KEY (settings, task, doc, idx, sample)
) WITHOUT ROWID;
CREATE TABLE attempts (
    id INTEGER PRIMARY KEY, settings TEXT NOT NULL, facts TEXT NOT NULL, seconds REAL NOT NULL
);
CREATE TABLE verdicts (
    doc TEXT NOT NULL, response BLOB NOT NULL, answer TEXT, outcome TEXT NOT NULL, PRIMARY KEY (doc, response)
) WITHOUT ROWID;
"""
_COLUMNS = "key, task, doc_id, sample, text, tokens, takeovers, base_passes, guide_passes"
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

    @property
    def digest(self) -> bytes:
        """Of everything but the trace."""
        names = json.dumps(self.row[1:], ensure_ascii=True).encode()
        return hashlib.blake2b(self.key + names, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Asked:
    """One sample that a run asked for, and the key that answers it. `doc` and `prompt` are digests of document and prompt."""

    task: str
    doc: str
    idx: int
    sample: int
    doc_id: int
    prompt: str
    key: bytes


def sealed(trace: bytes) -> bytes:
    """With a digest in front, so that a damaged one is noticed."""
    return hashlib.blake2b(trace, digest_size=8).digest() + trace


def unsealed(blob: bytes) -> bytes | None:
    """What was sealed; None if it is damaged."""
    return blob[8:] if hashlib.blake2b(blob[8:], digest_size=8).digest() == blob[:8] else None


class Damaged(Exception):
    """A journal that is not sound; the text says where."""


class Journal:
    """One journal file, of one process. Raises Damaged for a file that is not sound, and sqlite3's errors.

    All calls come from one thread at a time.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        if not read_only and not path.exists():
            _create(path)
        _check_header(path)
        self._connection = _connect(path, read_only)
        self._attempt: tuple[int, float] | None = None
        try:
            self._check()
        except BaseException as error:
            self._connection.close()
            if isinstance(error, sqlite3.DatabaseError) and is_damage(error):
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
        if missing := {"samples", "asked", "attempts", "verdicts"} - names:
            raise Damaged(f"the table {min(missing)} is missing")
        found = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise Damaged(found.splitlines()[0])
        self._connection.execute("PRAGMA synchronous=FULL")

    def check_rows(self) -> None:
        """Compare every row with its digest: the content that SQLite itself does not check."""
        for sample, digest in self._rows(f"SELECT {_COLUMNS}, digest FROM samples"):
            if sample.digest != digest:
                raise Damaged(f"the row of task {sample.task}, doc {sample.doc_id}, sample {sample.sample} has changed")

    def _rows(self, question: str, values: Sequence[Any] = ()) -> Iterator[tuple[Sample, bytes]]:
        for *row, digest in self._connection.execute(question, values):
            yield Sample(*row), digest

    # Samples

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Sample]:
        """The samples of these keys that are here, sound ones only."""
        found = {}
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            marks = ",".join("?" * len(some))
            for sample, digest in self._rows(f"SELECT {_COLUMNS}, digest FROM samples WHERE key IN ({marks})", some):
                if sample.digest == digest:
                    found[sample.key] = sample
        return found

    def add(self, samples: Iterable[Sample]) -> None:
        """Commit these rows, on disk when this returns; a key that is here already stays as it is."""
        rows = [(*one.row, one.digest, None if one.trace is None else sealed(one.trace)) for one in samples]
        with self._connection:
            self._connection.executemany(
                f"INSERT OR IGNORE INTO samples ({_COLUMNS}, digest, trace) VALUES ({','.join('?' * 11)})", rows
            )
            self._tick()

    def untraced(self, tokens: int) -> list[Sample]:
        """Samples whose traces are in no part yet, up to about so many tokens. Damaged traces are dropped with a notice."""
        found: list[Sample] = []
        total = 0
        question = f"SELECT {_COLUMNS}, trace FROM samples WHERE part IS NULL AND trace IS NOT NULL ORDER BY rowid"
        for sample, blob in self._rows(question):
            trace = unsealed(blob)
            if trace is None:
                logger.warning("%s: the trace of task %s, doc %d, sample %d is damaged; it is left out",
                               self.path, sample.task, sample.doc_id, sample.sample)  # fmt: skip
                continue
            found.append(replace(sample, trace=trace))
            total += sample.tokens
            if total >= tokens:
                break
        return found

    def untraced_tokens(self) -> int:
        """How many tokens are in no part yet."""
        (total,) = self._connection.execute(
            "SELECT total(tokens) FROM samples WHERE part IS NULL AND trace IS NOT NULL"
        ).fetchone()
        return int(total)

    def into_part(self, keys: Iterable[bytes], part: str) -> None:
        """The traces of these samples are in the part of that name."""
        with self._connection:
            self._connection.executemany(
                "UPDATE samples SET part = ?, trace = NULL WHERE key = ?", [(part, key) for key in keys]
            )
            self._tick()

    def parts(self) -> set[str]:
        """The parts that traces of this journal's samples are in."""
        return {
            part for (part,) in self._connection.execute("SELECT DISTINCT part FROM samples WHERE part IS NOT NULL")
        }

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM samples").fetchone()[0])

    # Attempts

    def begin_attempt(self, settings: str, facts: dict[str, Any]) -> None:
        """One more process works on this run; its time counts from here on."""
        with self._connection:
            cursor = self._connection.execute(
                "INSERT INTO attempts (settings, facts, seconds) VALUES (?, ?, 0)", (settings, json.dumps(facts))
            )
        assert cursor.lastrowid is not None
        self._attempt = cursor.lastrowid, time.monotonic()

    def _tick(self) -> None:
        if self._attempt is not None:
            number, started = self._attempt
            self._connection.execute(
                "UPDATE attempts SET seconds = ? WHERE id = ?", (time.monotonic() - started, number)
            )

    def tick(self) -> None:
        """Enter the time that this attempt has taken so far."""
        with self._connection:
            self._tick()

    def attempts(self, settings: str) -> list[tuple[dict[str, Any], float]]:
        """All attempts at a run, the oldest first: what each was called with, and its seconds."""
        rows = self._connection.execute(
            "SELECT facts, seconds FROM attempts WHERE settings = ? ORDER BY id", (settings,)
        )
        return [(_facts(facts), seconds) for facts, seconds in rows]

    def runs(self) -> list[str]:
        """The settings of all runs, the latest last."""
        rows = self._connection.execute("SELECT settings FROM attempts GROUP BY settings ORDER BY max(id)")
        return [settings for (settings,) in rows]

    # What was asked, and what it was worth

    def ask(self, settings: str, asked: Iterable[Asked]) -> None:
        """Remember which sample answers what."""
        rows = [(settings, a.task, a.doc, a.idx, a.sample, a.doc_id, a.prompt, a.key) for a in asked]
        with self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO asked VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def asked(self, settings: str) -> list[Asked]:
        """All that a run has asked for."""
        rows = self._connection.execute(
            "SELECT task, doc, idx, sample, doc_id, prompt, key FROM asked WHERE settings = ?", (settings,)
        )
        return [Asked(*row) for row in rows]

    def judge(self, verdicts: Iterable[tuple[str, bytes, str | None, str]]) -> None:
        """Remember verdicts: (digest of the document, digest of the response, answer, outcome)."""
        with self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?)", list(verdicts))
            self._tick()

    def verdicts(self) -> dict[tuple[str, bytes], tuple[str | None, str]]:
        rows = self._connection.execute("SELECT doc, response, answer, outcome FROM verdicts")
        return {(doc, response): (answer, outcome) for doc, response, answer, outcome in rows}

    def close(self) -> None:
        self._connection.close()


def _facts(text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError):
        return {}


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is to blame, and not the disk, its rights or another process."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    return code not in _ENVIRONMENT


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
    name = path.absolute().as_uri() + ("?mode=ro" if read_only else "?mode=rw")
    return sqlite3.connect(name, uri=True, timeout=30, check_same_thread=False)


def _create(path: Path) -> None:
    """An empty journal, there whole or not at all: a file without tables is a damaged one."""
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.unlink(missing_ok=True)
    with closing(sqlite3.connect(unfinished)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(_TABLES)
        connection.execute(f"PRAGMA application_id={_APPLICATION}")
        connection.execute(f"PRAGMA user_version={SCHEMA}")
    unfinished.replace(path)


def salvage(path: Path) -> list[tuple[Sample, str | None]]:
    """The sound rows of a damaged journal, read from both ends, each with the part that holds its trace."""
    found: dict[bytes, tuple[Sample, str | None]] = {}
    with suppress(sqlite3.Error, OSError, ValueError), closing(_connect(path, False)) as connection:
        connection.text_factory = lambda text: text.decode(errors="replace")
        for order in ("ASC", "DESC"):
            with suppress(sqlite3.Error, ValueError, TypeError, struct.error):
                for *row, digest, trace, part in connection.execute(
                    f"SELECT {_COLUMNS}, digest, trace, part FROM samples NOT INDEXED ORDER BY rowid {order}"
                ):
                    sample = Sample(*row)
                    if _sound(sample, digest):
                        kept = unsealed(trace) if isinstance(trace, bytes) else None
                        found.setdefault(sample.key, (replace(sample, trace=kept), part))
    return list(found.values())


def _sound(sample: Sample, digest: object) -> bool:
    try:
        return sample.digest == digest
    except (TypeError, ValueError):
        return False
