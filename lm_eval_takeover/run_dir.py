"""The folder of a run: a journal per rank, the parts of its traces, and who is at work there.

    RUN_DIR/journal-000.sqlite     the samples that rank 0 has finished
    RUN_DIR/journal-000.lock       held while rank 0 is at work
    RUN_DIR/traces/000-000001.parquet
    RUN_DIR/damaged-1/             what was not sound and was moved aside

A finished sample is committed with its trace in one transaction, by a thread of its own. Once traces of some 500,000 tokens have
come together they go into a part: the file is written and renamed first, and the journal points to it in a second transaction. So
at any instant the trace of a journalled sample is in the journal or in exactly one part, and a part that no journal knows was
written by a process that died in between: it is removed.
"""

import atexit
import contextlib
import errno
import hashlib
import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock as ThreadLock
from typing import Any, Protocol, TypeVar

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.journal import Asked, Damaged, Journal, Sample, is_damage, salvage
from lm_eval_takeover.locks import Lock, Locked
from lm_eval_takeover.traces import keep_of_part, unpacked, write_part

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
_open_here: "dict[Path, RunDir]" = {}  # of this process, by folder
PART = 2**19  # tokens of a part: 13 MB until it is written
_WAITING = 1000  # finished samples that may wait for the disk


def digest_of(document: Any) -> str:
    """32 hexadecimal digits that stand for a document of a task, or for any other value that JSON can hold."""
    text = json.dumps(document, sort_keys=True, default=str, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def digest_of_text(text: str) -> bytes:
    """16 bytes that stand for a text."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


class RunDir:
    """One process's hold on a run_dir. Raises RunDirError where it cannot be written or another process is at work.

    `settings` is the digest of the run's settings, `facts` what an attempt and a part say of themselves.
    """

    def __init__(self, folder: Path, settings: str, facts: Mapping[str, Any], rank: int = 0, ranks: int = 1) -> None:
        self.folder, self.settings, self.rank = folder, settings, rank
        self.samples_kept = 0
        self._open = False
        if (before := _open_here.get(folder.absolute())) is not None:
            before.close()  # an earlier model of this process
        self._waiting: list[Sample] = []
        self._guard = ThreadLock()
        self._commit: Future[None] | None = None
        self._untraced = 0  # tokens
        with self._told("opening it"):
            (folder / "traces").mkdir(parents=True, exist_ok=True)
            self._lock = self._locked(rank)
            try:
                self.journal = _opened(folder, rank)
                if rank == 0:
                    self._adopt(ranks)
                self._remove_unknown_parts(rank, self.journal)
                self.journal.begin_attempt(settings, dict(facts))
                self._untraced = self.journal.untraced_tokens()
            except BaseException:
                self._lock.release()
                raise
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._open = True
        _open_here[folder.absolute()] = self
        atexit.register(self.close)

    def _locked(self, rank: int) -> Lock:
        try:
            return Lock(self.folder / f"journal-{rank:03d}.lock")
        except Locked as held:
            raise RunDirError(
                f"run_dir='{self.folder}' is in use by {held}; wait for it to end, or give another run_dir"
            ) from None

    def _adopt(self, ranks: int) -> None:
        """See to the journals of ranks that this run does not have: damage and traces that are in no part yet."""
        for rank in _ranks(self.folder):
            if rank < ranks:
                continue
            with contextlib.suppress(Locked):
                lock = Lock(self.folder / f"journal-{rank:03d}.lock")
                try:
                    with contextlib.closing(_opened(self.folder, rank)) as journal:
                        self._remove_unknown_parts(rank, journal)
                        self._into_parts(journal, rank, everything=True)
                finally:
                    lock.release()

    def _parts(self, rank: int) -> list[Path]:
        return sorted((self.folder / "traces").glob(f"{rank:03d}-*.parquet"))

    def _remove_unknown_parts(self, rank: int, journal: Journal) -> None:
        known = journal.parts()
        for path in self._parts(rank):
            if path.name not in known:
                path.unlink()
        for path in (self.folder / "traces").glob(f".{rank:03d}-*"):  # one that was being written
            path.unlink()
        lost = known - {path.name for path in self._parts(rank)}
        if lost:
            logger.warning(
                "run_dir='%s': traces/%s is missing; its samples have no trace", self.folder, sorted(lost)[0]
            )

    # Samples

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Sample]:
        """The samples of these keys that any rank has finished in this folder."""
        found = self._now(lambda: self.journal.find(keys))
        for rank in _ranks(self.folder):
            missing = [key for key in keys if key not in found]
            if rank != self.rank and missing:
                found |= _read(self.folder, rank, missing)
        self.samples_kept += len(found)
        return found

    def ask(self, asked: Iterable[Asked]) -> None:
        """Remember which samples this run asks for."""
        rows = list(asked)
        self._now(lambda: self.journal.ask(self.settings, rows))

    def add(self, sample: Sample) -> None:
        """Hand over a finished sample; it is on disk a moment later. Raises what went wrong with earlier ones."""
        if not self._open:
            raise RunDirError(f"run_dir='{self.folder}' was closed; make the model anew to go on there")
        with self._guard:
            self._waiting.append(sample)
            many = len(self._waiting) > _WAITING
        self.samples_kept += 1
        before, self._commit = self._commit, self._thread.submit(self._write)
        if before is not None and (many or before.done()):
            with self._told("writing its journal"):
                before.result()

    def _write(self) -> None:
        """Commit what waits; then a part, where enough has come together."""
        with self._guard:
            samples, self._waiting = self._waiting, []
        if not samples:
            return
        try:
            self.journal.add(samples)
        except BaseException:
            with self._guard:
                self._waiting = samples + self._waiting
            raise
        self._untraced += sum(sample.tokens for sample in samples)
        if self._untraced >= PART:
            self._into_parts(self.journal, self.rank)
            self._untraced = self.journal.untraced_tokens()

    def _into_parts(self, journal: Journal, rank: int, everything: bool = False) -> None:
        """Move traces from a journal into parts, each of one run."""
        while samples := journal.untraced(PART):
            if not everything and sum(sample.tokens for sample in samples) < PART:
                return
            by_run: dict[str, list[Sample]] = {}
            for sample in samples:
                by_run.setdefault(unpacked(sample.trace or b"")[0].settings, []).append(sample)
            for settings, its in by_run.items():
                number = max((int(path.stem.partition("-")[2]) for path in self._parts(rank)), default=0) + 1
                name = f"{rank:03d}-{number:06d}.parquet"
                attempts = journal.attempts(settings)
                write_part(self.folder / "traces" / name, its, attempts[-1][0] if attempts else {})
                journal.into_part([sample.key for sample in its], name)

    def judge(self, verdicts: Iterable[tuple[str, bytes, str | None, str]]) -> None:
        """Remember what answers were worth: (digest of the document, digest of the response, answer, outcome)."""
        rows = list(verdicts)
        self._now(lambda: self.journal.judge(rows))

    def attempts_and_seconds(self) -> tuple[int, float]:
        """How many attempts there were at this run, and their wall time together, in seconds."""

        def read() -> tuple[int, float]:
            self.journal.tick()
            attempts = self.journal.attempts(self.settings)
            return len(attempts), sum(seconds for _, seconds in attempts)

        return self._now(read)

    def earlier_facts(self) -> list[dict[str, Any]]:
        """What the attempts before this one were called with."""
        return self._now(lambda: [facts for facts, _ in self.journal.attempts(self.settings)[:-1]])

    def flush(self) -> None:
        """Have everything on disk, and all traces in parts."""

        def write() -> None:
            self._write()
            self._into_parts(self.journal, self.rank, everything=True)
            self._untraced = 0

        self._now(write)

    def close(self) -> None:
        """Flush, and let go of the folder."""
        if not self._open:
            return
        self._open = False
        _open_here.pop(self.folder.absolute(), None)
        if current() is self:
            make_current(None)
        atexit.unregister(self.close)
        try:
            with self._told("closing it"):
                self._on_thread(self._last)
        finally:
            self._thread.shutdown()
            self.journal.close()
            self._lock.release()

    def _last(self) -> None:
        self._write()
        self._into_parts(self.journal, self.rank, everything=True)
        self.journal.tick()

    def kept(self) -> str:
        """For who stops the process."""
        return f"{self.samples_kept:,} samples are kept in run_dir='{self.folder}', and the same command goes on from there"

    def _now(self, work: Callable[[], Result]) -> Result:
        """Do it on the journal's thread, after all that was handed over before."""
        if not self._open:
            raise RunDirError(f"run_dir='{self.folder}' was closed; make the model anew to go on there")
        with self._told("writing its journal"):
            return self._on_thread(work)

    def _on_thread(self, work: Callable[[], Result]) -> Result:
        try:
            future = self._thread.submit(work)
        except RuntimeError:  # the interpreter ends, and has ended the thread
            return work()
        return future.result()

    @contextlib.contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        """Errors of disk and journal as one line for the user."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            full = getattr(error, "errno", None) == errno.ENOSPC or "full" in str(error)
            way_out = (
                "make room and give the same command again" if full else "make it writable, or give another run_dir"
            )
            raise RunDirError(
                f"run_dir='{self.folder}': {doing} failed: {error}; what was committed before is kept; {way_out}"
            ) from error


def _path(folder: Path, rank: int) -> Path:
    return folder / f"journal-{rank:03d}.sqlite"


def _ranks(folder: Path) -> list[int]:
    """The ranks that have a journal."""
    return sorted(int(path.stem.partition("-")[2]) for path in folder.glob("journal-[0-9]*.sqlite"))


def _read(folder: Path, rank: int, keys: Sequence[bytes]) -> dict[bytes, Sample]:
    """What another rank has of these keys; nothing where its journal cannot be read, for it sees to that itself."""
    try:
        with contextlib.closing(Journal(_path(folder, rank), read_only=True)) as journal:
            return journal.find(keys)
    except (OSError, sqlite3.Error, Damaged) as error:
        logger.warning("'%s' cannot be read: %s; its samples are not used", _path(folder, rank), error)
        return {}


def _opened(folder: Path, rank: int) -> Journal:
    """The journal of a rank; one that is not sound is moved aside, and its sound rows go into a new one."""
    path = _path(folder, rank)
    try:
        journal = Journal(path)
        try:
            journal.check_rows()
        except (Damaged, sqlite3.DatabaseError):
            journal.close()
            raise
        return journal
    except (Damaged, sqlite3.DatabaseError) as damage:
        if isinstance(damage, sqlite3.DatabaseError) and not is_damage(damage):
            raise
        aside = _moved_aside(folder, path)
        rows = salvage(aside / path.name)
        journal = Journal(path)
        journal.add(sample for sample, _ in rows)
        for trace in (folder / "traces").glob(f"{rank:03d}-*.parquet"):
            its = [sample for sample, part in rows if part == trace.name]
            trace.rename(aside / trace.name)
            if its and keep_of_part(aside / trace.name, its, trace):
                journal.into_part([sample.key for sample in its], trace.name)
        logger.warning(
            "'%s' is damaged (%s); it was moved to '%s', its %d sound samples are used and all others are generated again",
            path, damage, aside, len(rows),
        )  # fmt: skip
        return journal


def _moved_aside(folder: Path, path: Path) -> Path:
    number = 1
    while (folder / f"damaged-{number}").exists():
        number += 1
    aside = folder / f"damaged-{number}"
    aside.mkdir()
    for file in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
        if file.exists():
            file.rename(aside / file.name)
    return aside


def journals(folder: Path) -> list[Path]:
    """The journals of all ranks."""
    return [_path(folder, rank) for rank in _ranks(folder)]


class KeepsVerdicts(Protocol):
    """Who is told what answers were worth."""

    def judge(self, verdicts: Iterable[tuple[str, bytes, str | None, str]]) -> None: ...


_current: KeepsVerdicts | None = None


def current() -> KeepsVerdicts | None:
    """Who keeps the verdicts that this process gives: the run_dir that it is at work in."""
    return _current


def make_current(keeper: KeepsVerdicts | None) -> None:
    global _current
    _current = keeper
