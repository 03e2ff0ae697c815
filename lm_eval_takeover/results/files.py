"""Runs of lm-eval, of any model and task, read from what `--output_path` wrote."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from os.path import realpath
from pathlib import Path
from typing import Any, Self

from lm_eval_takeover.errors import ResultsError
from lm_eval_takeover.results.documents import (
    Fields,
    Settings,
    find_differences,
    model_settings,
    name_model,
    read_document,
    task_settings,
)
from lm_eval_takeover.results.problems import (
    ACC,
    NO_METRICS,
    NO_PROBLEMS,
    WRITER,
    NotCorrect,
    Problems,
    ReadOptions,
    choose_accuracy,
    is_share,
    list_metrics,
    read_problems,
    read_samples,
)
from lm_eval_takeover.runs.identity import COUNTS, add_up, find_row, make_label
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.schema import Positive, Share, show

PREFIX = "takeover_"
PAIRS = ("guided", "random", "early")  # kinds of runs whose texts two models wrote
MATHEMATICAL = (  # the tasks that averages are over
    "takeover_math500", "takeover_math500_100", "takeover_gsm8k", "takeover_gsm8k_100", "takeover_amc23",
    "takeover_olympiadbench", "takeover_olympiadbench_100", "takeover_aime24", "takeover_aime25",
    "takeover_aime26", "takeover_hmmt_feb26", "takeover_hmmt_nov25", "takeover_brumo25", "takeover_apex25",
    "takeover_aime24_32", "takeover_aime25_32", "takeover_aime26_32", "takeover_aime24_sparse", "takeover_aime25_sparse",
)  # fmt: skip
_OWN_KINDS = ("base", "guide", "random", "early")  # policies that are a kind of row; others are `guided`
_LONGEST_NAME = 200  # bytes of a task's name, which is a part of the names of files
_TOLERANCE = 1e-6  # between a mean in the results and that of the samples


@dataclass(frozen=True)
class Counts:
    """Sums over the samples of a task or a run, as its results report them. None for models that count nothing."""

    tokens: int | None = None
    takeovers: int | None = None  # for a policy that mixes: changed tokens
    changed: int | None = None  # not what the host draws there with the same numbers
    asked: int | None = None  # the donor's distribution is needed to decide or to write
    base_passes: int | None = None  # forward passes of one row, prefill apart
    guide_passes: int | None = None
    realized_rate: float | None = None
    truncated: float | None = None  # the share of samples that their token limit ended

    @classmethod
    def read(cls, reported: Fields) -> Self:
        """Read a task's entry in `config.takeover.per_task`. Raises ResultsError."""
        shares = (reported.require(name, Share, None) for name in ("realized_rate", "truncated"))
        return cls(*(reported.require(name, int, None) for name in COUNTS), *shares)

    @classmethod
    def add(cls, parts: Sequence[Self]) -> Self:
        """Add up several. A sum is None if one of them lacks it. The share of cut samples is left out."""
        sums = add_up(parts, COUNTS)
        tokens, takeovers = sums["tokens"], sums["takeovers"]
        return cls(**sums, realized_rate=takeovers / tokens if tokens and takeovers is not None else None)


@dataclass(frozen=True)
class TaskResult:
    """One task of a run: lm-eval's `means` by metric."""

    task: str
    means: dict[str, float]
    count: int  # problems
    samples: int | None  # of each problem
    settings: Settings
    problems: Problems
    counts: Counts
    run_dir: str | None = None
    identity: str | None = None  # of what was asked (`runs.identity`); None for other models
    no_costs: str = ""  # why what its problems cost is not known (`stored.add_costs`)

    @classmethod
    def of(cls, task: str, problems: Problems, settings: Settings, counts: Counts = Counts(), **more: Any) -> Self:
        return cls(task, problems.means(), len(problems), problems.samples, settings, problems, counts, **more)

    @property
    def accuracy(self) -> str:
        """The task's own name for `acc`."""
        return str(self.settings.get("metric", ACC))

    @property
    def verifier(self) -> str:
        """Who judged the samples: `takeover` or `math_verify`."""
        return str(self.settings.get("verifier") or "takeover")

    @property
    def k(self) -> int | None:
        """The k of the Pass@k that tables show: 8, else the largest one."""
        ks = [int(metric.removeprefix("pass@")) for metric in self.means if metric.startswith("pass@")]
        return 8 if 8 in ks else max(ks, default=None)


