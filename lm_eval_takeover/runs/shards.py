"""Opens a journal for writing, and writes its traces into parquet files, the parts, that users read.

The journal holds all traces; parts are copies. A part holds some 500,000 tokens of one command. The journal holds its digest,
entered before the file is written. So when a folder is opened, a part that has changed or is another run's is found. It is moved
to RUN_DIR/damaged-N and written again. A damaged journal is moved there, too; its samples are generated again.
"""

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from lm_eval_takeover.runs import layout
from lm_eval_takeover.runs.journal import Journal, Part, Sample
from lm_eval_takeover.runs.journal_file import Damaged
from lm_eval_takeover.runs.parquet import check_digest, encode_parquet, read_digest
from lm_eval_takeover.runs.traces import read_header, tabulate
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.locks import Lock, Locked
from lm_eval_takeover.storage.whole_files import sync_folder, write_whole

logger = logging.getLogger(__name__)

PART_TOKENS = 2**19


def open_journal(folder: Path, rank: int) -> Journal:
    """The journal of a rank; what is damaged, and parts that it does not know, are moved aside."""
    path = layout.journal_path(folder, rank)
    try:
        journal = Journal(path)
    except Damaged as why:
        aside = _move_aside(path)
        logger.warning("'%s' is damaged (%s) and was moved to '%s'; its samples are generated again", path, why, aside)
        journal = Journal(path)
    try:
        if lost := journal.drop_damaged():
            logger.warning("'%s': the traces of %d samples are damaged; these samples are generated again", path, lost)
        _move_strangers_aside(folder, rank, journal.parts())
    except BaseException:
        journal.close()
        raise
    return journal


def write_absent_ranks(folder: Path, ranks: int) -> None:
    """Open the journals of ranks from `ranks` on, which this run does not have, and write their parts."""
    journals = layout.list_ranks(folder)
    for rank in sorted({*journals, *layout.list_ranks_of_parts(folder)}):
        if rank < ranks:
            continue
        if rank not in journals:
            _move_strangers_aside(folder, rank, [])
            continue
        with contextlib.suppress(Locked):
            lock = Lock(layout.lock_path(folder, rank))
            try:
                with contextlib.closing(open_journal(folder, rank)) as journal:
                    write_parts(journal, folder, rank)
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


def _move_strangers_aside(folder: Path, rank: int, parts: Sequence[Part]) -> None:
    """Move files aside that are named as parts of this rank and are none of these, which its journal wrote."""
    for path in (folder / layout.TRACES).glob(f".{rank:03d}-*"):  # a process died while it wrote them
        path.unlink()
    known, strangers = {part.name: part.content for part in parts}, []
    for path in layout.list_parts(folder, rank):
        try:
            if check_digest(path) == known.get(path.name):
                continue
        except (OSError, ValueError):
            pass
        strangers.append(path)
    if strangers:
        aside = layout.make_damaged_folder(folder)
        for path in strangers:
            path.rename(aside / path.name)
        logger.warning(
            "run_dir='%s': %d trace files are not what this run wrote; they were moved to '%s' and are written again",
            folder, len(strangers), aside,
        )  # fmt: skip


def write_parts(journal: Journal, folder: Path, rank: int) -> None:
    """Write the parts that are missing, and new ones for the traces that are in none."""
    parts = journal.parts()
    for part in parts:
        missing = not (folder / layout.TRACES / part.name).exists()
        if missing and (samples := dict(journal.list_traces(part.first, part.last))):
            _write_part(journal, folder, part.name, samples)
    number, first = len(parts), max((part.last for part in parts), default=0) + 1
    for samples in _split(journal.list_traces(first)):
        number += 1
        _write_part(journal, folder, f"{rank:03d}-{number:06d}.parquet", samples)


def _split(traces: Iterator[tuple[int, Sample]]) -> Iterator[dict[int, Sample]]:
    """Traces by their ids, in groups of one command and some `PART_TOKENS` tokens."""
    group, command, tokens = dict[int, Sample](), "", 0
    for number, sample in traces:
        before, command = command, read_header(sample.trace).command
        if group and (command != before or tokens >= PART_TOKENS):
            yield group
            group, tokens = {}, 0
        group[number] = sample
        tokens += sample.tokens
    if group:
        yield group


def _write_part(journal: Journal, folder: Path, name: str, samples: dict[int, Sample]) -> None:
    command = read_header(next(iter(samples.values())).trace).command
    attempts = journal.attempts(command)
    facts = attempts[-1][0] if attempts else {}
    metadata = {"takeover": json.dumps(facts), "identity": digest_of(facts.get("settings")), "command": command}
    data = encode_parquet(tabulate(list(samples.values())), metadata)
    journal.enter_part(Part(name, min(samples), max(samples), read_digest(data)))
    write_whole(folder / layout.TRACES / name, lambda stream: stream.write(data))
