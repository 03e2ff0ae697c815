"""Stored responses through lm-eval's own evaluation: results as of today, and the verdicts that changed."""

import argparse
import contextlib
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker
from lm_eval.utils import make_table

from lm_eval_takeover.answers.samples import Verifier
from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.commands._output import Table, write_terminal, writing
from lm_eval_takeover.errors import ArgumentError, RunDirError
from lm_eval_takeover.escaping import for_terminal
from lm_eval_takeover.runs.identity import describe_identity, summarize_samples
from lm_eval_takeover.runs.journal import AskedSample, Sample, read_prompt
from lm_eval_takeover.runs.layout import find_run_dir
from lm_eval_takeover.runs.run_reader import RunReader, read_stored_runs
from lm_eval_takeover.runs.run_writer import hold_journals
from lm_eval_takeover.samples import Verdict
from lm_eval_takeover.storage.digests import digest_of, digest_of_text
from lm_eval_takeover.storage.files import join_inside, make_component, write_text
from lm_eval_takeover.tasks.benchmarks import Record
from lm_eval_takeover.tasks.context import RunContext
from lm_eval_takeover.tasks.instances import is_greedy
from lm_eval_takeover.tasks.sampled import find_tasks

Change = tuple[str, int, int, str, str, str, str]  # task, document, sample, both outcomes, both answers
Place = tuple[str, int, int, int]  # task, number of the document in the task as it is now, request of the document, repeat


@dataclass(frozen=True, slots=True)
class Rescored:
    """lm-eval's results, the verdicts by documents as the run knows them, and those that changed."""

    results: dict[str, Any]
    verdicts: list[Verdict]
    changes: list[Change]
    compared: int
    left_out: int


@dataclass(slots=True)
class _Matched:
    """The stored samples by where a task asks for them, and the documents of each task that have all of theirs."""

    answers: dict[Place, AskedSample] = field(default_factory=dict)
    documents: dict[str, list[int]] = field(default_factory=dict)  # by task: numbers in the task as it is now
    left_out: int = 0


def rescore_all(options: argparse.Namespace) -> int:
    """Judge all commands of a run_dir. Returns the exit status. Raises ArgumentError, RunDirError."""
    run_dir = find_run_dir(options.run_dir)
    runs = read_stored_runs(run_dir)
    out = options.output_path or run_dir / ("rescored" if options.verifier == "takeover" else options.verifier)
    keeps = options.output_path is None and options.verifier == "takeover"  # what the run says of itself from now on
    with contextlib.ExitStack() as held:
        journals = held.enter_context(hold_journals(run_dir)) if keeps else []
        verdicts = _rescore_runs(options, runs, out)
        for journal in journals:  # of each rank, which may have judged a text
            journal.add_verdicts(verdicts)
    return 0


def _rescore_runs(options: argparse.Namespace, runs: Sequence[RunReader], out: Path) -> list[Verdict]:
    """Judge each command, and write and print what came out. Returns the verdicts. Raises ArgumentError."""
    rescored, refusals = [], []
    for stored in runs:
        if not stored.is_finished:
            finished = f"{len(stored.samples):,} of {len({row.key for row in stored.asked}):,} samples are finished"
            print(f"{finished}; documents that lack some of theirs are left out", flush=True)
        try:
            rescored.append((stored, rescore(stored, options.tasks, options.include_path, options.verifier)))
        except ArgumentError as error:  # a command that was stopped early, or was about other tasks
            refusals.append(error)
    if not rescored:
        raise refusals[-1]
    for number, (stored, outcome) in enumerate(rescored, 1):
        if len(runs) > 1:
            words = ",".join(f"{name}={value}" for name, value in read_given_arguments(stored).items())
            print(for_terminal(f"command {number}: {', '.join(stored.tasks)}; {words or 'no model arguments'}"))
        _print_outcome(outcome, out if len(rescored) == 1 else out / str(number))
    for refusal in refusals:
        print(for_terminal(f"not scored: {refusal}"))
    return [verdict for _, outcome in rescored for verdict in outcome.verdicts]


