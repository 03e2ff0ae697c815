"""Stored responses through lm-eval's own evaluation: results as of today, and the verdicts that changed."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.utils import sanitize_model_name

from lm_eval_takeover.answers.samples import Verifier
from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.commands.rescore.responses import Place, StoredResponses
from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.runs.journal import Asked, Sample
from lm_eval_takeover.runs.stored import Answer, StoredRun
from lm_eval_takeover.storage.digests import digest_of, digest_of_text
from lm_eval_takeover.tasks.loading import make_task_manager
from lm_eval_takeover.tasks.verdicts import LoggedVerdict, get_verifier, redirect_verdicts, use_verifier


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


@dataclass(frozen=True, slots=True)
class Rescored:
    """The outcome for one run: lm-eval's results, and what changed."""

    results: dict[str, Any]
    changes: list[Change]
    compared: int
    left_out: int

    def list_changes(self) -> Iterator[tuple[str, int, int, str, str, str, str]]:
        """A row per change: task, document, sample, both verdicts and both answers, empty where nothing was stated as one."""
        for change in self.changes:
            (old, was), (new, now) = change.before, change.after
            yield change.task, change.doc_id, change.sample, was, now, old or "", new or ""


@dataclass(slots=True)
class MatchedResponses:
    """The stored samples by where a task asks for them, and the documents of each task that have all of theirs."""

    answers: dict[Place, Sample] = field(default_factory=dict)
    documents: dict[str, list[int]] = field(default_factory=dict)  # by task: numbers in the task as it is now
    stored: dict[tuple[str, str], tuple[str, int]] = field(
        default_factory=dict
    )  # (task, digest now): digest then, number
    left_out: int = 0


def rescore(
    run: StoredRun,
    verdicts: Mapping[tuple[str, bytes], Answer],
    tasks: Sequence[str],
    include: Path | None,
    verifier: Verifier = "takeover",
) -> Rescored:
    """Score the responses of a run with the tasks of these names (its own by default) as they are installed, or in `include`.

    Documents are matched by their content; where that has changed (a corrected gold answer), by their number. Those without all
    their responses are left out. Raises ArgumentError for tasks that are not known, or that the run has nothing of.
    """
    names = list(tasks) or run.tasks
    manager = make_task_manager(names, include)
    for name in names:
        if name not in manager.all_tasks:
            raise ArgumentError(f"task '{name}' is not known; {nearest(name, run.tasks)}, or give --include_path")
    with use_verifier(verifier):
        return _rescore(run, verdicts, tasks, names, manager)


def _rescore(
    run: StoredRun,
    verdicts: Mapping[tuple[str, bytes], Answer],
    tasks: Sequence[str],
    names: Sequence[str],
    manager: Any,
) -> Rescored:
    loaded = manager.load(list(names))["tasks"]
    matched = _match_responses(run, loaded)
    missing = loaded.keys() - matched.documents.keys()
    if not matched.documents or (tasks and missing):
        raise ArgumentError(
            f"no document of {', '.join(sorted(missing))} has all its responses here; the run asked for {', '.join(run.tasks)}"
        )
    now = Verdicts()
    # Nothing is generated, so no commit of the working folder has a part in it; git would complain outside a repository.
    with redirect_verdicts(now), mock.patch("lm_eval.evaluator.get_git_commit_hash", return_value=None):
        results = simple_evaluate(
            model=StoredResponses(run, matched.answers),
            tasks=list(tasks) or list(matched.documents),
            samples=matched.documents,
            task_manager=manager,
            log_samples=True,
        )
    results["config"]["model"] = "guided-takeover"
    results["config"].setdefault("takeover", {})["verifier"] = get_verifier()
    results["config"]["model_args"] = read_given_arguments(run)
    changes, compared = _compare_verdicts(matched, verdicts, now.given)
    return Rescored(results, changes, compared, matched.left_out)


def read_given_arguments(run: StoredRun) -> dict[str, Any]:
    """The model arguments of a run that are not the defaults."""
    given, defaults = dict(run.facts.get("arguments") or {}), asdict(ModelArguments())
    for collected in ("policy_arguments", "engine_arguments"):
        given |= given.pop(collected, None) or {}
    return {name: value for name, value in given.items() if value != defaults.get(name)}


