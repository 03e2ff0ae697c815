"""A run_dir as one run, for commands that read it: its requests, their texts, and the verdicts on them.

The run is that of the latest finished command; the tasks of other commands with its settings count, too. Of a task that several
commands asked for, the latest finished one counts whole. A row of `compare` is what its ROW/row.json says (`identity.read_row`).
A text that two tasks share is stored once, under the first; here each task has it.
"""

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lm_eval_takeover.arguments import TWINS
from lm_eval_takeover.errors import ArgumentError, RunDirError
from lm_eval_takeover.runs.evidence import Columns, ScoresHeader, unpack_scores, unpack_trace
from lm_eval_takeover.runs.identity import check_facts, describe_member, identify_task, read_row
from lm_eval_takeover.runs.journal import AskedSample, Damaged, EvidenceKind, Journal, Prompt, Sample, read_prompt
from lm_eval_takeover.runs.layout import ROW, SAMPLES, find_run_dir, find_run_dirs, list_journals
from lm_eval_takeover.runs.parquet import Name
from lm_eval_takeover.samples import name_document
from lm_eval_takeover.storage.digests import digest_of_text

if TYPE_CHECKING:  # with torch
    from lm_eval_takeover.arguments import ModelArguments
    from lm_eval_takeover.pair.pair import Pair

T = TypeVar("T")
# By digests of the document and of the response the extracted answer, and the outcome.
Verdicts = dict[tuple[str, bytes], tuple[str | None, str]]


@dataclass(frozen=True, slots=True)
class Answered:
    """A sample that the run asked for, and the text that answers it; `outcome` is None where it was not verified."""

    task: str
    doc_id: int
    sample: int
    prompt: str  # its digest
    stored: Sample
    answer: str | None
    outcome: str | None
    doc: str  # the document's name by its content (`samples.name_document`)
    problem: int  # the first document of the same prompt, whose texts it shares; mostly its own number

    @property
    def name(self) -> Name:
        return self.task, self.doc_id, self.sample

    @property
    def correct(self) -> bool:
        return self.outcome == "correct"


