"""The folder of a run: a journal per rank, the parts of its traces, and who is at work there.

    RUN_DIR/journal-000.sqlite     the samples that rank 0 has finished
    RUN_DIR/journal-000.lock       held while rank 0 is at work
    RUN_DIR/traces/000-000001.parquet
    RUN_DIR/damaged-1/             what was not sound and was moved aside

A finished sample is committed with its trace in one transaction, by a thread of its own. Once traces of some 500,000 tokens have
come together they go into a part: the file is written and renamed first, and the journal points to it in a second transaction. So
at any instant the trace of a journalled sample is in the journal or in exactly one part. A part that no journal knows was written
by a process that died in between, and its traces are still in the journal: it is removed.
"""

import atexit
import contextlib
import errno
import logging
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from threading import Lock as ThreadLock
from typing import Any, TypeVar

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs.journal import Asked, Damaged, Journal, Sample, create, salvage
from lm_eval_takeover.runs.traces import cut_part, names_in, unpacked, write_part
from lm_eval_takeover.storage.locks import Lock, Locked
from lm_eval_takeover.storage.whole_files import sync_folder
from lm_eval_takeover.tasks.verdict_log import Verdict, keep_with, keeper

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
PART = 2**19  # tokens of a part: 13 MB until it is written
_WAITING = 2**21  # tokens of finished samples that may wait for the disk: 50 MB
_PAUSE = 0.25  # seconds between two commits: a thread that wakes up often holds up passes that use every core
_open_here: "dict[Path, RunDir]" = {}  # of this process, by folder: a later model takes over from an earlier one