def _match_responses(run: StoredRun, tasks: Mapping[str, Any]) -> MatchedResponses:
    matched = MatchedResponses()
    for name, task in tasks.items():
        asked = _asked_by_document(run, name)
        current = list(task.eval_docs)
        numbers = _match_documents(asked, current)
        matched.left_out += len(asked.keys() - {then for _, then in numbers})
        for number, then in numbers:
            samples = _samples_of(run, asked[then], task.config.repeats or 1)
            if samples is None:
                matched.left_out += 1
                continue
            now = digest_of(current[number])
            matched.documents.setdefault(name, []).append(number)
            matched.stored[name, now] = then, asked[then][0].doc_id
            matched.answers |= {(name, now, *place): sample for place, sample in samples.items()}
    return matched


def _samples_of(run: StoredRun, asked: Sequence[Asked], repeats: int) -> dict[tuple[int, int], Sample] | None:
    """The samples of a document by (request, repeat); None where one is missing or nobody knows which one is meant."""
    keys: dict[tuple[int, int], set[bytes]] = defaultdict(set)
    for row in asked:
        keys[row.idx, row.sample].add(row.key)
    once = run.is_greedy(asked[0].task) and {repeat for _, repeat in keys} == {0}
    samples: dict[tuple[int, int], Sample] = {}
    for place in {(idx, repeat) for idx, _ in keys for repeat in range(repeats)}:
        # Ranks that were asked with another prompt at another time have other keys.
        answers = keys[place[0], 0 if once else place[1]]
        sample = run.samples.get(min(answers)) if len(answers) == 1 else None
        if sample is None:
            return None
        samples[place] = sample
    return samples


def _match_documents(stored: Mapping[str, list[Asked]], documents: Sequence[Any]) -> list[tuple[int, str]]:
    """(number of a document, what the run knew it as): equal documents, and for the rest those of equal numbers."""
    digests = [digest_of(document) for document in documents]
    matched = {number: digest for number, digest in enumerate(digests) if digest in stored}
    for doc in stored.keys() - matched.values():
        number = stored[doc][0].doc_id
        if number < len(documents) and number not in matched:
            matched[number] = doc
    return sorted(matched.items())


def _asked_by_document(run: StoredRun, task: str) -> dict[str, list[Asked]]:
    rows: dict[str, list[Asked]] = defaultdict(list)
    for row in run.asked:
        if row.task == task:
            rows[row.doc].append(row)
    return dict(rows)


def _compare_verdicts(
    matched: MatchedResponses,
    before: Mapping[tuple[str, bytes], Answer],
    after: Mapping[tuple[str, bytes], Answer],
) -> tuple[list[Change], int]:
    """`(verdicts that changed, verdicts that both give)`; both by (digest of the document, digest of the response)."""
    changes, compared = [], 0
    for (task, now, _, repeat), sample in matched.answers.items():
        then, doc_id = matched.stored[task, now]
        response = digest_of_text(sample.text)
        old, new = before.get((then, response)), after.get((now, response))
        if old is None or new is None:
            continue
        compared += 1
        if old[1] != new[1]:
            changes.append(Change(task, doc_id, repeat, old, new))
    return changes, compared


def write_results(results: dict[str, Any], folder: Path) -> Path:
    """As lm-eval writes them: results and samples. Returns the folder that they are in. Raises ArgumentError where it cannot."""
    tracker = EvaluationTracker(output_path=str(folder))
    tracker.general_config_tracker.log_experiment_args("guided-takeover", "model=guided-takeover", None, None, False)
    samples = results.pop("samples", {})
    if label := (results["config"].get("takeover") or {}).get("label"):
        tracker.general_config_tracker.model_name = label
        tracker.general_config_tracker.model_name_sanitized = sanitize_model_name(label)
    where = folder / str(tracker.general_config_tracker.model_name_sanitized)
    before = set(where.glob("*.json*"))
    tracker.save_results_aggregated(results=results, samples=samples)
    for name in results["configs"]:
        tracker.save_results_samples(task_name=name, samples=samples[name])
    if len(set(where.glob("*.json*")) - before) < 1 + len(results["configs"]):  # lm-eval only logs what it cannot write
        raise ArgumentError(f"--output_path '{folder}': results cannot be written there; give another one")
    return where