@dataclass(frozen=True)
class Run:
    """One model with its settings: a row of a table. `kind` is what guided-takeover says of itself, else `other`."""

    source: Path  # the newest of its results files
    model: str
    kind: str
    settings: Settings  # of the model, without the seed
    takeover: dict[str, Any]  # config.takeover, empty for other models
    versions: dict[str, Any]
    tasks: dict[str, TaskResult]
    seconds: float | None  # of generation, over all attempts; None for models that do not report it
    parameters: dict[str, int] = field(default_factory=dict)  # weights of each model that reads, by role
    notes: list[str] = field(default_factory=list)  # what of its files does not count and why, a line each
    given_label: str | None = None  # by `model=` or by `compare`
    seed: Any = None
    row: str = ""  # runs of one row of a table: the digest of settings, seed and verifiers, or that of the row of `compare`
    name: str = ""  # in a table
    comparison: Path | None = None  # the folder of `compare` that it is a row of, where a table says

    @property
    def label(self) -> str:
        return str(self.takeover.get("label") or self.model)

    @property
    def counts(self) -> Counts:
        return Counts.add([result.counts for result in self.tasks.values()])


def find_results(path: Path) -> list[Path]:
    """The results files below a folder, or the file itself. Raises ResultsError."""
    if path.is_file():
        return [path]
    results, samples = (sorted(path.rglob(name)) for name in ("results_*.json", "samples_*.jsonl"))
    files = results or samples  # a file of samples counts beside no results
    if not files:
        state = "holds no results_*.json" if path.is_dir() else "does not exist"
        raise ResultsError(f"'{path}' {state}; expected the folder of `lm_eval --output_path`, or a results file in it")
    return files


def find_all_results(paths: Iterable[Path]) -> list[Path]:
    """The results files below these paths, each once by its real path, oldest first. Raises ResultsError."""
    return sorted(dict.fromkeys(Path(realpath(file)) for path in paths for file in find_results(path)), key=file_date)


def read_runs(paths: Iterable[Path], reading: ReadOptions = ReadOptions()) -> tuple[list[Run], list[str]]:
    """Read the runs below these paths. Returns them with a line on each thing left out. Raises ResultsError.

    Several results files of one model and settings are one run. Of a task that is in more than one, the one with more problems
    counts (others are parts of it, by `--limit`), else the newest.
    """
    runs: list[Run] = []
    notes, copies, unreadable = list[str](), list[str](), list[str]()
    for file in find_all_results(paths):
        try:
            new = read_run(file, reading)
        except ResultsError as error:
            unreadable.append(str(error))
            continue
        notes += new.notes
        place = next((place for place, run in enumerate(runs) if _is_same(run, new)), None)
        if place is not None:
            runs[place] = _join(runs[place], new, notes, copies)
        elif new.tasks:
            runs.append(new)
    if unreadable:
        raise ResultsError("; ".join(unreadable))
    if len(copies) > 1:
        copies = [f"{copies[0]}; so are {len(copies) - 1:,} more such files"]
    return runs, notes + copies


def _is_same(old: Run, new: Run) -> bool:
    """Whether two files are of one run or one row of `compare`: what both have of a task is the same, or a part of it."""
    if old.row != new.row:
        return False
    pairs = [(result, new.tasks[task]) for task, result in old.tasks.items() if task in new.tasks]
    if _is_judged_again(old, new):
        return all(result.identity == other.identity for result, other in pairs)
    sized = (sorted(pair, key=lambda result: result.count) for pair in pairs)
    return all(_is_part(*pair, by_texts=not old.takeover) for pair in sized)  # ours are told by their identity


def _is_judged_again(old: Run, new: Run) -> bool:
    """Whether the second holds other verdicts of `rescore` on tasks of the first."""
    return bool(new.takeover.get("rescored")) and new.tasks.keys() <= old.tasks.keys()


def _is_part(part: TaskResult, whole: TaskResult, *, by_texts: bool) -> bool:
    """Whether the first has the same problems as the second or a part of them, asked, judged and answered in the same way."""
    if find_differences(part.settings, whole.settings, ["limit"]):
        return False
    if not (part.problems and whole.problems):
        return part.count == whole.count and (part.means == whole.means or not by_texts)
    asked, of_whole = ({*zip(problems.ids, problems.prompts, strict=True)} for problems in (part.problems, whole.problems))
    if by_texts and not {*part.problems.responses} <= {*whole.problems.responses}:
        return False
    return asked < of_whole or (asked == of_whole and part.identity == whole.identity)


