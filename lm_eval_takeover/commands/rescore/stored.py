"""What the journals of a run_dir hold of each of its commands, and a model that answers from it."""

import contextlib
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs.journal import Asked, Journal, Sample
from lm_eval_takeover.runs.journal_file import Damaged
from lm_eval_takeover.runs.layout import list_journals
from lm_eval_takeover.runs.tally import Tally, summarize_tallies
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.tasks.instances import is_greedy

Answer = tuple[str | None, str]  # what was extracted, and what it was worth
Place = tuple[str, str, int, int]  # task, digest of the document, request of the document, repeat


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


def read_stored_runs(folder: Path) -> tuple[list[StoredRun], dict[tuple[str, bytes], Answer]]:
    """The runs of a run_dir, the latest last, and the verdicts that were given there. Raises RunDirError."""
    paths = list_journals(folder)
    if not paths:
        raise RunDirError(f"run_dir='{folder}' holds no journal; expected a folder that a run was given as run_dir=…")
    runs: dict[str, StoredRun] = {}
    verdicts: dict[tuple[str, bytes], Answer] = {}
    with contextlib.ExitStack() as stack:
        opened = []
        for path in paths:
            try:
                journal = stack.enter_context(contextlib.closing(Journal(path, read_only=True)))
                journal.check_rows()
            except (Damaged, sqlite3.Error, OSError) as error:
                raise RunDirError(
                    f"'{path}' cannot be read: {error}; the run's own command moves a damaged journal aside and goes on"
                ) from error
            opened.append(journal)
        for journal in opened:
            verdicts |= journal.verdicts()
            for command in journal.commands():
                attempts = journal.attempts(command)
                run = runs.setdefault(
                    command, StoredRun(command, attempts[-1][0], len(attempts), sum(s for _, s in attempts), [], {})
                )
                run.asked += journal.asked(command)
        for run in runs.values():
            keys = list({row.key for row in run.asked})
            for journal in opened:
                run.samples |= journal.find(keys)
    return list(runs.values()), verdicts


class StoredResponses(LM):  # type: ignore[misc]
    """A model that writes nothing: its answers are those of a run, found by document."""

    def __init__(self, run: StoredRun, answers: Mapping[Place, Sample]) -> None:
        super().__init__()
        self.run, self.answers = run, answers
        self.tally: defaultdict[str, Tally] = defaultdict(Tally)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        repeats: Counter[int] = Counter()
        texts: list[str] = []
        for instance in requests:
            number = repeats[id(instance)]
            repeats[id(instance)] += 1
            task = instance.task_name or "none"
            sample = self.answers[task, digest_of(instance.doc), instance.idx, number]
            if number == sample.sample:  # one text of a greedy run stands for all samples of its document
                self.tally[task].add(sample)
            texts.append(sample.response)
        return texts

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        raise RunDirError("a journal holds generated texts, not log-likelihoods; leave those tasks out of --tasks")

    loglikelihood_rolling = loglikelihood

    def get_model_info(self) -> dict[str, Any]:
        described = self.run.facts.get("takeover") or {}
        times = {"attempts": self.run.attempts, "seconds": round(self.run.seconds, 3), "rescored": True}
        return {"takeover": described | summarize_tallies(self.tally) | times}
