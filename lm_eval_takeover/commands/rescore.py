"""Verify the stored responses of a run_dir anew: lm-eval's own evaluation, with a model that answers from the journal."""

import contextlib
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from lm_eval_takeover.errors import ArgumentError, RunDirError, nearest
from lm_eval_takeover.method.policies import Policy
from lm_eval_takeover.runs.journal import Asked, Journal, Sample
from lm_eval_takeover.runs.journal_file import Damaged
from lm_eval_takeover.runs.layout import list_journals
from lm_eval_takeover.runs.tally import Tally, summarize_tallies
from lm_eval_takeover.storage.digests import digest_of, digest_of_text
from lm_eval_takeover.storage.package_data import data_folder
from lm_eval_takeover.tasks.verdict_log import LoggedVerdict, redirect_verdicts

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
        return sorted({one.task for one in self.asked})


def stored_runs(folder: Path) -> tuple[list[StoredRun], dict[tuple[str, bytes], Answer]]:
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
            keys = list({one.key for one in run.asked})
            for journal in opened:
                run.samples |= journal.find(keys)
    return list(runs.values()), verdicts


class StoredResponses(LM):  # type: ignore[misc]
    """A model that writes nothing: its answers are those of a run, found by document."""

    def __init__(self, run: StoredRun, answers: Mapping[tuple[str, str, int, int], Sample]) -> None:
        super().__init__()
        self.run, self.answers = run, answers
        self.tally: defaultdict[str, Tally] = defaultdict(Tally)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        repeats: Counter[int] = Counter()
        texts = []
        for instance in requests:
            number = repeats[id(instance)]
            repeats[id(instance)] += 1
            task = instance.task_name or "none"
            sample = self.answers[task, digest_of(instance.doc), instance.idx, number]
            self.tally[task].add(sample)
            texts.append(sample.text)
        return texts

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        raise RunDirError("a journal holds generated texts, not log-likelihoods; leave those tasks out of --tasks")

    loglikelihood_rolling = loglikelihood

    def get_model_info(self) -> dict[str, Any]:
        described = self.run.facts.get("takeover") or {}
        policy = Policy(described["policy"], described["direction"]) if described.get("policy") == "guide" else Policy()
        times = {"attempts": self.run.attempts, "seconds": round(self.run.seconds, 3), "rescored": True}
        return {"takeover": described | summarize_tallies(self.tally, policy) | times}


@dataclass(slots=True)
class Verdicts:
    """What is given out while stored responses are scored."""

    given: dict[tuple[str, bytes], Answer] = field(default_factory=dict)

    def add_verdicts(self, verdicts: Iterable[LoggedVerdict]) -> None:
        self.given |= {(doc, response): (answer, outcome) for doc, response, answer, outcome in verdicts}


@dataclass(frozen=True, slots=True)
class Change:
    """One verdict that came out otherwise than in the run."""

    task: str
    doc_id: int
    sample: int
    before: Answer
    after: Answer

    def __str__(self) -> str:
        (old, was), (new, now) = self.before, self.after
        answers = f"{old!r}" if old == new else f"{old!r}, now {new!r}"
        return f"{self.task}, doc {self.doc_id}, sample {self.sample}: {was} -> {now} (answer {answers})"


@dataclass(frozen=True, slots=True)
class Rescored:
    """The outcome for one run: lm-eval's results, and what changed."""

    results: dict[str, Any]
    changes: list[Change]
    compared: int
    left_out: int


