"""Reads what each problem of a takeover run cost. The journals of its run_dir know it; lm-eval's files do not."""

import contextlib
import sqlite3
from pathlib import Path

import numpy as np

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.results.problems import Problems
from lm_eval_takeover.results.statistics import Values
from lm_eval_takeover.runs.journal import Asked, Journal, Sample
from lm_eval_takeover.runs.journal_file import Damaged
from lm_eval_takeover.runs.layout import list_journals

COSTS = ("tokens", "takeovers", "guide_passes", "truncated")


def read_costs(run_dir: Path, task: str, problems: Problems) -> dict[str, Values]:
    """Read the `COSTS` of each problem, as means over its samples, from the latest command that asked for all of them.

    Returns nothing if there is no such command.
    """
    with contextlib.ExitStack() as stack:
        journals = []
        try:
            for path in list_journals(run_dir):
                journals.append(stack.enter_context(contextlib.closing(Journal(path, read_only=True))))
            for command in reversed([command for journal in journals for command in journal.commands()]):
                asked = [row for journal in journals for row in journal.asked(command) if row.task == task]
                if {row.doc_id for row in asked} == set(problems.doc_ids):
                    keys = [row.key for row in asked]
                    samples = {key: sample for journal in journals for key, sample in journal.find(keys).items()}
                    return _average(asked, samples, problems)
        except (Damaged, RunDirError, sqlite3.Error, OSError):
            return {}
    return {}


def _average(asked: list[Asked], samples: dict[bytes, Sample], problems: Problems) -> dict[str, Values]:
    places = {doc_id: place for place, doc_id in enumerate(problems.doc_ids)}
    counts = np.zeros((len(COSTS), len(problems)))
    if any(row.key not in samples for row in asked):
        return {}
    for row in asked:
        counts[:, places[row.doc_id]] += [getattr(samples[row.key], name) for name in COSTS]
    return dict(zip(COSTS, counts / problems.samples, strict=True))