def _join(old: Run, new: Run, notes: list[str], copies: list[str]) -> Run:
    """Join the tasks of both. `copies` gets a line on each task left out, `notes` one on each that `rescore` judged again."""
    tasks = old.tasks | new.tasks
    for task in old.tasks.keys() & new.tasks.keys():
        before, now = old.tasks[task], new.tasks[task]
        if before.count <= now.count and _is_judged_again(old, new):
            settings = before.settings | {name: now.settings.get(name) for name in ("task_version", "scorer")}
            tasks[task] = replace(now, settings=settings, counts=before.counts, run_dir=before.run_dir)
            notes.append(f"{task} of {old.label}: the verdicts are those of `rescore` ('{new.source}')")
        else:
            kept, left = (old, new) if before.count > now.count else (new, old)
            tasks[task] = kept.tasks[task]
            too = "has it, too" if before.count == now.count else "has more problems of it"
            copies.append(f"{task} of '{left.source}' is left out: '{kept.source}' {too}")
    counting = [run for run in (old, new) if any(tasks[task] is result for task, result in run.tasks.items())]
    return replace(old if _is_judged_again(old, new) else join_calls(counting), tasks=tasks)


def join_calls(runs: Sequence[Run]) -> Run:
    """One run of several calls, each of tasks of its own; the newest is the last."""
    spent = [run.seconds for run in runs if run.seconds is not None]
    rates = {run.takeover.get("rate") for run in runs}  # each task may have its own
    return replace(
        runs[-1],
        tasks={task: result for run in runs for task, result in run.tasks.items()},
        seconds=sum(spent) if len(spent) == len(runs) else None,
        takeover=runs[-1].takeover | ({"rate": None} if len(rates) > 1 else {}),
    )


def file_date(path: Path) -> str:
    return re.sub(r"^.*_(?=\d{4}-)", "", path.stem)


def read_run(path: Path, reading: ReadOptions = ReadOptions()) -> Run:
    """The run of a results file, or of a file of samples. Raises ResultsError with the field."""
    if path.suffix != ".jsonl":
        return _read_results(path, reading)
    task = re.sub(r"^samples_|_\d{4}-\d\d-\d\dT[\d.:-]*$", "", path.stem)
    results = path.with_name(f"results_{file_date(path)}.json")
    if not results.exists():
        problems, of_task = read_samples(path, reading)
        result = TaskResult.of(task, problems, of_task)
        name, missing = f"{path.parent.name} {file_date(path)}", _list_missing(path, result)
        return Run(path, name, "other", {}, {}, {}, {task: result}, None, {}, missing, row=str(path))
    run = _read_results(results, reading)
    if task not in run.tasks:
        raise ResultsError("; ".join([f"'{path}' is of no task that '{results.name}' has", *run.notes]))
    return replace(run, source=path, tasks={task: run.tasks[task]})


def _list_missing(path: Path, result: TaskResult) -> list[str]:
    """A line on problems without a response, if there are any."""
    missing = result.problems.missing
    total = missing + result.count
    text = f"{result.task} of '{path}': {missing:,} of {total:,} problems have no response, and are in no figure"
    return [text] if missing else []


def _read_results(path: Path, reading: ReadOptions) -> Run:
    document = read_document(path, "`lm_eval … --output_path`")
    if "config" not in document and "results" not in document:
        raise ResultsError(f"'{path}' is no results file of lm_eval; give results_*.json, or the folder of --output_path")
    config = document.inside("config")
    takeover = config.inside_or_empty("takeover")
    for name in ("rate", "target_rate", "spike_ratio"):
        takeover.require(name, float, None)
    results = document.inside("results")
    left_out, tasks = list[str](), dict[str, TaskResult]()
    groups, counted = document.inside_or_empty("group_subtasks"), document.inside_or_empty("n-samples")
    for task in results:
        if task in document.inside_or_empty("groups") or (task in groups and task not in counted):
            continue
        if re.search(r"^\.|[/\\\x00-\x1f]", task) or len(task.encode(errors="replace")) > _LONGEST_NAME:
            named = f"'{path}': field 'results' names a task {task[:_LONGEST_NAME]!r}"
            raise ResultsError(f"{named}; expected a name without '/', of {_LONGEST_NAME} bytes at most")
        try:
            tasks[task] = _read_task(path, document, task, reading)
            left_out += _list_missing(path, tasks[task])
        except NotCorrect as reason:
            left_out.append(f"{task} of '{path}' is left out: {reason}")
    if reading.filter is not None and not tasks and left_out:
        raise ResultsError("; ".join(left_out))
    policy, seconds = takeover.require("policy", str, None), takeover.require("seconds", float, None)
    kind = find_kind(policy)
    described = {name: takeover.get(name) for name in takeover}
    versions = {name: document.get(f"{name}_version") for name in ("lm_eval", "transformers")}
    left_out = left_out or ([] if tasks else [f"'{path}' is left out: it holds no task"])
    model, settings = name_model(config, takeover, kind), model_settings(document)
    seed = takeover.get("seed", config.get("torch_seed"))
    identities, verifiers = {task: each.identity for task, each in tasks.items()}, {each.verifier for each in tasks.values()}
    of_row = find_row(path, identities) or [takeover.get("identity"), settings, seed]
    counted, count = takeover.inside_or_empty("parameters"), config.get("model_num_parameters")
    parameters = {"model": int(count)} if count else {role: counted.require(role, int) for role in counted}
    measured = described, versions, tasks, seconds, parameters, left_out
    return Run(
        path, model, kind, settings, *measured, _find_given_label(takeover), seed, digest_of([of_row, sorted(verifiers)])
    )