def rescore(
    run: StoredRun, verdicts: Mapping[tuple[str, bytes], Answer], tasks: Sequence[str], include: Path | None
) -> Rescored:
    """Score the responses of a run with the tasks of these names (its own by default) as they are installed, or in `include`.

    Documents are found by their content; where that has changed (a corrected gold answer), by their number. Those
    without all their responses are left out. Raises ArgumentError for tasks that are not known, or that the run has nothing of.
    """
    names = list(tasks) or run.tasks
    manager = _task_manager(names, include)
    for name in names:
        if name not in manager.all_tasks:
            raise ArgumentError(f"task '{name}' is not known; {nearest(name, run.tasks)}, or give --include_path")
    loaded = manager.load(names)["tasks"]
    answers: dict[tuple[str, str, int, int], Sample] = {}
    before: dict[tuple[str, str], tuple[str, int]] = {}  # document now: document then, and its number
    documents: dict[str, list[int]] = {}
    left_out = 0
    for name, task in loaded.items():
        stored = _of_task(run, name)
        current = list(task.eval_docs)
        matched = _matched(stored, current)
        left_out += len(stored.keys() - {then for _, then in matched})
        for number, then in matched:
            keys: dict[tuple[int, int], set[bytes]] = defaultdict(set)
            for one in stored[then]:
                keys[one.idx, one.sample].add(one.key)
            wanted = {(idx, sample) for idx, _ in keys for sample in range(task.config.repeats or 1)}
            # Ranks that were asked with another prompt at another time have other keys: nobody knows which one is meant.
            its = {place: run.samples.get(min(keys[place])) for place in wanted if len(keys[place]) == 1}
            if len(its) < len(wanted) or None in its.values():
                left_out += 1
                continue
            now = digest_of(current[number])
            documents.setdefault(name, []).append(number)
            before[name, now] = then, stored[then][0].doc_id
            answers |= {(name, now, *place): found for place, found in its.items() if found is not None}
    missing = loaded.keys() - documents.keys()
    if not documents or (tasks and missing):
        raise ArgumentError(
            f"no document of {', '.join(sorted(missing))} has all its responses here; the run asked for {', '.join(run.tasks)}"
        )
    model, given = StoredResponses(run, answers), Verdicts()
    with redirect_verdicts(given):
        results = simple_evaluate(
            model=model,
            tasks=list(tasks) or list(documents),
            samples=documents,
            task_manager=manager,
            log_samples=True,
        )
    results["config"]["model"] = "guided-takeover"
    results["config"]["model_args"] = run.facts.get("arguments") or {}
    changes, compared = [], 0
    for (task, now, _, number), sample in answers.items():
        then, doc_id = before[task, now]
        response = digest_of_text(sample.text)
        old, new = verdicts.get((then, response)), given.given.get((now, response))
        if old is None or new is None:
            continue
        compared += 1
        if old[1] != new[1]:
            changes.append(Change(task, doc_id, number, old, new))
    return Rescored(results, changes, compared, left_out)


def _matched(stored: Mapping[str, list[Asked]], documents: Sequence[Any]) -> list[tuple[int, str]]:
    """(number of a document, what the run knew it as): equal documents, and for the rest those of equal numbers."""
    digests = [digest_of(document) for document in documents]
    found = {number: digest for number, digest in enumerate(digests) if digest in stored}
    for doc in stored.keys() - found.values():
        number = stored[doc][0].doc_id
        if number < len(documents) and number not in found:
            found[number] = doc
    return sorted(found.items())


def _task_manager(names: Iterable[str], include: Path | None) -> TaskManager:
    """One that knows these tasks: only this package's and those of `include`, where that is enough, which saves seconds."""
    paths = [str(data_folder("task_configs")), *([str(include)] if include else [])]
    small = TaskManager(include_path=paths, include_defaults=False)
    if all(name in small.all_tasks for name in names):
        return small
    return TaskManager(include_path=None if include is None else str(include))


def _of_task(run: StoredRun, name: str) -> dict[str, list[Asked]]:
    found: dict[str, list[Asked]] = defaultdict(list)
    for one in run.asked:
        if one.task == name:
            found[one.doc].append(one)
    return dict(found)


def write_results(results: dict[str, Any], folder: Path) -> Path:
    """As lm-eval writes them: results and samples. Returns the folder that they are in. Raises ArgumentError where it cannot."""
    tracker = EvaluationTracker(output_path=str(folder))
    tracker.general_config_tracker.log_experiment_args("guided-takeover", "model=guided-takeover", None, None, False)
    samples = results.pop("samples", {})
    where = folder / str(tracker.general_config_tracker.model_name_sanitized)
    before = set(where.glob("*.json*"))
    tracker.save_results_aggregated(results=results, samples=samples)
    for name in results["configs"]:
        tracker.save_results_samples(task_name=name, samples=samples[name])
    if len(set(where.glob("*.json*")) - before) < 1 + len(results["configs"]):  # lm-eval only logs what it cannot write
        raise ArgumentError(f"--output_path '{folder}': results cannot be written there; give another one")
    return where
