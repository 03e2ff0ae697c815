"""The journal of a run in SQLite: each finished sample with its trace. A row's digest is checked when the file is opened."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm_eval_takeover.runs import journal_file
from lm_eval_takeover.runs.journal_file import COLUMNS, Damaged, column_names, row_digest
from lm_eval_takeover.tasks.verdicts import LoggedVerdict, Response


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished text, with the names of the first task that asked for it; `truncated`: the token limit ended it.

    `score_sum` in nats is over all tokens, `spikes` counts the scores above tau; None where not known (`recorder.count_spikes`).
    `trace` holds its tokens, packed, or nothing; only `read_traces` and `list_traces` read it.
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
    score_sum: float | None = None
    spikes: int | None = None
    trace: bytes = b""

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
    """One sample that a command asked for, and the key that answers it. `doc` and `prompt` (a row of prompts.py) are digests."""

    task: str
    doc: str
    idx: int
    sample: int
    doc_id: int
    prompt: str
    key: bytes


class Journal:
    """One journal file of one process, used by one thread at a time. Raises Damaged for an unsound file, and sqlite3's errors."""

    def __init__(self, path: Path, *, read_only: bool = False, check: bool = True) -> None:
        self.path = path
        if not read_only and not path.exists():
            journal_file.create_journal(path)
        self._connection = journal_file.open_journal_file(path, read_only=read_only, check=check)
        self._attempt: int | None = None  # its id
        self._spent = self._kept = 0.0  # seconds until the clock stopped, and until the last sample
        self._since: float | None = None  # when it was started; None: it stands
        self._command = "", "{}"  # digest, facts as JSON

    def _select(self, table: str, rest: str = "", values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        yield from self._connection.execute(f"SELECT {column_names(table)} FROM {table} {rest}", values)

    def _insert(self, otherwise: str, table: str, rows: Iterable[Sequence[Any]]) -> None:
        marks = ", ".join("?" * (len(COLUMNS[table]) + 1))
        into = f"INSERT OR {otherwise} INTO {table} ({column_names(table)}, digest) VALUES ({marks})"
        self._connection.executemany(into, [(*row, row_digest(row)) for row in rows])

    # Samples

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Sample]:
        """The samples of these keys that are here, by key, without their traces."""
        rows = (row for key in keys for row in self._select("samples", "WHERE key = ?", (key,)))
        return {row[0]: Sample(*row) for row in rows}

    def add(self, samples: Iterable[Sample]) -> None:
        """Commit samples and traces, on disk when this returns; a key that is here already stays as it is."""
        samples = list(samples)
        traces = [(sample.key, journal_file.add_checksum(sample.key, sample.trace)) for sample in samples]
        with self._connection:
            self._insert("IGNORE", "samples", [sample.row for sample in samples])
            self._connection.executemany("INSERT OR IGNORE INTO traces (key, trace) VALUES (?, ?)", traces)
            self._kept = self._count_seconds()
            self.update_attempt()

    def drop_damaged(self) -> int:
        """Forget samples whose traces are lost or changed. How many samples: they are generated again."""
        keys = set(self._connection.execute("SELECT key FROM samples WHERE key NOT IN (SELECT key FROM traces)"))
        for key, blob in self._connection.execute("SELECT key, trace FROM traces"):
            try:
                journal_file.strip_checksum(key, blob)
            except Damaged:
                keys.add((key,))
        if keys:
            with self._connection:
                for table in ("samples", "traces"):
                    self._connection.executemany(f"DELETE FROM {table} WHERE key = ?", keys)
        return len(keys)

    # Traces

    def read_traces(self, keys: Sequence[bytes]) -> Iterator[Sample]:
        """The samples of these keys that are here, with their traces, in the order of the keys. Raises Damaged."""
        for key in sorted(keys):
            yield from self._select_traces("key = ?", (key,))

    def list_traces(self) -> Iterator[Sample]:
        """All samples with their traces, in the order of their commits. Raises Damaged."""
        yield from self._select_traces("true ORDER BY id")

    def _select_traces(self, which: str, values: Sequence[Any] = ()) -> Iterator[Sample]:
        joined = "traces CROSS JOIN samples USING (key)"
        query = f"SELECT {column_names('samples')}, trace FROM {joined} WHERE length(trace) > 8 AND {which}"
        for *row, blob in self._connection.execute(query, values):
            yield replace(Sample(*row), trace=journal_file.strip_checksum(row[0], blob))

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM samples").fetchone()[0])

    # Attempts

    def begin_command(self, command: str, facts: dict[str, Any]) -> None:
        """Begin an attempt at a command, unless this process is at it already, and start its clock."""
        if self._command[0] != command:
            self.stop_clock()
            (self._attempt,) = self._connection.execute("SELECT coalesce(max(id), 0) + 1 FROM attempts").fetchone()
            self._spent = self._kept = 0.0
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
                self._insert("REPLACE", "attempts", [(self._attempt, *self._command, self._count_seconds())])

    def attempts(self, command: str) -> list[tuple[dict[str, Any], float]]:
        """`(facts, seconds)` of each attempt at a command, the oldest first."""
        rows = self._select("attempts", "WHERE command = ? ORDER BY id", (command,))
        return [(json.loads(facts), seconds) for _, _, facts, seconds in rows]

    def commands(self) -> list[str]:
        """All commands of this journal, the latest last."""
        rows = self._connection.execute("SELECT command FROM attempts GROUP BY command ORDER BY max(id)")
        return [command for (command,) in rows]

    # Requests and verdicts

    def add_asked(self, command: str, asked: Iterable[AskedSample]) -> None:
        rows = [tuple(command if name == "command" else getattr(a, name) for name in COLUMNS["asked"]) for a in asked]
        with self._connection:
            self._insert("REPLACE", "asked", rows)

    def asked(self, command: str) -> list[AskedSample]:
        return [AskedSample(*row[1:]) for row in self._select("asked", "WHERE command = ?", (command,))]

    def add_verdicts(self, verdicts: Iterable[LoggedVerdict]) -> None:
        """Commit verdicts; a later one on the same response to the same document replaces an earlier one."""
        with self._connection:
            self._insert("REPLACE", "verdicts", verdicts)
            self.update_attempt()

    def verdicts(self) -> dict[tuple[str, bytes], tuple[str | None, str]]:
        """(answer, outcome) by (digest of the document, digest of the response)."""
        return {(doc, response): (answer, outcome) for doc, response, answer, outcome in self._select("verdicts")}

    def close(self) -> None:
        self._connection.close()
