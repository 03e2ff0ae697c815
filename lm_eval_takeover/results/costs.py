"""What each problem of a takeover run cost, from the journals of its run_dir: lm-eval's files have no counts by problem."""

import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.results.problems import Problems
from lm_eval_takeover.results.statistics import Values
from lm_eval_takeover.runs.journal import Asked, Journal, Sample
from lm_eval_takeover.runs.journal_file import Damaged
from lm_eval_takeover.runs.layout import list_journals


@dataclass(frozen=True)
class Costs:
    """Counts over the samples of each problem, in the order of its `Problems`."""

    tokens: Values
    takeovers: Values
    guide_passes: Values
    truncated: Values  # samples that their token limit ended


def read_costs(run_dir: Path, task: str, problems: Problems) -> Costs | None:
    """The counts of the latest command that asked for every sample of these problems; None where there is none."""
    with contextlib.ExitStack() as stack:
        journals = []
        try:
            for path in list_journals(run_dir):
                journals.append(stack.enter_context(contextlib.closing(Journal(path, read_only=True))))
            for command in reversed([command for journal in journals for command in journal.commands()]):
                asked = [row for journal in journals for row in journal.asked(command) if row.task == task]
                if {row.doc_id for row in asked} == set(problems.doc_ids):
                    found = {key: s for journal in journals for key, s in journal.find([a.key for a in asked]).items()}
                    return _count(asked, found, problems)
        except (Damaged, RunDirError, sqlite3.Error, OSError):
            return None
    return None


def _count(asked: list[Asked], found: dict[bytes, Sample], problems: Problems) -> Costs | None:
    places = {doc_id: place for place, doc_id in enumerate(problems.doc_ids)}
    counts = np.zeros((4, len(problems)))
    if any(row.key not in found for row in asked):
        return None
    for row in asked:
        sample, place = found[row.key], places[row.doc_id]
        counts[:, place] += (sample.tokens, sample.takeovers, sample.guide_passes, sample.truncated)
    return Costs(*counts)
