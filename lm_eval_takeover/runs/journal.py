"""The journal of a run in SQLite: each finished sample, and what is measured on it, packed: the evidence.

    kind      key          content
    trace     the sample's `evidence.pack_trace`
    score     the sample's `evidence.pack_scores`
    rollout   its number   a text of a calibration (`commands.calibrate.rollouts`)
    result    its name     what a calibration has measured, as JSON
    part      its name     digests of a parquet file that was written from others of these

Rows have digests, since SQLite keeps no checksums. They are checked when the file is opened; of evidence, when it is read.
"""

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from lm_eval_takeover import __version__
from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.samples import Response, Verdict
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.files import open_regular, sync_folder
from lm_eval_takeover.storage.schema import Between, check
from lm_eval_takeover.tasks.context import RunContext

_SCHEMA = 10
EvidenceKind = Literal["trace", "score", "rollout", "result", "part"]  # of evidence
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
        "digest BLOB NOT NULL, PRIMARY KEY (command, task, doc_id, idx, sample)",
    ),
    "attempts": (
        "id INTEGER PRIMARY KEY, command TEXT NOT NULL, facts TEXT NOT NULL, seconds REAL NOT NULL",
        "digest BLOB NOT NULL",
    ),
    "prompts": ("prompt TEXT NOT NULL, content TEXT NOT NULL", "digest BLOB NOT NULL, PRIMARY KEY (prompt)"),
    "verdicts": (
        "doc TEXT NOT NULL, response BLOB NOT NULL, answer TEXT, outcome TEXT NOT NULL",
        "digest BLOB NOT NULL, PRIMARY KEY (doc, response)",
    ),
    "evidence": ("kind TEXT NOT NULL, key BLOB NOT NULL, content BLOB NOT NULL", "digest BLOB NOT NULL, UNIQUE (kind, key)"),
}
COLUMNS = {table: [column.split()[0] for column in columns.split(", ")] for table, (columns, _) in _TABLES.items()}
_NAMES = {table: ", ".join(columns) for table, columns in COLUMNS.items()}  # for queries
_STATEMENTS = [f"CREATE TABLE {table} ({columns}, {rest})" for table, (columns, rest) in _TABLES.items()]
_LIGHT = [table for table in _TABLES if table != "evidence"]  # whose rows are compared with their digests at once

_PACKED = "CAST(content AS BLOB), CAST(digest AS BLOB)"  # a flipped bit can make a text of them, which Python cannot read
_KINDS: dict[str, tuple[type, ...]] = {"BLOB": (bytes,), "TEXT": (str,), "INTEGER": (int,), "REAL": (int, float)}
_TYPES = {  # of the columns that the digest is of, by table; those without NOT NULL may be null
    table: [(*_KINDS[kind], *(() if rest else (type(None),))) for _, kind, *rest in map(str.split, columns.split(", "))]
    for table, (columns, _) in _TABLES.items()
}
_SYNC = 1.0  # seconds between two commits of samples that wait for the disk: it takes some ms
_LARGEST = 2**53  # of a count or a number of a document
# No journal of ours needs more.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 2**27, sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10**5, sqlite3.SQLITE_LIMIT_COLUMN: 50,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 20, sqlite3.SQLITE_LIMIT_ATTACHED: 0, sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}  # fmt: skip


