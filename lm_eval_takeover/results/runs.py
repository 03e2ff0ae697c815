"""Runs of lm-eval on the takeover tasks, read from what `--output_path` wrote."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lm_eval_takeover.errors import ResultsError
from lm_eval_takeover.results.costs import Costs, read_costs
from lm_eval_takeover.results.fields import Fields, read_document
from lm_eval_takeover.results.problems import METRICS, WRITER, Problems, read_problems
from lm_eval_takeover.results.settings import (
    Settings,
    library_versions,
    list_differences,
    model_settings,
    parse_model_args,
    task_settings,
)

PREFIX = "takeover_"
MATHEMATICAL = (  # the tasks that averages are over
    "takeover_math500", "takeover_math500_100", "takeover_gsm8k", "takeover_gsm8k_100", "takeover_amc23",
    "takeover_olympiadbench", "takeover_olympiadbench_100", "takeover_aime24", "takeover_aime25",
)  # fmt: skip
_KINDS = {"base": "base", "guide": "guide", "random": "random", "early": "early"}
_TOLERANCE = 1e-6  # between a mean in the results and that of the samples


@dataclass(frozen=True)
class TaskResult:
    """One task of a run. `means` are lm-eval's, by metric; `errors` their standard errors; `problems` need `--log_samples`."""

    task: str
    means: dict[str, float]
    errors: dict[str, float | None]
    count: int  # problems
    samples: int | None  # of each problem
    settings: Settings
    problems: Problems | None
    per_token: dict[str, Any]  # tokens, takeovers, passes of a takeover run, as its results report them
    run_dir: str | None = None

    def read_costs(self) -> Costs | None:
        """Tokens, takeovers and passes by problem, from the run_dir; None where it cannot be had."""
        if self.problems is None or self.run_dir is None:
            return None
        return read_costs(Path(self.run_dir), self.task, self.problems)


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
    seconds: float | None  # of the whole evaluation
    parameters: dict[str, int] = field(default_factory=dict)  # weights of each model that reads, by role

    @property
    def seed(self) -> Any:
        return self.takeover.get("seed")


def find_results(path: Path) -> list[Path]:
    """The results files below a folder, or the file itself. Raises ResultsError."""
    if path.is_file():
        return [path]
    found = sorted(path.rglob("results_*.json")) if path.is_dir() else []
    if not found:
        state = "holds no results_*.json" if path.is_dir() else "does not exist"
        raise ResultsError(
            f"'{path}' {state}; expected what `lm_eval … --output_path` was given, or a results file in it"
        )
    return found


