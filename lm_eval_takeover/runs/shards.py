"""Moves traces from a journal into parts, and repairs what a killed process left.

A part holds some 500,000 tokens of one command. It is written first; then one transaction points the journal to it. So a trace is
always in the journal or in exactly one part. A part that the journal does not know is removed: the journal has its traces.
A damaged journal is moved to RUN_DIR/damaged-N with its parts, and its samples are generated again.
"""

import contextlib
import logging
from pathlib import Path

from lm_eval_takeover.runs import layout
from lm_eval_takeover.runs.journal import Journal, Sample
from lm_eval_takeover.runs.journal_file import Damaged
from lm_eval_takeover.runs.traces import read_sample_names, unpack_trace, write_part
from lm_eval_takeover.storage.locks import Lock, Locked
from lm_eval_takeover.storage.whole_files import sync_folder

logger = logging.getLogger(__name__)

PART_TOKENS = 2**19  # 13 MB of the journal


def open_journal(folder: Path, rank: int) -> Journal:
    """The journal of a rank, its parts in agreement with it."""
    path = layout.journal_path(folder, rank)
    try:
        journal = Journal(path)
    except Damaged as why:
        aside = _move_aside(path)
        logger.warning("'%s' is damaged (%s) and was moved to '%s'; its samples are generated again", path, why, aside)
        journal = Journal(path)
    try:
        _reconcile_parts(journal, folder, rank)
    except BaseException:
        journal.close()
        raise
    return journal


def recover_absent_ranks(folder: Path, ranks: int) -> None:
    """Put the journals of ranks from `ranks` on in order, which this run does not have, and move their traces into parts."""
    for rank in layout.list_ranks(folder):
        if rank < ranks:
            continue
        with contextlib.suppress(Locked):
            lock = Lock(layout.lock_path(folder, rank))
            try:
                with contextlib.closing(open_journal(folder, rank)) as journal:
                    move_traces(journal, folder, rank, everything=True)
            finally:
                lock.release()


def _move_aside(path: Path) -> Path:
    """Move a journal into a folder of its own. Its log goes first: SQLite would read it into the next journal."""
    aside = layout.make_damaged_folder(path.parent)
    for end in ("-wal", "-shm", ""):
        file = path.with_name(path.name + end)
        if file.exists():
            file.rename(aside / file.name)
    sync_folder(path.parent)
    return aside


def move_traces(journal: Journal, folder: Path, rank: int, everything: bool = False) -> None:
    """Move traces from a rank's journal into full parts; with `everything` the last part may be smaller."""
    while samples := journal.find_pending(PART_TOKENS):
        if not everything and sum(sample.tokens for sample in samples) < PART_TOKENS:
            return
        by_command: dict[str, list[Sample]] = {}
        for sample in samples:
            by_command.setdefault(unpack_trace(sample.trace or b"")[0].command, []).append(sample)
        for command, group in by_command.items():
            part = layout.next_part(folder, rank)
            attempts = journal.attempts(command)
            write_part(part, group, attempts[-1][0] if attempts else {})
            journal.assign_part(group, part.name)


def _reconcile_parts(journal: Journal, folder: Path, rank: int) -> None:
    """Remove parts of a rank whose traces its journal still has; move others that it does not know aside."""
    for path in (folder / layout.TRACES).glob(f".{rank:03d}-*"):  # a process died while it wrote them
        path.unlink()
    known, parts = journal.parts(), layout.list_parts(folder, rank)
    strangers = []
    for path in parts:
        if path.name in known:
            continue
        names = read_sample_names(path)
        if names is not None and journal.has_traces(names):
            path.unlink()
        else:
            strangers.append(path)
    if strangers:
        aside = layout.make_damaged_folder(folder)
        for path in strangers:
            path.rename(aside / path.name)
        logger.warning(
            "run_dir='%s': %d trace files hold samples that the journal does not have; they were moved to '%s'",
            folder, len(strangers), aside,
        )  # fmt: skip
    if lost := known - {path.name for path in parts}:
        logger.warning("run_dir='%s': traces/%s is missing; its samples have no trace", folder, min(lost))