def row_digest(row: Sequence[Any]) -> bytes:
    """16 bytes over types and values of a row, as Python writes them in ASCII, and its bytes: no two rows run into each other."""
    written = ascii([(len(value),) if isinstance(value, bytes) else value for value in row])
    blobs = [value for value in row if isinstance(value, bytes)]
    return hashlib.blake2b(b"".join([written.encode(), *blobs]), digest_size=16).digest()


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
    except (sqlite3.DatabaseError, ValueError, TypeError, RecursionError) as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if isinstance(error, RunDirError) or code & 0xFF in _ENVIRONMENT:
            raise
        raise Damaged(str(error)) from error


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished text, with the names of the first task that asked for it."""

    key: bytes
    task: str
    doc_id: int
    sample: int
    text: str
    tokens: int
    takeovers: int
    changed: int | None
    asked: int
    base_passes: int
    guide_passes: int
    truncated: bool  # the token limit ended it
    score_sum: float | None = None  # nats, over all tokens; None where not known (`recorder.count_spikes`)
    spikes: int | None = None  # scores above tau
    trace: bytes = b""  # its tokens, packed, or nothing; of the journal's methods only `list_traces` reads it

    def respond(self, context: RunContext) -> Response:
        """The text as lm-eval gets it from a model of this context."""
        return Response(self.text, bool(self.truncated), context)

    @property
    def row(self) -> tuple[Any, ...]:
        """The columns that the digest is of."""
        values = (getattr(self, name) for name in COLUMNS["samples"])
        return tuple(int(value) if isinstance(value, bool) else value for value in values)


@dataclass(frozen=True, slots=True)
class AskedSample:
    """One sample that a command asked for, and the key that answers it. `doc`, `prompt` (a `Prompt`): digests."""

    task: str
    doc: str
    idx: int
    sample: int
    doc_id: int
    prompt: str
    key: bytes


class Prompt(TypedDict):
    """What a document was asked, as token ids and as text, and its problem and answer; null where questions are withheld."""

    task: str
    doc_id: int
    prompt: str | None
    prompt_ids: list[Annotated[int, Between(0, 2**31 - 1)]]
    problem: str | None
    answer: str | None


@lru_cache(maxsize=2**14)
@finding_damage()
def read_prompt(content: str) -> Prompt:
    """A prompt as a journal holds it. Raises Damaged."""
    prompt: Prompt = check(json.loads(content), Prompt)
    return prompt


class Journal:
    """One journal file of one process, used by one thread at a time. Raises Damaged for an unsound file, and sqlite3's errors."""

    def __init__(self, path: Path, *, read_only: bool = False, check: bool = True) -> None:
        self.path = path
        if not read_only and not path.exists():
            _create(path)
        self._connection = _open_file(path, read_only=read_only, check=check)
        self._attempt: int | None = None  # its id
        self._spent = 0.0  # seconds until the clock stopped
        self._kept: float | None = None  # seconds until the last sample, None before the first one
        self._since: float | None = None  # when it was started; None: it stands
        self._command: tuple[str, dict[str, Any]] = ("", {})  # digest, facts
        self._written = 0  # samples of this attempt
        self._synced = 0.0

    def _select(self, table: str, rest: str = "", values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        yield from self._connection.execute(f"SELECT {_NAMES[table]} FROM {table} {rest}", values)

    def _insert(self, otherwise: str, table: str, rows: Iterable[Sequence[Any]]) -> None:
        marks = ", ".join("?" * (len(COLUMNS[table]) + 1))
        into = f"INSERT OR {otherwise} INTO {table} ({_NAMES[table]}, digest) VALUES ({marks})"
        self._connection.executemany(into, [(*row, row_digest(row)) for row in rows])

    # Samples

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Sample]:
        """The samples of these keys that are here, by key, without their traces."""
        rows = (row for key in keys for row in self._select("samples", "WHERE key = ?", (key,)))
        return {row[0]: Sample(*row) for row in rows}

    def add(self, samples: Iterable[Sample]) -> None:
        """Commit samples and traces; a key that is here already stays as it is. A power failure costs those of `_SYNC`."""
        samples = list(samples)
        if is_late := time.monotonic() > self._synced + _SYNC:
            self._synced = time.monotonic()
        self._connection.execute(f"PRAGMA synchronous={'FULL' if is_late else 'NORMAL'}")
        with self._connection:
            self._insert("IGNORE", "samples", [sample.row for sample in samples])
            self._insert("IGNORE", "evidence", [("trace", sample.key, sample.trace) for sample in samples])
            self._kept, self._written = self._count_seconds(), self._written + len(samples)
            self.update_attempt()
        self._connection.execute("PRAGMA synchronous=FULL")

    def drop_damaged(self) -> int:
        """Forget evidence that has changed, and samples without their traces. How many: they are generated again."""
        rows = self._connection.execute(f"SELECT rowid, kind, key, {_PACKED} FROM evidence")
        changed = [(number,) for number, *row, digest in rows if row_digest(row) != digest]
        with self._connection:
            self._connection.executemany("DELETE FROM evidence WHERE rowid = ?", changed)
            traced = "SELECT key FROM evidence WHERE kind = 'trace'"
            lost = self._connection.execute(f"SELECT key FROM samples WHERE key NOT IN ({traced})").fetchall()
            for table in ("samples", "evidence"):
                self._connection.executemany(f"DELETE FROM {table} WHERE key = ?", lost)
        return len(lost)

    def list_traces(self) -> Iterator[Sample]:
        """All samples with their traces, in the order of their commits. Raises Damaged."""
        for key, trace in self.read_evidence("trace"):
            yield from (replace(sample, trace=trace) for sample in self.find([key]).values())

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM samples").fetchone()[0])

    # Evidence

    def add_evidence(self, kind: EvidenceKind, contents: Mapping[bytes, bytes]) -> None:
        """Commit contents by key, in the place of those that are here."""
        with self._connection:
            self._insert("REPLACE", "evidence", [(kind, key, content) for key, content in contents.items()])

    def read_evidence(self, kind: EvidenceKind, keys: Iterable[bytes] | None = None) -> Iterator[tuple[bytes, bytes]]:
        """`(key, content)` of these keys, in their order, where there is one; of all without `keys`. Raises Damaged."""
        query = f"SELECT {_PACKED} FROM evidence WHERE kind = ? AND key = ? AND length(content) > 0"
        for key in self.list_evidence(kind) if keys is None else keys:
            for content, digest in self._connection.execute(query, (kind, key)):
                if row_digest((kind, key, content)) != digest:
                    raise Damaged(f"a {kind} has changed")
                yield key, content

    def list_evidence(self, kind: EvidenceKind) -> list[bytes]:
        """The keys of a kind, in the order of their commits."""
        query = "SELECT key FROM evidence WHERE kind = ? AND length(content) > 0 ORDER BY rowid"
        return [key for (key,) in self._connection.execute(query, (kind,))]

    def drop_evidence(self, kind: EvidenceKind, keys: Iterable[bytes]) -> None:
        with self._connection:
            self._connection.executemany("DELETE FROM evidence WHERE kind = ? AND key = ?", [(kind, key) for key in keys])

    # Attempts

    def begin_command(self, command: str, facts: dict[str, Any]) -> None:
        """Begin an attempt at a command, unless this process is at it already, and start its clock."""
        if self._command[0] != command:
            self.stop_clock()
            (self._attempt,) = self._connection.execute("SELECT coalesce(max(id), 0) + 1 FROM attempts").fetchone()
            self._spent, self._kept, self._written = 0.0, None, 0
        self._command = command, facts
        self._since = self._since or time.monotonic()
        self.update_attempt()

    def stop_clock(self, *, interrupted: bool = False) -> None:
        """The attempt's seconds count until here, or until its last sample: what was interrupted after it is written again."""
        self._spent, self._since = max(self._spent, self._kept or 0.0) if interrupted else self._count_seconds(), None
        self.update_attempt()

    def _count_seconds(self) -> float:
        return self._spent + (time.monotonic() - self._since if self._since is not None else 0.0)

    def update_attempt(self) -> None:
        """Commit the seconds that this attempt has taken so far, none before its first sample, and the transaction at hand."""
        with self._connection:
            if self._attempt is not None:
                seconds = self._count_seconds() if self._kept is not None else 0.0
                facts = json.dumps(self._command[1] | {"written": self._written})
                self._insert("REPLACE", "attempts", [(self._attempt, self._command[0], facts, seconds)])

    def attempts(self, command: str) -> list[tuple[dict[str, Any], float]]:
        """`(facts, seconds)` of each attempt at a command, the oldest first."""
        rows = self._select("attempts", "WHERE command = ? ORDER BY id", (command,))
        return [(json.loads(facts), seconds) for _, _, facts, seconds in rows]

    def seconds(self, command: str) -> float | None:
        """Of all attempts at a command; None where it took samples that another one wrote, whose time is not known."""
        attempts = self.attempts(command)
        query = "SELECT count(DISTINCT key) FROM asked WHERE command = ? AND key IN (SELECT key FROM samples)"
        (finished,) = self._connection.execute(query, (command,)).fetchone()
        known = finished <= sum(facts.get("written", finished) for facts, _ in attempts)
        return round(sum(seconds for _, seconds in attempts), 3) if known else None

    def commands(self) -> list[str]:
        """All commands of this journal, the latest last."""
        rows = self._connection.execute("SELECT command FROM attempts GROUP BY command ORDER BY max(id)")
        return [command for (command,) in rows]

    # Requests and verdicts

    def set_asked(self, command: str, asked: Iterable[AskedSample]) -> None:
        """What a command asks for, in the place of what an earlier attempt did: its documents may have had other numbers."""
        rows = [tuple(command if name == "command" else getattr(a, name) for name in COLUMNS["asked"]) for a in asked]
        with self._connection:
            self._connection.execute("DELETE FROM asked WHERE command = ?", (command,))
            self._insert("REPLACE", "asked", rows)

    def asked(self, command: str) -> list[AskedSample]:
        return [AskedSample(*row[1:]) for row in self._select("asked", "WHERE command = ?", (command,))]

    def add_prompts(self, prompts: Iterable[Prompt]) -> None:
        """Commit prompts by their digests, as `asked` has them."""
        with self._connection:
            self._insert("IGNORE", "prompts", [(digest_of(prompt), json.dumps(prompt)) for prompt in prompts])

    def prompts(self) -> dict[str, str]:
        """By digest the content of all prompts, for `read_prompt`."""
        return dict(self._select("prompts"))

    def add_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        """Commit verdicts; a later one on the same response to the same document replaces an earlier one."""
        with self._connection:
            self._insert("REPLACE", "verdicts", verdicts)
            self.update_attempt()

    def verdicts(self) -> dict[tuple[str, bytes], tuple[str | None, str]]:
        """(answer, outcome) by (digest of the document, digest of the response)."""
        return {(doc, response): (answer, outcome) for doc, response, answer, outcome in self._select("verdicts")}

    def close(self) -> None:
        self._connection.close()


