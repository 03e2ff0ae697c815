"""Opens a journal for writing, and writes its traces into parquet files, the parts, that users read.

The journal holds all traces; parts are copies. A part holds some 500,000 tokens of one command, and its metadata a digest of its
samples and one of its bytes. So when a command ends, parts that are missing, changed or another run's are written again. A
damaged journal is moved to RUN_DIR/damaged-N with its parts; its samples are generated again.
"""

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lm_eval_takeover.runs import layout
from lm_eval_takeover.runs.journal import Journal, Sample
from lm_eval_takeover.runs.journal_file import Damaged, add_checksum
from lm_eval_takeover.runs.parquet import check_digest, write_parquet
from lm_eval_takeover.runs.traces import read_header, tabulate
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.locks import Lock, Locked
from lm_eval_takeover.storage.whole_files import sync_folder

logger = logging.getLogger(__name__)

PART_TOKENS = 2**19


def open_journal(folder: Path, rank: int) -> Journal:
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


def write_absent_ranks(folder: Path, ranks: int) -> None:
    """Write the parts of ranks from `ranks` on, which this run does not have."""
    for rank in layout.list_ranks(folder):
        if rank >= ranks:
            with contextlib.suppress(Locked):
                lock = Lock(layout.lock_path(folder, rank))
                try:
                    with contextlib.closing(open_journal(folder, rank)) as journal:
                        write_parts(journal, folder, rank)
                finally:
                    lock.release()


def _move_aside(folder: Path, paths: Iterable[Path]) -> Path | None:
    """Move these files into a folder of their own; None where none is there."""
    aside = None
    for path in paths:
        if path.is_symlink() or path.exists():
            aside = aside or layout.make_damaged_folder(folder)
            path.rename(aside / path.name)
    sync_folder(folder)
    return aside


def write_parts(journal: Journal, folder: Path, rank: int) -> None:
    """Write the parts that are not what the journal holds. Others are moved aside."""
    for path in (folder / layout.TRACES).glob(f".{rank:03d}-*"):  # a process died while it wrote them
        path.unlink()
    written = [
        _write_part(journal, layout.part_path(folder, rank, number), samples)
        for number, samples in enumerate(_split(journal.list_traces()), 1)
    ]
    if aside := _move_aside(folder, [path for path in layout.list_parts(folder, rank) if path not in written]):
        logger.warning("run_dir='%s': trace files that are not of this run were moved to '%s'", folder, aside)


def _split(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    """In groups of one command and some `PART_TOKENS` tokens."""
    group, command, tokens = list[Sample](), "", 0
    for sample in samples:
        before, command = command, read_header(sample.trace).command
        if group and (command != before or tokens >= PART_TOKENS):
            yield group
            group, tokens = [], 0
        group.append(sample)
        tokens += sample.tokens
    if group:
        yield group


def _write_part(journal: Journal, path: Path, samples: list[Sample]) -> Path:
    made_of = digest_of([[*sample.row[:4], add_checksum(sample.key, sample.trace)[:8]] for sample in samples])
    with contextlib.suppress(OSError, ValueError, pa.ArrowException):
        check_digest(path)
        if (pq.read_schema(path).metadata or {}).get(b"samples") == made_of.encode():
            return path
    command = read_header(samples[0].trace).command
    attempts = journal.attempts(command)
    facts = attempts[-1][0] if attempts else {}
    metadata = {"takeover": json.dumps(facts), "identity": digest_of(facts.get("settings")), "command": command}
    write_parquet(path, tabulate(samples), metadata | {"samples": made_of})
    return path