def find_kind(policy: str | None) -> str:
    """The kind of a row by its policy; None is that of other models."""
    return "other" if policy is None else policy if policy in _OWN_KINDS else "guided"


def _find_given_label(takeover: Fields) -> str | None:
    """The label that the user gave a takeover run; None if it has its default label."""
    label = takeover.get("label")
    ids = [takeover.inside(role).get("id") for role in ("base", "guide") if takeover.get(role) is not None]
    own = make_label(list(map(str, ids)), str(takeover.get("policy")), takeover.get("score"))
    return label if isinstance(label, str) and label != own else None


def _read_task(path: Path, document: Fields, task: str, reading: ReadOptions) -> TaskResult:
    """Read one task of a results file. Raises NotCorrect if no metric is a number from 0 to 1."""
    values = document.inside("results").inside(task)
    keys = [key for key in values if "," in key and "_stderr," not in key]
    filters = list(dict.fromkeys(key.partition(",")[2] for key in keys))
    if reading.filter is not None:
        if reading.filter not in filters:
            known = ", ".join(filters)
            raise NotCorrect(f"it has no filter '{reading.filter}' (--filter); it has {known}")
        keys = [key for key in keys if key.endswith(f",{reading.filter}")]
    names = [key.split(",", 1) for key in sorted(keys, key=lambda key: not is_share(values.get(key)))]
    accuracy = choose_accuracy(name for name, _ in names)
    if accuracy is None or (task.startswith(PREFIX) and accuracy != ACC):
        raise NotCorrect(NO_METRICS)
    filter_name = next(key.partition(",")[2] for key in keys if key.startswith(f"{accuracy},"))
    present = list_metrics((name for name, of in names if of == filter_name), accuracy)
    shown = values.get(f"{accuracy},{filter_name}")
    if accuracy != ACC and not is_share(shown):
        raise NotCorrect(f"metric '{accuracy}' is {show(shown)}, expected a share of correct samples")
    called = {ACC if name == accuracy else name: f"{name},{filter_name}" for name in present}
    means = {name: values.share(key) for name, key in called.items()}
    count = document.inside("n-samples").inside(task).require("effective", Positive)
    samples = path.with_name(f"samples_{task}_{file_date(path)}.jsonl")
    better = document.inside_or_empty("higher_is_better").inside_or_empty(task)
    worse = [name for name in better if better.get(name) is False]
    problems = read_problems(samples, filter_name, accuracy, worse, reading) if samples.exists() else NO_PROBLEMS
    settings = task_settings(document, task)
    if problems:
        problems = _check(path, task, samples, problems, count, means, reading)
        count, means = len(problems), problems.means() | ({} if problems.missing else means)
    takeover = document.inside("config").inside_or_empty("takeover")
    each = problems.samples if problems else settings.get("samples")
    counted = takeover.inside_or_empty("per_task").inside_or_empty(task)
    identity, run_dir = counted.require("identity", str, None), takeover.require("run_dir", str | None, None)
    settings |= {"metric": accuracy, "filter": filter_name}
    return TaskResult(task, means, count, each, settings, problems, Counts.read(counted), run_dir, identity)


def _check(
    path: Path, task: str, samples: Path, problems: Problems, count: int, means: dict[str, float], reading: ReadOptions
) -> Problems:
    """Count the problems that are missing. Raises ResultsError unless the rest may be those of the results, by their means."""
    missing = count - len(problems)
    if missing < problems.missing or missing > reading.max_missing * count:
        raise ResultsError(
            f"'{samples}' holds {len(problems) + problems.missing} problems, but field 'n-samples.{task}.effective' of "
            f"'{path.name}' says {count}; write both again with {WRITER}, or allow a larger share with --max_missing"
        )
    for metric, own in problems.means().items():
        if abs(own - means.get(metric, own)) > _TOLERANCE + missing / count:
            raise ResultsError(
                f"'{samples}': the mean of field '{metric}' is {own:.6f}, but field 'results.{task}.{metric}' of "
                f"'{path.name}' is {means[metric]:.6f}; the files are of different runs"
            )
    return replace(problems, missing=missing)