# The file


def _open_file(path: Path, *, read_only: bool, check: bool = True) -> sqlite3.Connection:
    """A connection to a journal that is sound, its evidence apart. Raises Damaged, and RunDirError for another version."""
    _check_header(path)
    options = "?mode=ro" if read_only else "?mode=rw"
    if read_only and not (path.with_name(path.name + "-wal").exists() or os.access(path.parent, os.W_OK)):
        options += "&immutable=1"  # no log and none can be made, so no writer: works in a read-only folder
    connection = sqlite3.connect(path.absolute().as_uri() + options, uri=True, timeout=30, check_same_thread=False)
    try:
        for limit, most in _LIMITS.items():
            connection.setlimit(limit, most)
        with finding_damage():
            connection.execute("PRAGMA trusted_schema=OFF")
            connection.execute("PRAGMA synchronous=FULL")
            _check_schema(connection, path)
            if check:  # else the rows were compared with their digests a moment ago
                _check_content(connection, *([] if read_only else ["evidence"]))
    except BaseException:
        connection.close()
        raise
    return connection


def _check_header(path: Path) -> None:
    """Raises Damaged for headers that SQLite would take for an empty file, or for one of a version that it may only read."""
    with os.fdopen(open_regular(path), "rb") as stream:
        header = stream.read(20)
    if not header.startswith(b"SQLite format 3\0") or not {*header[18:]} <= {1, 2}:
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
    for table in (*_LIGHT, *more):
        problem = connection.execute(f"PRAGMA integrity_check({table})").fetchone()[0]
        if problem != "ok":
            raise Damaged(problem.splitlines()[-1])
    for table in _LIGHT:
        for *row, digest in connection.execute(f"SELECT {_NAMES[table]}, digest FROM {table}"):
            typed = all(isinstance(value, kind) for value, kind in zip(row, _TYPES[table], strict=True))
            numbers = (value for value in row if isinstance(value, (int, float)))
            if row_digest(row) != digest or not typed or not all(0 <= number <= _LARGEST for number in numbers):
                raise Damaged(f"a row of the table {table} has changed")


def _create(path: Path) -> None:
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
