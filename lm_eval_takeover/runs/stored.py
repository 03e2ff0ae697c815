"""What the journals of a run_dir hold of each of its commands: what it asked for, and the samples that answer it."""

import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs.facts import Facts
from lm_eval_takeover.runs.journal import Asked, Journal, Sample
from lm_eval_takeover.runs.journal_file import Damaged
from lm_eval_takeover.runs.layout import list_journals
from lm_eval_takeover.storage.schema import check
from lm_eval_takeover.tasks.instances import is_greedy

Answer = tuple[str | None, str]  # what was extracted, and what it was worth


@dataclass(slots=True)
class StoredRun:
    """All that the journals of a run_dir hold of one command: what it asked for, and the samples that answer it."""

    command: str
    facts: dict[str, Any]
    attempts: int
    seconds: float
    asked: list[Asked]
    samples: dict[bytes, Sample]

    @property
    def tasks(self) -> list[str]:
        return sorted({row.task for row in self.asked})

    def is_greedy(self, task: str) -> bool:
        """Whether a task's texts were decoded greedily, and so written once each."""
        return any(name == task and is_greedy(settings) for name, settings in self.facts.get("tasks") or [])


def _read_attempts(journal: Journal, command: str) -> list[tuple[dict[str, Any], float]]:
    try:
        return [(check(facts, Facts, "facts"), seconds) for facts, seconds in journal.attempts(command)]
    except (ValueError, RecursionError) as error:
        raise RunDirError(f"'{journal.path}' cannot be read: what it says of a command is damaged: {error}") from error


def read_stored_runs(folder: Path) -> tuple[list[StoredRun], dict[tuple[str, bytes], Answer]]:
    """The runs of a run_dir, the latest last, and the verdicts that were given there. Raises RunDirError."""
    paths = list_journals(folder)
    if not paths:
        raise RunDirError(f"run_dir='{folder}' holds no journal; expected a folder that a run had as run_dir=…")
    runs: dict[str, StoredRun] = {}
    verdicts: dict[tuple[str, bytes], Answer] = {}
    with contextlib.ExitStack() as stack:
        opened = []
        for path in paths:
            try:
                opened.append(stack.enter_context(contextlib.closing(Journal(path, read_only=True))))
            except (Damaged, sqlite3.Error, OSError) as error:
                raise RunDirError(f"'{path}' cannot be read: {error}; the run's own command repairs it") from error
        for journal in opened:
            verdicts |= journal.verdicts()
            for command in journal.commands():
                attempts = _read_attempts(journal, command)
                facts, seconds = attempts[-1][0], sum(spent for _, spent in attempts)
                run = runs.setdefault(command, StoredRun(command, facts, len(attempts), seconds, [], {}))
                run.asked += journal.asked(command)
        for run in runs.values():
            keys = list({row.key for row in run.asked})
            for journal in opened:
                run.samples |= journal.find(keys)
    return list(runs.values()), verdicts