def _print_outcome(outcome: Rescored, out: Path) -> None:
    print(make_table(outcome.results))
    if outcome.results.get("groups"):
        print(make_table(outcome.results, "groups"))
    folder = write_results(outcome.results, out)
    if outcome.left_out:
        reason = "not all their responses are here, or the tasks have them no more"
        print(f"{outcome.left_out} documents left out: {reason}")
    verifier = outcome.results["config"]["takeover"]["verifier"]
    now = "now" if verifier == "takeover" else verifier
    if outcome.changes:
        titles = ["Task", "Doc", "Sample", "Verdict then", f"Verdict {now}", "Answer then", f"Answer {now}"]
        print(write_terminal(Table(titles, [list(map(str, change)) for change in outcome.changes])))
    words = "changed" if verifier == "takeover" else f"of the run differ from those of {verifier}"
    print(f"{len(outcome.changes)} of {outcome.compared:,} verdicts {words}; results and samples -> {folder}")


class StoredResponses(LM):  # type: ignore[misc]
    """A model that writes nothing: its answers are those of a run, found by document."""

    def __init__(self, run: RunReader, matched: _Matched, context: RunContext) -> None:
        super().__init__()
        self.run, self.matched, self.context = run, matched, context
        self.samples: defaultdict[str, list[Sample]] = defaultdict(list)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        repeats: Counter[int] = Counter()
        texts: list[str] = []
        for instance in requests:
            number = repeats[id(instance)]
            repeats[id(instance)] += 1
            task = instance.task_name or "none"
            document = self.matched.documents[task][instance.doc_id]  # lm-eval counts those that it was told to take
            sample = self.run.samples[self.matched.answers[task, document, instance.idx, number].key]
            if number == sample.sample:  # one text of a greedy run stands for all samples of its document
                self.samples[task].append(sample)
            texts.append(sample.respond(self.context))
        return texts

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        raise RunDirError("a journal holds generated texts, not log-likelihoods; leave those tasks out of --tasks")

    loglikelihood_rolling = loglikelihood

    def get_model_info(self) -> dict[str, Any]:
        times: dict[str, Any] = {"attempts": self.run.attempts, "seconds": self.run.seconds, "rescored": True}
        times["run_dir"] = str(self.run.folder.absolute())
        counts = summarize_samples(self.samples)
        for task, of_task in counts["per_task"].items():
            of_task["identity"] = self.run.identify(task)
        return {"takeover": self.run.takeover | describe_identity(self.run.settings) | counts | times}


def rescore(run: RunReader, tasks: Sequence[str], include: Path | None, verifier: Verifier = "takeover") -> Rescored:
    """Score the responses of a run with the tasks of these names (its own by default) as they are installed, or in `include`.

    Documents are matched by their content; where that has changed (a corrected gold answer), by their number. Those without all
    their responses are left out. Raises ArgumentError for tasks that are not known, or that the run has nothing of.
    """
    end = read_given_arguments(run).get("think_end_token", "")
    if isinstance(end, int):
        raise ArgumentError(f"think_end_token of the run is the token {end}, whose text is not known here; name it by its text")
    names = list(tasks) or run.tasks
    is_withheld = any(prompt["prompt"] is None for prompt in map(read_prompt, run.prompts.values()))
    withheld = {"withhold_questions": True} if is_withheld else None
    manager = find_tasks(names, include, of_run=run.tasks, metadata=withheld)
    loaded = manager.load(names)["tasks"]
    matched = _match_responses(run, loaded)
    missing = loaded.keys() - matched.documents.keys()
    if not matched.documents or (tasks and missing):
        lacking, given_tasks = ", ".join(sorted(missing)), ", ".join(run.tasks)
        raise ArgumentError(f"no document of {lacking} has all its responses here; the run asked for {given_tasks}")
    results = simple_evaluate(
        model=StoredResponses(run, matched, RunContext(verifier=verifier, think_end=end)),
        tasks=list(tasks) or list(matched.documents),
        samples=matched.documents,
        task_manager=manager,
        log_samples=True,
    )
    results["config"].setdefault("takeover", {})["verifier"] = verifier
    results["config"] |= {"model": "guided-takeover", "model_args": read_given_arguments(run)}
    return Rescored(results, *_compare_verdicts(run, matched, results["samples"]), matched.left_out)


def read_given_arguments(run: RunReader) -> dict[str, Any]:
    arguments, defaults = dict(run.arguments), asdict(ModelArguments())
    for collected in ("policy_arguments", "engine_arguments"):
        arguments |= arguments.pop(collected, None) or {}
    return {name: value for name, value in arguments.items() if value != defaults.get(name)}