@dataclass(eq=False)
class RunReader:
    """What a command asked for, and the samples that answer it; or a run, which may be of several commands."""

    folder: Path
    facts: dict[str, Any] = field(default_factory=dict)  # of its latest attempt (`identity.collect_facts`)
    asked: list[AskedSample] = field(default_factory=list)
    samples: dict[bytes, Sample] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)  # contents by digest, for `read_prompt`
    verdicts: Verdicts = field(default_factory=dict)
    attempts: int = 0
    seconds: float | None = 0.0  # of all its commands and attempts; None where that is not known

    @cached_property
    def answered(self) -> list[Answered]:
        """The samples that have a text, in order, with the verdicts on them."""
        names, firsts, answered = dict[tuple[str, int], str](), dict[tuple[str, bytes], int](), list[Answered]()
        copies = {task: Counter[str]() for task in self.tasks}
        for row in sorted(self.asked, key=lambda row: (row.task, row.doc_id, row.sample)):
            if (row.task, row.doc_id) not in names:
                names[row.task, row.doc_id] = name_document(row.doc, copies[row.task])
            if (stored := self.samples.get(row.key)) is not None:
                answer, outcome = self.verdicts.get((row.doc, digest_of_text(stored.text)), (None, None))
                document = names[row.task, row.doc_id], firsts.setdefault((row.task, row.key), row.doc_id)
                answered.append(Answered(row.task, row.doc_id, row.sample, row.prompt, stored, answer, outcome, *document))
        return answered

    @property
    def tasks(self) -> list[str]:
        return sorted({row.task for row in self.asked})

    @property
    def takeover(self) -> dict[str, Any]:
        """What it says of itself (`identity.describe_run`). None where tasks differ, as the rate of `random` in `compare`."""
        return self.facts.get("takeover") or {}

    @property
    def arguments(self) -> dict[str, Any]:
        return self.facts.get("arguments") or {}

    @property
    def settings(self) -> dict[str, Any]:
        return self.facts.get("settings") or {}

    @property
    def decoding(self) -> dict[str, dict[str, Any]]:
        """Generation settings of tasks that have one set."""
        given: list[tuple[str, dict[str, Any]]] = self.facts.get("tasks") or []
        return {task: own for task, own in given if all(own == other for name, other in given if name == task)}

    @property
    def is_finished(self) -> bool:
        return all(row.key in self.samples for row in self.asked)

    def identify(self, task: str) -> str:
        return identify_task(row for row in self.asked if row.task == task)

    @property
    def label(self) -> str:
        """`model=` where it was given, else the folder's name; of ROW/samples, where `compare` keeps a row, ROW."""
        folder = self.folder.absolute()
        return str(self.arguments.get("model") or (folder.parent if folder.name == SAMPLES else folder).name)

    @property
    def policy(self) -> str:
        return str(self.takeover.get("policy"))

    @property
    def host(self) -> str:
        return "guide" if self.takeover.get("direction") == "reverse" else "base"

    @property
    def donor(self) -> str:
        return "base" if self.host == "guide" else "guide"

    @property
    def written_by(self) -> str | None:
        """The model that wrote alone, None where both could."""
        return self.policy if self.policy in ("base", "guide") else None

    @property
    def tokenizer_source(self) -> tuple[str, str | None, str]:
        """Where the tokenizer that the run wrote with is: its folder or id, revision and sub-folder."""
        from lm_eval_takeover.demo import DEMO
        from lm_eval_takeover.pair.ids import locate

        role = "guide" if self.arguments.get("guide") else "base"
        path, named = locate(str(self.arguments.get(role) or DEMO["guide"]))
        names = ("revision", "subfolder")
        revision, subfolder = (self.arguments.get(name if role == "base" else TWINS[name]) for name in names)
        return path, named or revision, subfolder or ""

    def load_tokenizer(self, given: str | None = None) -> Any:
        """The tokenizer that the run wrote with, or the given one. Raises ArgumentError if it cannot be loaded."""
        from lm_eval_takeover.pair.ids import find_folder, locate
        from lm_eval_takeover.pair.vocabulary import is_byte_level

        path, revision, subfolder = (*locate(given), "") if given else self.tokenizer_source
        try:
            if is_byte_level(find_folder(path, revision, subfolder, "tokenizer.json")):  # its own class takes seconds to load
                from transformers import PreTrainedTokenizerFast as Tokenizer
            else:
                from transformers import AutoTokenizer as Tokenizer
            return Tokenizer.from_pretrained(path, revision=revision, subfolder=subfolder, trust_remote_code=False)
        except Exception as error:  # each loader has errors of its own
            raise ArgumentError(f"the tokenizer of '{path}' cannot be loaded; name one by --tokenizer") from error

    def check_finished(self) -> None:
        """Raises RunDirError for a run that still lacks samples."""
        if len(self.answered) < len(self.asked) or not self.asked:
            counts = f"{len(self.answered)} of {len(self.asked)} samples are finished"
            raise RunDirError(f"run_dir='{self.folder}': {counts}; wait for it, or run the same command again")

    def check_models(self, arguments: "ModelArguments", pair: "Pair", *, allowed: bool) -> None:
        """Raises ArgumentError where models that the run wrote with, and that no others replace, are not as they were."""
        for role, stored in (self.settings.get("models") or {}).items():
            if allowed or getattr(arguments, role) != self.arguments.get(role):
                continue
            member = pair.member(role)
            if (now := describe_member(member, False)["model"]) != (then := str(stored.get("model"))):
                raise ArgumentError(
                    f"{role}='{member.path}' is not what the run in '{self.folder}' wrote with: its files are {now[:20]}…, and "
                    f"were {then[:20]}…; put back the weights that it had, or give --allow weights"
                )

    def find_prompt(self, sample: Answered) -> Prompt:
        """The prompt of a sample. Raises RunDirError where there is none."""
        if sample.prompt not in self.prompts:
            raise RunDirError(
                f"the prompt of task {sample.task}, doc {sample.doc_id} is not in '{self.folder}'; give the run's command "
                f"again, which adds it and generates only what is missing"
            )
        with _reading_journal(self.folder):
            return read_prompt(self.prompts[sample.prompt])

    def stored_samples(self) -> list[Answered]:
        """One for each text, whichever tasks share it."""
        return list({sample.stored.key: sample for sample in self.answered}.values())

    def read_traces(
        self, columns: Sequence[str], samples: Sequence[Answered] | None = None
    ) -> Iterator[tuple[Answered, Columns]]:
        """These columns of the trace of each text. Raises RunDirError where one is damaged or missing."""
        left = {one.stored.key: one for one in (self.stored_samples() if samples is None else samples)}
        tokens = {key: one.stored.tokens for key, one in left.items()}
        unpacked = _read_evidence(self.folder, "trace", tokens, lambda trace, count: unpack_trace(trace, count, columns))
        for key, found in unpacked:
            yield left.pop(key), found
        for one in left.values():
            name = f"task {one.task}, doc {one.doc_id}, sample {one.sample}"
            raise RunDirError(f"run_dir='{self.folder}': the trace of {name} is missing; the run's own command repairs it")

    def read_scores(self, columns: Sequence[str], samples: Iterable[Answered]) -> Iterator[tuple[bytes, ScoresHeader, Columns]]:
        """By key these columns of the texts that are scored. Raises RunDirError where one is damaged."""
        tokens = {one.stored.key: one.stored.tokens for one in samples}
        unpacked = _read_evidence(self.folder, "score", tokens, lambda content, count: unpack_scores(content, count, columns))
        return ((key, *found) for key, found in unpacked)


def _read_evidence(
    folder: Path, kind: EvidenceKind, tokens: Mapping[bytes, int], unpack: Callable[[bytes, int], T]
) -> Iterator[tuple[bytes, T]]:
    """What the journals hold of texts with these numbers of tokens. Raises RunDirError where it is damaged."""
    left, repair = set(tokens), "`lm-eval-takeover score`" if kind == "score" else "the run's own command"
    for path in list_journals(folder) if left else []:
        with _reading_journal(path, repair), contextlib.closing(Journal(path, read_only=True, check=False)) as journal:
            for key, content in journal.read_evidence(kind, sorted(left)):
                left.discard(key)
                yield key, unpack(content, tokens[key])


