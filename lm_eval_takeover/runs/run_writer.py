"""One process's hold on a run_dir. Commits finished samples with their traces, and other evidence, to the journal.

Parquet files of the traces, the parts, are copies that users read; `layout` names the files. A part holds some 500,000 tokens of
one command. When a command ends, parts that are missing, changed or another run's are written again. A damaged journal is moved
to RUN_DIR/damaged-N with its parts; its samples are generated again.
"""

import atexit
import contextlib
import errno
import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from os.path import expanduser
from pathlib import Path
from typing import Any

import pyarrow as pa

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs import layout
from lm_eval_takeover.runs.evidence import read_trace_header, unpack_trace
from lm_eval_takeover.runs.journal import AskedSample, Damaged, Journal, Prompt, Sample, row_digest
from lm_eval_takeover.runs.parquet import TRACE_SCHEMA, split_parts, tabulate, write_part, write_prompts
from lm_eval_takeover.samples import Verdict
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.files import Lock, Locked, make_folder, sync_folder

logger = logging.getLogger(__name__)

_open_here: "dict[Path, RunWriter]" = {}  # open folders of this process: a later model closes an earlier one's


class RunWriter:
    """One process's hold on a run_dir. Raises RunDirError where it cannot be written or another process is at work."""

    def __init__(self, folder: Path, rank: int = 0, ranks: int = 1) -> None:
        self.folder, self.rank = Path(expanduser(folder)).absolute(), rank
        self.command = ""
        self.samples_kept = 0
        self._place = self.folder.resolve()  # whatever links it is named by
        if (before := _open_here.get(self._place)) is not None:
            before.close()
        self._failed = False  # and an error said so
        self._left: list[Sample] = []  # finished, and not committed: that failed, or was interrupted
        if self.folder.is_file():
            raise RunDirError(f"run_dir='{self.folder}' is a file; give a folder, which is made if needed")
        if self.folder.is_symlink() and not self.folder.exists():
            problem = f"is a link to '{self.folder.readlink()}', which is not there"
            raise RunDirError(f"run_dir='{self.folder}' {problem}; make that folder, or give another run_dir")
        with self._translate_errors("opening it"):
            make_folder(self.folder / layout.TRACES)
            try:
                self._lock = Lock(layout.lock_path(self.folder, rank))
            except Locked as holder:
                raise RunDirError(f"run_dir='{self.folder}' is in use by {holder}; wait, or give another run_dir") from None
            try:
                self.journal = _open_journal(self.folder, rank)
                if rank == 0:
                    _write_absent_ranks(self.folder, ranks)
            except BaseException:
                self._lock.release()
                raise
        self._open = True
        _open_here[self._place] = self
        atexit.register(self._close_at_exit)

    # Samples

    def begin(
        self, command: str, facts: Mapping[str, Any], asked: Iterable[AskedSample], prompts: Sequence[Prompt] = ()
    ) -> None:
        """Enter the command of this process, what it says of itself, and what it asks for; start its clock."""
        self.command = command
        with self.writing() as journal:
            journal.begin_command(command, dict(facts))
            journal.set_asked(command, asked)
            journal.add_prompts(prompts)
            if prompts:
                write_prompts(self.folder)

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Sample]:
        """The samples of these keys that any rank has finished in this folder."""
        with self.writing() as journal:
            samples = journal.find(keys)
        for rank in layout.list_ranks(self.folder):
            missing = [key for key in keys if key not in samples]
            if rank == self.rank or not missing:
                continue
            path = layout.journal_path(self.folder, rank)
            try:
                with contextlib.closing(Journal(path, read_only=True)) as journal:
                    samples |= journal.find(missing)
            except (OSError, sqlite3.Error, Damaged, ValueError) as error:  # its own rank repairs it
                logger.warning("'%s' cannot be read: %s; its samples are not used", path, error)
        return samples

    def add(self, *samples: Sample) -> None:
        """Commit finished samples, all or none."""
        with self.writing():
            self.samples_kept += len(samples)
            self._left += samples
            self._commit()

    def _commit(self) -> None:
        if self._left:
            self.journal.add(self._left)
            self._left = []

    def add_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        if self._open:  # else `rescore` can judge the texts
            with self.writing() as journal:
                journal.add_verdicts(verdicts)

    def read_attempts(self) -> list[tuple[dict[str, Any], float]]:
        """The facts of each attempt at this command, and the seconds that it generated, until now; the oldest first."""
        with self.writing() as journal:
            journal.update_attempt()
            return journal.attempts(self.command)

    def list_facts(self) -> list[dict[str, Any]]:
        """The facts of the last attempt at each command, the latest command first."""
        with self.writing() as journal:
            return [journal.attempts(command)[-1][0] for command in reversed(journal.commands())]

    def flush(self, *, interrupted: bool = False) -> None:
        """Commit what is left, write the parts of the traces, and stop the clock of the command."""
        with self.writing() as journal:
            self._commit()
            journal.stop_clock(interrupted=interrupted)
            _write_parts(journal, self.folder, self.rank)

    @contextlib.contextmanager
    def flushing(self) -> Iterator[None]:
        """Flush at the end of the `with` block. An error in the block is raised as it is, even if the disk is full on top."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(RunDirError):
                self.flush(interrupted=True)
            raise
        self.flush()

    def close(self) -> None:
        """Flush, and let go of the folder."""
        if not self._open:
            return
        try:
            self.flush()
        finally:
            self._open = False
            _open_here.pop(self._place, None)
            atexit.unregister(self._close_at_exit)
            self.journal.close()
            self._lock.release()

    def _close_at_exit(self) -> None:
        told = self._failed
        try:
            self.close()
        except RunDirError as error:
            if not told:
                logger.error("%s", error)

    def describe_kept(self) -> str:
        """One line for a stopped process: what is kept here."""
        return f"{self.samples_kept:,} samples are kept in run_dir='{self.folder}', and the same command goes on from there"

    def _check_place(self) -> None:
        """Raises RunDirError where the folder of this name is another one now. The journal's open file went with the old one."""
        if not self._lock.is_in_place():
            raise RunDirError(
                f"run_dir='{self.folder}' was moved or removed while a command wrote to it; what was kept there went with it; "
                f"give the same command again with the folder's new place"
            )

    @contextlib.contextmanager
    def writing(self) -> Iterator[Journal]:
        """The journal. Raises RunDirError for errors of disk and journal in the `with` block, and for a folder that was moved."""
        if not self._open:
            raise RunDirError(f"run_dir='{self.folder}' was closed; make a new model object to continue")
        with self._translate_errors("writing its journal"):
            self._check_place()
            yield self.journal
            self._check_place()

    @contextlib.contextmanager
    def _translate_errors(self, doing: str) -> Iterator[None]:
        """Raise errors of disk and journal as a RunDirError that names what failed and the way out."""
        try:
            yield
        except RunDirError:
            self._failed = True
            raise
        except (OSError, sqlite3.Error, Damaged) as error:
            self._failed = True
            full = getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
            number = getattr(error, "errno", None)
            full = full or number in (errno.ENOSPC, errno.EDQUOT)
            way_out = "make room and give the same command again" if full else "make it writable, or give another run_dir"
            if number in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):  # some network file systems have no locks
                way_out = "give a run_dir on a local file system"
            problem = f"run_dir='{self.folder}': {doing} failed: {error}"
            raise RunDirError(f"{problem}; what was committed before is kept; {way_out}") from error