def read_runs(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The runs below these paths, and what was left out, one line each. Raises ResultsError.

    Several results files of one model and settings are one run: of a task that is in more than one, the newest counts.
    """
    runs: list[Run] = []
    notes: list[str] = []
    files = dict.fromkeys(file.resolve() for path in paths for file in find_results(path))
    for file in sorted(files, key=_date):
        new = read_run(file)
        if not new.tasks:
            notes.append(f"'{file}' is left out: it holds none of the {PREFIX}* tasks")
            continue
        place = next((place for place, run in enumerate(runs) if _is_same(run, new)), None)
        if place is None:
            runs.append(new)
            continue
        for task in runs[place].tasks.keys() & new.tasks.keys():
            notes.append(f"{task} of '{runs[place].source}' is left out: '{file}' has a newer run of it")
        runs[place] = replace(new, tasks=runs[place].tasks | new.tasks)
    return runs, notes


def _is_same(one: Run, other: Run) -> bool:
    same = not list_differences(one.settings, other.settings) and (one.model, one.seed) == (other.model, other.seed)
    shared = one.tasks.keys() & other.tasks.keys()
    return same and all(not list_differences(one.tasks[task].settings, other.tasks[task].settings) for task in shared)


def _date(path: Path) -> str:
    return re.sub(r"^.*_(?=\d{4}-)", "", path.stem)


def read_run(path: Path) -> Run:
    """The run of one results file, with the samples beside it. Raises ResultsError with file and field."""
    document = read_document(path, "`lm_eval … --output_path`")
    config = document.inside("config")
    takeover = config.inside_or_empty("takeover")
    results = document.inside("results")
    names = [task for task in results if task.startswith(PREFIX) and task not in document.inside_or_empty("groups")]
    found = {task: _read_task(path, document, task) for task in names}
    seconds = takeover.get("seconds", document.get("total_evaluation_time_seconds"))
    return Run(
        path,
        _name_model(config, takeover),
        _kind(takeover),
        model_settings(document),
        {name: takeover.get(name) for name in takeover},
        library_versions(document),
        {task: result for task, result in found.items() if result is not None},
        float(seconds) if seconds is not None else None,
        _parameters(config, takeover),
    )


def _kind(takeover: Fields) -> str:
    if "policy" not in takeover:
        return "other"
    return _KINDS.get(takeover.require("policy", str), "guided")


def _name_model(config: Fields, takeover: Fields) -> str:
    if "policy" not in takeover:
        arguments = parse_model_args(config.get("model_args"))
        named = next((arguments[name] for name in ("pretrained", "model", "path", "engine") if name in arguments), None)
        name = named or config.require("model", str)
    else:
        role = "guide" if takeover.get("policy") == "guide" else "base"
        if takeover.get("policy") not in _KINDS and takeover.get("direction") == "reverse":
            role = "guide"
        member = takeover.inside_or_empty(role)
        name = member.get("id") or config.require("model", str)
    return str(name).rstrip("/").rpartition("/")[2]


def _parameters(config: Fields, takeover: Fields) -> dict[str, int]:
    counted = takeover.inside_or_empty("parameters")
    if count := config.get("model_num_parameters"):
        return {"model": int(count)}
    return {role: counted.require(role, int) for role in counted}


def _read_task(path: Path, document: Fields, task: str) -> TaskResult | None:
    """One task of a results file; None for a group, whose means are not of problems."""
    values = document.inside("results").inside(task)
    keys = {key.partition(",")[0]: key for key in values if "," in key and "_stderr," not in key}
    if task in document.inside_or_empty("group_subtasks") and task not in document.inside_or_empty("n-samples"):
        return None
    if "acc" not in keys:
        values.fail("acc,all", "is missing; expected a task of this package")
    filter_name = keys["acc"].partition(",")[2]
    present = [metric for metric in METRICS if metric in keys]
    means = {metric: values.share(keys[metric]) for metric in present}
    for metric in ("pass@8", "maj@8"):
        if metric not in means:
            values.fail(f"{metric},{filter_name}", "is missing; expected a task with 8 samples a problem")
    count = document.inside("n-samples").inside(task).require("effective", int)
    problems = _read_samples(path, task, filter_name)
    settings = task_settings(document, task)
    if problems is not None:
        _check(path, task, problems, count, means)
    takeover = document.inside("config").inside_or_empty("takeover")
    return TaskResult(
        task,
        means,
        {metric: _number(values.get(f"{metric}_stderr,{filter_name}")) for metric in present},
        count,
        problems.samples if problems else settings.get("samples"),
        settings,
        problems,
        takeover.inside_or_empty("per_task").get(task) or {},
        takeover.get("run_dir"),
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def samples_path(path: Path, task: str) -> Path:
    """Where samples of the same call lie, if they were logged: `samples_TASK_DATE.jsonl` beside `results_DATE.json`."""
    return path.with_name(f"samples_{task}_{_date(path)}.jsonl")


def _read_samples(path: Path, task: str, filter_name: str) -> Problems | None:
    """The samples of the same call; None where they were not logged."""
    samples = samples_path(path, task)
    return read_problems(samples, filter_name) if samples.exists() else None


def _check(path: Path, task: str, problems: Problems, count: int, means: dict[str, float]) -> None:
    """The samples are those of the results: all of them, with the same means."""
    samples = samples_path(path, task)
    if len(problems) != count:
        raise ResultsError(
            f"'{samples}' holds {len(problems)} problems, but field 'n-samples.{task}.effective' of '{path.name}' says {count}; "
            f"write both anew with {WRITER}"
        )
    for metric, mean in means.items():
        if metric in problems.values and abs(float(problems.values[metric].mean()) - mean) > _TOLERANCE:
            raise ResultsError(
                f"'{samples}': the mean of field '{metric}' is {problems.values[metric].mean():.6f}, but field "
                f"'results.{task}.{metric}' of '{path.name}' is {mean:.6f}; they are not of one run"
            )


def common_ids(problems: Sequence[Problems]) -> tuple[str, ...] | None:
    """The ids that all have, in the order of the first; None unless they have the same problems."""
    first = problems[0]
    return first.ids if all(set(other.ids) == set(first.ids) for other in problems) else None
