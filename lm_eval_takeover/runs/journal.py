"""The journal of a run in SQLite: one row per finished sample. Each row has a digest, checked when the file is opened."""

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm_eval_takeover.runs import journal_file
from lm_eval_takeover.runs.journal_file import COLUMNS, column_names, row_digest
from lm_eval_takeover.tasks.verdicts import LoggedVerdict, Response

_KEYS_PER_QUERY = 500
_PENDING = "WHERE part IS NULL AND trace IS NOT NULL"


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished text, with the names of the first task that asked for it; `truncated`: the token limit ended it.

    `trace` holds its tokens, packed, until they are in the file `part` under traces/; only `find_pending` reads it.
    """

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
    truncated: bool
    part: str | None = None
    trace: bytes | None = None

    @property
    def response(self) -> Response:
        return Response(self.text, bool(self.truncated))

    @property
    def row(self) -> tuple[Any, ...]:
        """The columns that the digest is of."""
        values = (getattr(self, name) for name in COLUMNS["samples"])
        return tuple(int(value) if isinstance(value, bool) else value for value in values)


@dataclass(frozen=True, slots=True)
class AskedSample:
    """One sample that a command asked for, and the key that answers it. `doc` and `prompt` are digests."""

    task: str
    doc: str
    idx: int
    sample: int
    doc_id: int
    prompt: str
    key: bytes


class Journal:
    """One journal file of one process, used by one thread at a time. Raises Damaged for an unsound file, and sqlite3's errors."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        if not read_only and not path.exists():
            journal_file.create_journal(path)
        self._connection = journal_file.open_journal_file(path, read_only=read_only)
        self._attempt: int | None = None  # its id
        self._spent = self._kept = 0.0  # seconds until the clock stopped, and until the last sample
        self._since: float | None = None  # when it was started; None: it stands
        self._command = "", "{}"  # digest, facts as JSON

    def _select(self, table: str, rest: str = "", values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        yield from self._connection.execute(f"SELECT {column_names(table)} FROM {table} {rest}", values)

    def _replace(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        marks = ", ".join("?" * (len(COLUMNS[table]) + 1))
        into = f"INSERT OR REPLACE INTO {table} ({column_names(table)}, digest) VALUES ({marks})"
        self._connection.executemany(into, [(*row, row_digest(row)) for row in rows])

    # Samples

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Sample]:
        """The samples of these keys that are here, by key, without their traces."""
        samples = {}
        for start in range(0, len(keys), _KEYS_PER_QUERY):
            chunk = keys[start : start + _KEYS_PER_QUERY]
            for row in self._select("samples", f"WHERE key IN ({','.join('?' * len(chunk))})", chunk):
                samples[row[0]] = Sample(*row)
        return samples

    def add(self, samples: Iterable[Sample]) -> None:
        """Commit samples, on disk when this returns; a key that is here already stays as it is."""
        rows = [(*(row := sample.row), row_digest(row), journal_file.add_checksum(sample.trace)) for sample in samples]
        with self._connection:
            into = f"INSERT OR IGNORE INTO samples ({column_names('samples')}, digest, trace) VALUES ({','.join('?' * 15)})"
            self._connection.executemany(into, rows)
            self._kept = self._count_seconds()
            self.update_attempt()

    def find_pending(self, tokens: int) -> list[Sample]:
        """The oldest samples whose traces are in no part yet, up to about `tokens` tokens. Raises Damaged."""
        pending, total = list[Sample](), 0
        rows = self._connection.execute(f"SELECT {column_names('samples')}, trace FROM samples {_PENDING} ORDER BY rowid")
        for *row, blob in rows:
            pending.append(replace(Sample(*row), trace=journal_file.strip_checksum(blob)))
            total += pending[-1].tokens
            if total >= tokens:
                break
        return pending

    def count_pending_tokens(self) -> int:
        """Tokens of samples whose traces are in no part yet."""
        return int(self._connection.execute(f"SELECT total(tokens) FROM samples {_PENDING}").fetchone()[0])

    def assign_part(self, samples: Sequence[Sample], part: str) -> None:
        """Drop the traces of these samples, which are in the part of that name from here on."""
        moved = ((replace(sample, part=part).row, sample.key) for sample in samples)
        rows = [(part, row_digest(row), key) for row, key in moved]
        with self._connection:
            query = "UPDATE samples SET part = ?, digest = ?, trace = NULL WHERE key = ?"
            cursor = self._connection.executemany(query, rows)
            if cursor.rowcount != len(rows):
                raise sqlite3.DatabaseError(f"{len(rows) - cursor.rowcount} rows cannot be found by their keys")
            self.update_attempt()

    def parts(self) -> set[str]:
        """Names of the parts that hold traces of this journal's samples."""
        query = "SELECT DISTINCT part FROM samples WHERE part IS NOT NULL"
        return {part for (part,) in self._connection.execute(query)}

    def has_traces(self, names: Iterable[tuple[str, int, int]]) -> bool:
        """Whether there is a traced sample of every (task, doc_id, sample)."""
        traced = "(trace IS NOT NULL OR part IS NOT NULL)"
        query = f"SELECT count(*) FROM samples WHERE task = ? AND doc_id = ? AND sample = ? AND {traced}"
        return all(self._connection.execute(query, name).fetchone()[0] for name in names)

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM samples").fetchone()[0])

    # Attempts

    def begin_attempt(self) -> None:
        """A new row of `attempts`; its command is entered by `begin_command`."""
        (self._attempt,) = self._connection.execute("SELECT coalesce(max(id), 0) + 1 FROM attempts").fetchone()
        self._command = "", "{}"
        self._spent, self._kept, self._since = 0.0, 0.0, None
        self.update_attempt()

    def begin_command(self, command: str, facts: dict[str, Any]) -> None:
        """Enter the attempt's command and start its clock. A second command of the process begins another attempt."""
        if self._command[0] not in ("", command):
            self.stop_clock()
            self.begin_attempt()
        self._command = command, json.dumps(facts)
        self._since = self._since or time.monotonic()
        self.update_attempt()

    def stop_clock(self, *, interrupted: bool = False) -> None:
        """The attempt's seconds count until here, or until its last sample: what was interrupted after it is written again."""
        self._spent, self._since = max(self._spent, self._kept) if interrupted else self._count_seconds(), None
        self.update_attempt()

    def _count_seconds(self) -> float:
        return self._spent + (time.monotonic() - self._since if self._since is not None else 0.0)

    def update_attempt(self) -> None:
        """Commit the seconds that this attempt has taken so far, and the transaction at hand."""
        with self._connection:
            if self._attempt is not None:
                self._replace("attempts", [(self._attempt, *self._command, self._count_seconds())])

    def attempts(self, command: str) -> list[tuple[dict[str, Any], float]]:
        """`(facts, seconds)` of each attempt at a command, the oldest first."""
        rows = self._select("attempts", "WHERE command = ? ORDER BY id", (command,))
        return [(json.loads(facts), seconds) for _, _, facts, seconds in rows]

    def commands(self) -> list[str]:
        """All commands of this journal, the latest last."""
        rows = self._select("attempts", "ORDER BY id DESC")
        return list(dict.fromkeys(command for _, command, _, _ in rows if command))[::-1]

    # Requests and verdicts

    def add_asked(self, command: str, asked: Iterable[AskedSample]) -> None:
        rows = [tuple(command if name == "command" else getattr(a, name) for name in COLUMNS["asked"]) for a in asked]
        with self._connection:
            self._replace("asked", rows)

    def asked(self, command: str) -> list[AskedSample]:
        return [AskedSample(*row[1:]) for row in self._select("asked", "WHERE command = ?", (command,))]

    def add_verdicts(self, verdicts: Iterable[LoggedVerdict]) -> None:
        """Commit verdicts; a later one on the same response to the same document replaces an earlier one."""
        with self._connection:
            self._replace("verdicts", verdicts)
            self.update_attempt()

    def verdicts(self) -> dict[tuple[str, bytes], tuple[str | None, str]]:
        """(answer, outcome) by (digest of the document, digest of the response)."""
        return {(doc, response): (answer, outcome) for doc, response, answer, outcome in self._select("verdicts")}

    def close(self) -> None:
        self._connection.close()