@contextlib.contextmanager
def hold_journals(folder: Path) -> Iterator[list[Journal]]:
    """The journals of all ranks, as they are: a `RunWriter` repairs its own. Raises RunDirError where a command is at work."""
    if (before := _open_here.get(folder.resolve())) is not None:
        before.close()
    with contextlib.ExitStack() as held:
        journals = []
        try:
            for rank in layout.list_ranks(folder):
                held.enter_context(Lock(layout.lock_path(folder, rank)))
                journals.append(held.enter_context(contextlib.closing(Journal(layout.journal_path(folder, rank), check=False))))
        except Locked as holder:
            raise RunDirError(f"run_dir='{folder}' is in use by {holder}; wait, or give --output_path") from None
        yield journals


# Repairs at the start, and the parts at the end


def _open_journal(folder: Path, rank: int) -> Journal:
    """The journal of a rank, a new one where there is none. What is damaged, and parts without a journal, are moved aside."""
    path, why = layout.journal_path(folder, rank), "gone"
    try:
        journal = Journal(path) if path.exists() else None
    except Damaged as error:
        journal, why = None, f"damaged ({error})"
    if journal is None:
        # The log goes first: SQLite would read it into the next journal.
        ends = (path.with_name(path.name + end) for end in ("-wal", "-shm", ""))
        if aside := _move_aside(folder, [*ends, *layout.list_parts(folder, rank)]):
            logger.warning("'%s' is %s; what it left was moved to '%s', and its samples are generated again", path, why, aside)
        journal = Journal(path)
    try:
        if lost := journal.drop_damaged():
            logger.warning("'%s': the traces of %d samples are damaged; these samples are generated again", path, lost)
    except BaseException:
        journal.close()
        raise
    return journal


def _write_absent_ranks(folder: Path, ranks: int) -> None:
    """Write the parts of ranks from `ranks` on, which this run does not have."""
    for rank in layout.list_ranks(folder):
        if rank >= ranks:
            lock_path = layout.lock_path(folder, rank)
            with contextlib.suppress(Locked), Lock(lock_path), contextlib.closing(_open_journal(folder, rank)) as journal:
                _write_parts(journal, folder, rank)


def _move_aside(folder: Path, paths: Iterable[Path]) -> Path | None:
    """Move these files into a folder of their own; None where none is there."""
    aside = None
    for path in paths:
        if path.is_symlink() or path.exists():
            aside = aside or layout.make_damaged_folder(folder)
            path.rename(aside / path.name)
    sync_folder(folder)
    return aside


def _write_parts(journal: Journal, folder: Path, rank: int) -> None:
    """Write the parts that are not what the journal holds. Others are moved aside."""
    for path in (folder / layout.TRACES).glob(f".{rank:03d}-*"):  # a process died while it wrote them
        path.unlink()
    written = list[Path]()
    for command, samples in groupby(journal.list_traces(), lambda sample: read_trace_header(sample.trace).command):
        attempts = journal.attempts(command)
        facts = {name: value for name, value in (attempts[-1][0] if attempts else {}).items() if name != "written"}
        metadata = {"takeover": json.dumps(facts), "identity": digest_of(facts.get("settings")), "command": command}
        for part in split_parts(samples, lambda sample: sample.tokens):
            written.append(folder / layout.TRACES / f"{rank:03d}-{len(written) + 1:06d}.parquet")
            made_of = digest_of([row_digest([*sample.row[:4], sample.trace]) for sample in part])
            write_part(journal, written[-1], made_of, partial(tabulate_traces, part), metadata)
    if aside := _move_aside(folder, [path for path in layout.list_parts(folder, rank) if path not in written]):
        logger.warning("run_dir='%s': trace files that are not of this run were moved to '%s'", folder, aside)


def tabulate_traces(samples: list[Sample]) -> pa.Table:
    """One row per token of these samples, which hold their traces. Raises Damaged."""
    names = TRACE_SCHEMA.names
    return tabulate(samples, [unpack_trace(sample.trace, sample.tokens, names) for sample in samples], TRACE_SCHEMA)
