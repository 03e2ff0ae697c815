"""Between a journal and the parts: traces leave the journal for parquet files, each of some 500,000 tokens of one command.

A part is written and renamed first, and the journal points to it in a transaction behind that. So at any instant the trace of a
journalled sample is in the journal or in exactly one part. A part that the journal does not know was written by a process that
died in between: its traces are still in the journal, and it is removed.
"""

import logging
from pathlib import Path

from lm_eval_takeover.runs.journal import Journal, Sample
from lm_eval_takeover.runs.layout import (
    list_parts,
    list_unfinished_parts,
    make_damaged_folder,
    part_name,
    part_number,
    traces_folder,
)
from lm_eval_takeover.runs.traces import read_sample_names, unpack_trace, write_part

logger = logging.getLogger(__name__)

PART_TOKENS = 2**19  # 13 MB of the journal


def next_part(folder: Path, rank: int) -> Path:
    """Where the next part of a rank goes."""
    number = max(map(part_number, list_parts(folder, rank)), default=0) + 1
    return traces_folder(folder) / part_name(rank, number)


def move_traces(journal: Journal, folder: Path, rank: int, everything: bool = False) -> None:
    """Move traces from a rank's journal into parts, as long as they fill one; `everything` moves the rest, too."""
    while samples := journal.find_pending(PART_TOKENS):
        if not everything and sum(sample.tokens for sample in samples) < PART_TOKENS:
            return
        by_command: dict[str, list[Sample]] = {}
        for sample in samples:
            by_command.setdefault(unpack_trace(sample.trace or b"")[0].command, []).append(sample)
        for command, group in by_command.items():
            part = next_part(folder, rank)
            attempts = journal.attempts(command)
            write_part(part, group, attempts[-1][0] if attempts else {})
            journal.assign_part([sample.key for sample in group], part.name)


def reconcile_parts(journal: Journal, folder: Path, rank: int) -> None:
    """Remove parts of a rank whose traces its journal still has; move others that it does not know aside."""
    for path in list_unfinished_parts(folder, rank):
        path.unlink()
    known, parts = journal.parts(), list_parts(folder, rank)
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
        aside = make_damaged_folder(folder)
        for path in strangers:
            path.rename(aside / path.name)
        logger.warning(
            "run_dir='%s': %d trace files hold samples that the journal does not have; they were moved to '%s'",
            folder, len(strangers), aside,
        )  # fmt: skip
    if lost := known - {path.name for path in parts}:
        logger.warning("run_dir='%s': traces/%s is missing; its samples have no trace", folder, min(lost))
