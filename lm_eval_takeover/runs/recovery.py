"""Opening the journals of a run_dir after kills, damaged files, or another number of ranks.

A damaged journal is moved to RUN_DIR/damaged-N, and its sound rows go into a new one, which is there whole or not at all.
Every step can be cut short and is done again by the next start.
"""

import contextlib
import logging
import shutil
from pathlib import Path

from lm_eval_takeover.runs.journal import Journal
from lm_eval_takeover.runs.journal_file import Damaged, create_journal
from lm_eval_takeover.runs.layout import journal_path, list_parts, list_ranks, lock_path, make_damaged_folder
from lm_eval_takeover.runs.salvage import salvage
from lm_eval_takeover.runs.shards import move_traces, next_part, reconcile_parts
from lm_eval_takeover.runs.traces import extract_part
from lm_eval_takeover.storage.locks import Lock, Locked
from lm_eval_takeover.storage.whole_files import sync_folder

logger = logging.getLogger(__name__)

_LOGS = ("-wal", "-shm")  # what SQLite keeps beside a file


def open_journal(folder: Path, rank: int) -> Journal:
    """The journal of a rank, mended where it is not sound, its parts in agreement with it."""
    path = journal_path(folder, rank)
    mended = path.with_name(f".{path.stem}.mended")
    if mended.exists():  # its process died before it replaced the damaged one
        aside = _replace_damaged(path, mended)
        logger.warning("'%s' was damaged; it was moved to '%s', and its sound samples are used", path, aside)
    try:
        journal = _open_sound(path)
    except Damaged as damage:
        count = mend_journal(folder, rank, mended)
        aside = _replace_damaged(path, mended)
        logger.warning(
            "'%s' is damaged (%s); it was moved to '%s', its %d sound samples are used and all others are generated again",
            path, damage, aside, count,
        )  # fmt: skip
        journal = Journal(path)
    try:
        reconcile_parts(journal, folder, rank)
    except BaseException:
        journal.close()
        raise
    return journal


def recover_absent_ranks(folder: Path, ranks: int) -> None:
    """Mend the journals of ranks from `ranks` on, which this run does not have, and move their traces into parts."""
    for rank in list_ranks(folder):
        if rank < ranks:
            continue
        with contextlib.suppress(Locked):
            lock = Lock(lock_path(folder, rank))
            try:
                with contextlib.closing(open_journal(folder, rank)) as journal:
                    move_traces(journal, folder, rank, everything=True)
            finally:
                lock.release()


def _open_sound(path: Path) -> Journal:
    """Raises Damaged where a row does not agree with its digest."""
    journal = Journal(path)
    try:
        journal.check_rows()
    except BaseException:
        journal.close()
        raise
    return journal


def mend_journal(folder: Path, rank: int, mended: Path) -> int:
    """Write the sound rows of a rank's damaged journal into `mended`, there whole or not at all; returns how many samples."""
    unfinished = mended.with_suffix(".unfinished")
    for end in ("", *_LOGS):
        unfinished.with_name(unfinished.name + end).unlink(missing_ok=True)
    sound = salvage(journal_path(folder, rank))
    create_journal(unfinished)
    with contextlib.closing(Journal(unfinished)) as journal:
        journal.add(sample for sample, _ in sound.samples)
        journal.restore(sound.others)
        for part in list_parts(folder, rank):
            samples = [sample for sample, its_part in sound.samples if its_part == part.name]
            if not samples:
                continue
            # A part that also holds samples that are lost gives way to one without them.
            name = extract_part(part, samples, next_part(folder, rank))
            if name is not None:
                journal.assign_part([sample.key for sample in samples], name)
        journal.checkpoint()
    unfinished.replace(mended)
    sync_folder(folder)
    return len(sound.samples)


def _replace_damaged(path: Path, mended: Path) -> Path:
    """Move a damaged journal aside and the mended one into its place; begins again where it was cut short."""
    aside = make_damaged_folder(path.parent)
    for end in ("", *_LOGS):
        if (file := path.with_name(path.name + end)).exists():
            shutil.copy2(file, aside / file.name)
    for end in _LOGS:  # SQLite would read the old log into the new file
        path.with_name(path.name + end).unlink(missing_ok=True)
    mended.replace(path)
    sync_folder(path.parent)
    return aside