class RunDir:
    """One process's hold on a run_dir. Raises RunDirError where it cannot be written or another process is at work."""

    def __init__(self, folder: Path, rank: int = 0, ranks: int = 1) -> None:
        self.folder, self.rank = folder.expanduser().absolute(), rank
        self.command = ""
        self.samples_kept = 0
        if (before := _open_here.get(self.folder)) is not None:
            before.close()
        self._waiting: list[Sample] = []
        self._guard = ThreadLock()
        self._commit: Future[None] | None = None
        self._scheduled, self._hurry, self._last_commit = False, Event(), 0.0
        self._untraced = 0  # tokens
        with self._told("opening it"):
            self._traces.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked(rank)
            try:
                self.journal = self._opened(rank)
                if rank == 0:
                    self._adopt(ranks)
                self.journal.begin_attempt()
                self._untraced = self.journal.untraced_tokens()
            except BaseException:
                self._lock.release()
                raise
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._open = True
        _open_here[self.folder] = self
        atexit.register(self._close_at_exit)

    @property
    def _traces(self) -> Path:
        return self.folder / "traces"

    # Opening

    def _locked(self, rank: int) -> Lock:
        try:
            return Lock(self.folder / f"journal-{rank:03d}.lock")
        except Locked as held:
            raise RunDirError(
                f"run_dir='{self.folder}' is in use by {held}; wait for it to end, or give another run_dir"
            ) from None

    def _adopt(self, ranks: int) -> None:
        """See to the journals of ranks that this run does not have: damage, and traces that are in no part yet."""
        for rank in _ranks(self.folder):
            if rank < ranks:
                continue
            with contextlib.suppress(Locked):
                lock = Lock(self.folder / f"journal-{rank:03d}.lock")
                try:
                    with contextlib.closing(self._opened(rank)) as journal:
                        self._into_parts(journal, rank, everything=True)
                finally:
                    lock.release()

    def _opened(self, rank: int) -> Journal:
        """The journal of a rank; one that is not sound is moved aside, and its sound rows go into a new one."""
        path = _path(self.folder, rank)
        mended = path.with_name(f".{path.stem}.mended")
        if mended.exists():  # a process died before it could put it in its place
            aside = self._put_in_place(mended, path)
            logger.warning("'%s' was damaged; it was moved to '%s', and its sound samples are used", path, aside)
        try:
            journal = Journal(path)
            try:
                journal.check_rows()
            except BaseException:
                journal.close()
                raise
        except Damaged as damage:
            count = self._mend(path, mended, rank)
            aside = self._put_in_place(mended, path)
            logger.warning(
                "'%s' is damaged (%s); it was moved to '%s', its %d sound samples are used and all others are generated again",
                path, damage, aside, count,
            )  # fmt: skip
            journal = Journal(path)
        try:
            self._sort_out_parts(rank, journal)
        except BaseException:
            journal.close()
            raise
        return journal

    def _mend(self, path: Path, mended: Path, rank: int) -> int:
        """Write the sound rows of a damaged journal into `mended`, there whole or not at all; returns how many samples."""
        unfinished = mended.with_suffix(".unfinished")
        for end in ("", "-wal", "-shm"):
            unfinished.with_name(unfinished.name + end).unlink(missing_ok=True)
        sound = salvage(path)
        create(unfinished)
        with contextlib.closing(Journal(unfinished)) as journal:
            journal.add(sample for sample, _ in sound.samples)
            sound.write(journal)
            for trace in self._parts(rank):
                its = [sample for sample, part in sound.samples if part == trace.name]
                if not its:
                    continue
                # A part that also holds samples that are lost gives way to one without them.
                name = cut_part(trace, its, self._traces / self._next_part(rank))
                if name is not None:
                    journal.into_part([sample.key for sample in its], name)
            journal.checkpoint()
        unfinished.replace(mended)
        sync_folder(self.folder)
        return len(sound.samples)

    def _put_in_place(self, mended: Path, path: Path) -> Path:
        """Move a damaged journal aside and a mended one into its place. Begins again where it was cut short."""
        aside = self._aside()
        for end in ("", "-wal", "-shm"):
            if (file := path.with_name(path.name + end)).exists():
                shutil.copy2(file, aside / file.name)
        for end in ("-wal", "-shm"):  # a log that is not its own would be read into the new file
            path.with_name(path.name + end).unlink(missing_ok=True)
        mended.replace(path)
        sync_folder(self.folder)
        return aside

    def _aside(self) -> Path:
        number = 1
        while True:  # another rank may need one at the same time
            aside = self.folder / f"damaged-{number}"
            try:
                aside.mkdir()
            except FileExistsError:
                number += 1
            else:
                return aside

    # Parts

    def _parts(self, rank: int) -> list[Path]:
        return sorted(path for path in self._traces.glob(f"{rank:03d}-*.parquet") if _PART_NAME.fullmatch(path.name))

    def _next_part(self, rank: int) -> str:
        numbers = [int(path.stem.partition("-")[2]) for path in self._parts(rank)]
        return f"{rank:03d}-{max(numbers, default=0) + 1:06d}.parquet"

    def _sort_out_parts(self, rank: int, journal: Journal) -> None:
        """Remove parts whose traces the journal still has; move others that it does not know aside."""
        for path in self._traces.glob(f".{rank:03d}-*"):  # one that was being written
            path.unlink()
        known, parts = journal.parts(), self._parts(rank)
        strange = []
        for path in parts:
            if path.name in known:
                continue
            names = names_in(path)
            if names is not None and journal.holds(names):
                path.unlink()
            else:
                strange.append(path)
        if strange:
            aside = self._aside()
            for path in strange:
                path.rename(aside / path.name)
            logger.warning(
                "run_dir='%s': %d trace files hold samples that the journal does not have; they were moved to '%s'",
                self.folder, len(strange), aside,
            )  # fmt: skip
        if lost := known - {path.name for path in parts}:
            logger.warning("run_dir='%s': traces/%s is missing; its samples have no trace", self.folder, min(lost))

    def _into_parts(self, journal: Journal, rank: int, everything: bool = False) -> None:
        """Move traces from a journal into parts, each of one command."""
        while samples := journal.untraced(PART):
            if not everything and sum(sample.tokens for sample in samples) < PART:
                return
            by_command: dict[str, list[Sample]] = {}
            for sample in samples:
                by_command.setdefault(unpacked(sample.trace or b"")[0].command, []).append(sample)
            for command, its in by_command.items():
                name = self._next_part(rank)
                attempts = journal.attempts(command)
                write_part(self._traces / name, its, attempts[-1][0] if attempts else {})
                journal.into_part([sample.key for sample in its], name)

    # Samples

    def begin(self, command: str, facts: Mapping[str, Any], asked: Iterable[Asked]) -> None:
        """What this process is to do: a command, what it says of itself, and the samples that it asks for."""
        rows = list(asked)
        self.command = command

        def write() -> None:
            self.journal.begin_command(command, dict(facts))
            self.journal.ask(command, rows)

        self._now(write)

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Sample]:
        """The samples of these keys that any rank has finished in this folder."""
        found = self._now(lambda: self.journal.find(keys))
        for rank in _ranks(self.folder):
            missing = [key for key in keys if key not in found]
            if rank != self.rank and missing:
                found |= _read(self.folder, rank, missing)
        self.samples_kept += len(found)
        return found

    def add(self, sample: Sample) -> None:
        """Hand over a finished sample; it is on disk a moment later. Raises what went wrong with earlier ones."""
        self._check_open()
        self.samples_kept += 1
        with self._guard:
            self._waiting.append(sample)
            if self._scheduled:
                commit = self._commit if sum(one.tokens for one in self._waiting) > _WAITING else None
            else:
                self._scheduled = True
                commit, self._commit = self._commit, self._thread.submit(self._write_soon)
        if commit is not None:
            with self._told("writing its journal"):
                commit.result()

    def _write_soon(self) -> None:
        """Commit what waits, not sooner than some time after the last commit, until nothing waits."""
        while True:
            with self._guard:
                if not self._waiting:
                    self._scheduled = False
                    return
            self._hurry.wait(max(0.0, self._last_commit + _PAUSE - time.monotonic()))
            try:
                self._write()
            except BaseException:
                with self._guard:
                    self._scheduled = False
                raise

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
        self._last_commit = time.monotonic()
        self._untraced += sum(sample.tokens for sample in samples)
        if self._untraced >= PART:
            self._into_parts(self.journal, self.rank)
            self._untraced = self.journal.untraced_tokens()

    def judge(self, verdicts: Iterable[Verdict]) -> None:
        """Remember what answers were worth."""
        rows = list(verdicts)
        self._now(lambda: self.journal.judge(rows))

    def attempts_and_seconds(self) -> tuple[int, float]:
        """How many attempts there were at this command, and their wall time together, in seconds."""

        def read() -> tuple[int, float]:
            self.journal.tick()
            attempts = self.journal.attempts(self.command)
            return len(attempts), sum(seconds for _, seconds in attempts)

        return self._now(read)

    def earlier_facts(self) -> list[dict[str, Any]]:
        """What the attempts at this command before this one said of themselves."""
        return self._now(lambda: [facts for facts, _ in self.journal.attempts(self.command)[:-1]])

    def flush(self) -> None:
        """Have everything on disk, and all traces in parts."""
        self._now(self._flush)

    def _flush(self) -> None:
        self._write()
        self._into_parts(self.journal, self.rank, everything=True)
        self._untraced = 0
        self.journal.tick()

    def close(self) -> None:
        """Flush, and let go of the folder."""
        if not self._open:
            return
        try:
            self._now(self._flush)
        finally:
            self._open = False
            _open_here.pop(self.folder, None)
            if keeper() is self:
                keep_with(None)
            atexit.unregister(self._close_at_exit)
            self._thread.shutdown()
            self.journal.close()
            self._lock.release()

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except RunDirError as error:
            logger.error("%s", error)

    def kept(self) -> str:
        """For who stops the process."""
        return f"{self.samples_kept:,} samples are kept in run_dir='{self.folder}', and the same command goes on from there"

    def _check_open(self) -> None:
        if not self._open:
            raise RunDirError(f"run_dir='{self.folder}' was closed; make the model anew to go on there")

    def _now(self, work: Callable[[], Result]) -> Result:
        """Do it on the journal's thread, after all that was handed over before."""
        self._check_open()
        self._hurry.set()
        try:
            with self._told("writing its journal"):
                try:
                    future = self._thread.submit(work)
                except RuntimeError:  # the interpreter ends, and has ended the thread
                    return work()
                return future.result()
        finally:
            self._hurry.clear()

    @contextlib.contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        """Errors of disk and journal as one line for the user."""
        try:
            yield
        except (OSError, sqlite3.Error, Damaged) as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code == sqlite3.SQLITE_FULL or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                way_out = "make room and give the same command again"
            else:
                way_out = "make it writable, or give another run_dir"
            raise RunDirError(
                f"run_dir='{self.folder}': {doing} failed: {error}; what was committed before is kept; {way_out}"
            ) from error


_PART_NAME = re.compile(r"\d{3,}-\d{6,}\.parquet")
_JOURNAL_NAME = re.compile(r"journal-(\d{3,})\.sqlite")


def _path(folder: Path, rank: int) -> Path:
    return folder / f"journal-{rank:03d}.sqlite"


def _ranks(folder: Path) -> list[int]:
    """The ranks that have a journal."""
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(int(match[1]) for name in names if (match := _JOURNAL_NAME.fullmatch(name)))


def journals(folder: Path) -> list[Path]:
    """The journals of all ranks."""
    return [_path(folder, rank) for rank in _ranks(folder)]


def _read(folder: Path, rank: int, keys: Sequence[bytes]) -> dict[bytes, Sample]:
    """What another rank has of these keys; nothing where its journal cannot be read, for it sees to that itself."""
    try:
        with contextlib.closing(Journal(_path(folder, rank), read_only=True)) as journal:
            return journal.find(keys)
    except (OSError, sqlite3.Error, Damaged, ValueError) as error:
        logger.warning("'%s' cannot be read: %s; its samples are not used", _path(folder, rank), error)
        return {}