def _match_responses(run: RunReader, tasks: Mapping[str, Any]) -> _Matched:
    matched = _Matched()
    for name, task in tasks.items():
        by_document: defaultdict[str, list[AskedSample]] = defaultdict(list)
        for row in run.asked:
            if row.task == name:
                by_document[row.doc].append(row)
        numbers = _match_documents(by_document, list(task.eval_docs))
        matched.left_out += len(by_document.keys() - {then for _, then in numbers})
        for number, then in numbers:
            answers = _find_answers(run, by_document[then], task.config.repeats or 1)
            if answers is None:
                matched.left_out += 1
                continue
            matched.documents.setdefault(name, []).append(number)
            matched.answers |= {(name, number, *place): row for place, row in answers.items()}
    return matched


def _find_answers(run: RunReader, rows: Sequence[AskedSample], repeats: int) -> dict[tuple[int, int], AskedSample] | None:
    """The samples of a document by (request, repeat); None where one is missing or ambiguous."""
    keys: dict[tuple[int, int], dict[bytes, AskedSample]] = defaultdict(dict)
    for row in rows:
        keys[row.idx, row.sample].setdefault(row.key, row)
    greedy = any(is_greedy(settings) for name, settings in run.facts.get("tasks") or [] if name == rows[0].task)
    once = greedy and {repeat for _, repeat in keys} == {0}
    answers: dict[tuple[int, int], AskedSample] = {}
    for place in {(idx, repeat) for idx, _ in keys for repeat in range(repeats)}:
        # Ranks that were asked with another prompt at another time have other keys.
        known = keys[place[0], 0 if once else place[1]]
        if len(known) != 1 or not known.keys() <= run.samples.keys():
            return None
        (answers[place],) = known.values()
    return answers


def _match_documents(stored: Mapping[str, list[AskedSample]], documents: Sequence[Any]) -> list[tuple[int, str]]:
    """(number of a document, what the run knew it as): equal documents, and for the rest those of equal numbers."""
    digests = [digest_of(document) for document in documents]
    matched = {number: digest for number, digest in enumerate(digests) if digest in stored}
    for doc in stored.keys() - matched.values():
        number = stored[doc][0].doc_id
        if number < len(documents) and number not in matched:
            matched[number] = doc
    return sorted(matched.items())


def _compare_verdicts(run: RunReader, matched: _Matched, samples: Mapping[str, Any]) -> tuple[list[Verdict], list[Change], int]:
    """`(verdicts, changes, how many the run has, too)`; `samples` are those of lm-eval's results."""
    after = {
        (task, row["doc_id"], repeat): verdict
        for task, rows in samples.items()
        for row in rows
        if isinstance(record := row["filtered_resps"][0], Record)
        for repeat, verdict in enumerate(record)
    }
    verdicts, changes, compared = [], [], 0
    for (task, number, _, repeat), row in matched.answers.items():
        if (task, number, repeat) not in after:
            continue
        new, is_now = after[task, number, repeat]
        verdicts.append(Verdict(row.doc, digest_of_text(run.samples[row.key].text), new, is_now))
        if (before := run.verdicts.get(verdicts[-1][:2])) is not None:
            compared += 1
            old, was = before
            if was != is_now:
                changes.append((task, row.doc_id, repeat, was, is_now, old or "", new or ""))
    return verdicts, changes, compared


def write_results(results: dict[str, Any], folder: Path) -> Path:
    """Write results and samples as lm-eval does, each file whole. Returns their folder, named by label. Raises ArgumentError."""
    samples = results.pop("samples", {})
    label = (results["config"].get("takeover") or {}).get("label")
    with writing("output_path", folder), tempfile.TemporaryDirectory() as unfinished:
        tracker = EvaluationTracker(output_path=unfinished)
        names = tracker.general_config_tracker
        names.log_experiment_args("guided-takeover", "model=guided-takeover", None, None, False)
        if label:
            names.model_name, names.model_name_sanitized = label, make_component(label)
        place = join_inside(folder, str(names.model_name_sanitized))
        tracker.save_results_aggregated(results=results, samples=samples)
        for name in results["configs"]:
            tracker.save_results_samples(task_name=name, samples=samples[name])
        files = [path for path in Path(unfinished).rglob("*") if path.is_file()]
        if len(files) != 1 + len(results["configs"]):  # it logs an error and goes on
            raise OSError("lm-eval could not write them")
        for file in files:
            write_text(place / file.name, file.read_text(encoding="utf-8"))
    return place