@contextlib.contextmanager
def _reading_journal(path: Path, repair: str = "the run's own command") -> Iterator[None]:
    """Turns the errors of a journal that cannot be read into RunDirErrors of one line."""
    try:
        yield
    except (Damaged, sqlite3.Error, OSError) as error:
        raise RunDirError(f"'{path}' cannot be read: {error}; {repair} repairs it") from error


def read_stored_runs(folder: Path) -> list[RunReader]:
    """By command the runs of a run_dir, the latest last. Raises RunDirError."""
    paths = list_journals(folder)
    if not paths:
        raise RunDirError(f"run_dir='{folder}' holds no journal; expected a folder that a run had as run_dir=…")
    runs, verdicts, prompts = dict[str, RunReader](), Verdicts(), dict[str, str]()
    with contextlib.ExitStack() as stack:
        opened = []
        for path in paths:
            with _reading_journal(path):
                opened.append(stack.enter_context(contextlib.closing(Journal(path, read_only=True))))
        for journal in opened:
            verdicts |= journal.verdicts()
            prompts |= journal.prompts()
            for command in journal.commands():
                try:
                    attempts = [(check_facts(facts), seconds) for facts, seconds in journal.attempts(command)]
                except (ValueError, RecursionError) as error:
                    text = f"its facts of a command are damaged: {error}"
                    raise RunDirError(f"'{journal.path}' cannot be read: {text}") from error
                facts, seconds = attempts[-1][0], journal.seconds(command)
                run = RunReader(folder, facts, [], {}, prompts, verdicts, len(attempts), seconds)
                runs.setdefault(command, run).asked += journal.asked(command)
        for run in runs.values():
            run.asked = list(dict.fromkeys(run.asked))  # two ranks may have been asked for one sample, at other times
            keys = list({row.key for row in run.asked})
            for journal in opened:
                run.samples |= journal.find(keys)
    return list(runs.values())


def read_run_folders(paths: Sequence[Path]) -> list[RunReader]:
    """The runs of these run_dirs, rows of `compare` and folders of it, each once. Raises RunDirError."""
    folders = {folder.absolute(): folder for path in paths for folder in find_run_dirs(path)}
    runs = [read_run_folder(folder) for folder in folders.values()]
    number_documents(runs)
    return runs


def number_documents(runs: Sequence[RunReader]) -> None:
    """Give each document one number in all these runs, by which they are joined: its own where another has not taken that."""
    taken, numbers = dict[tuple[str, int], str](), dict[tuple[str, str], int]()
    for run in runs:
        names = {(one.task, one.doc_id): one.doc for one in run.answered}
        for place, one in enumerate(run.answered):
            number = one.doc_id
            if taken.setdefault((one.task, number), one.doc) != one.doc:
                number = numbers.get((one.task, one.doc), max(doc for task, doc in taken if task == one.task) + 1)
                taken[one.task, number] = one.doc
            numbers.setdefault((one.task, one.doc), number)
            problem = numbers[one.task, names[one.task, one.problem]]
            if (number, problem) != (one.doc_id, one.problem):
                run.answered[place] = replace(one, doc_id=number, problem=problem)


def read_run_folder(folder: Path) -> RunReader:
    """The run of a run_dir, or of a row of `compare`. Raises RunDirError where there is none."""
    folder = find_run_dir(folder)
    if not folder.is_dir():
        raise RunDirError(f"run_dir='{folder}' is not a folder; expected one that a run had as run_dir=…")
    runs = [run for run in read_stored_runs(folder) if run.asked]
    if not runs:
        raise RunDirError(f"run_dir='{folder}' holds no samples yet; it is still being written, or was stopped at once")
    runs.sort(key=lambda run: run.is_finished)  # stable: the latest one that is finished, else the latest one, is the last
    row = read_row(folder.absolute().parent) if folder.name == SAMPLES else {}
    by_task = dict[str, RunReader]()
    for run in runs:
        if run.settings == runs[-1].settings or row:
            by_task |= {task: run for task in run.tasks if not row or row.get(task) == run.identify(task)}
    if not by_task:
        raise RunDirError(f"run_dir='{folder}' lacks what '{ROW}' names; give the command of compare again")
    chosen = list(dict.fromkeys(by_task.values()))
    latest, told = chosen[-1], [run.takeover for run in chosen]
    same = {name: value if all(each.get(name) == value for each in told) else None for name, value in latest.takeover.items()}
    given = [pair for task, run in by_task.items() for pair in run.facts.get("tasks") or [] if pair[0] == task]
    return replace(
        latest,
        facts=latest.facts | {"takeover": same, "tasks": given},
        asked=[row for task, run in by_task.items() for row in run.asked if row.task == task],
        samples={key: sample for run in chosen for key, sample in run.samples.items()},
        seconds=None if any(run.seconds is None for run in chosen) else sum(run.seconds or 0.0 for run in chosen),
    )
