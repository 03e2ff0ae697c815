"""What a comparison takes: its tasks with their sizes, a calibration that fits or is measured, memory; `--dry_run` prints it."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lm_eval.evaluator_utils import get_sample_size

from lm_eval_takeover.arguments import KINDS, ModelArguments, join_arguments, write_words
from lm_eval_takeover.calibration.commands import RunTask, calibration_command
from lm_eval_takeover.calibration.files import (
    Calibration,
    Target,
    find_calibration,
    find_packaged,
    find_target,
    read_calibration,
)
from lm_eval_takeover.commands._options import LOADING, PAIR
from lm_eval_takeover.commands._output import WRITERS, Table
from lm_eval_takeover.commands.calibrate.rollouts import MOST
from lm_eval_takeover.commands.compare.comparison import Comparison
from lm_eval_takeover.commands.compare.rows import PlannedRow, plan_calls, plan_rows
from lm_eval_takeover.commands.compare.worker import CALIBRATE, Call
from lm_eval_takeover.decoding.costs import count_column_bytes
from lm_eval_takeover.demo import DEMO, prompts_for
from lm_eval_takeover.errors import ArgumentError, CalibrationError
from lm_eval_takeover.method.named import THINKING
from lm_eval_takeover.method.registry import digest_plugins, load_plugins
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair, load_pair, parse_dtype
from lm_eval_takeover.pair.policy_choice import CalibrationFit, make_command
from lm_eval_takeover.results.problems import ReadOptions, choose_accuracy
from lm_eval_takeover.runs.identity import describe_member, digest_task
from lm_eval_takeover.storage.digests import digest_of, digest_path
from lm_eval_takeover.tasks.instances import read_generation_settings
from lm_eval_takeover.tasks.sampled import load_named_tasks

_HUB_PROMPTS = "openai/gsm8k:main"  # what the paper calibrates on (appendix A.1)
_READ = (
    "direction", "apply_chat_template", "trust_remote_code", "enable_thinking", "field", "dtype", "guide_dtype", "num_prompts",
    "num_held_out", "kappa_rule", "window", "plugins",
)  # fmt: skip


@dataclass(frozen=True)
class TaskLoad:
    """One task: `problems` under `--limit`, `samples` of each, at most `tokens` new tokens in a sample."""

    task: str
    problems: int
    samples: int
    tokens: int
    sampling: Sampling
    loaded: Any = None  # lm-eval's object


def read_workload(asked: Comparison) -> list[TaskLoad]:
    """The single tasks, also of groups. Raises ArgumentError, or ResultsError for one without the field of `--group`."""
    tasks = load_named_tasks(asked.tasks, asked.harness.get("include_path"), metadata=asked.harness.get("metadata"))
    loads, usual = [], int(asked.arguments.get("max_gen_toks", ModelArguments().max_gen_toks))
    for name, task in tasks.items():
        if task.OUTPUT_TYPE != "generate_until":
            raise ArgumentError(f"--tasks {name} is {task.OUTPUT_TYPE}; expected tasks that generate texts")
        ReadOptions(group=asked.group).find_group(name, task.eval_docs[0])
        combined = task.aggregation()
        metric = choose_accuracy(combined)
        how = combined.get(metric)
        if metric is None or (how.__module__ == "lm_eval.api.metrics" and how.__name__ != "mean"):
            raise ArgumentError(
                f"--tasks {name} has {f'the metric {metric}' if metric else 'no metric'}; expected one that says of each sample "
                f"whether it is correct, such as acc or exact_match"
            )
        settings = {**(task.config.generation_kwargs or {}), **asked.harness.get("gen_kwargs", {})}
        sampling, _, tokens = read_generation_settings(settings, usual)
        problems = min(len(task.eval_docs), get_sample_size(task, asked.harness.get("limit")) or len(task.eval_docs))
        loads.append(TaskLoad(name, problems, task.config.repeats or 1, tokens, sampling, task))
    return loads


def check_rows(asked: Comparison) -> list[PlannedRow]:
    """The rows. Raises ArgumentError for one that cannot be run, CalibrationError where a given file was not solved for it."""
    load_plugins(asked.arguments.get("plugins"))
    rows = plan_rows(asked)
    if asked.calibration is not None:
        calibration, _ = find_calibration(asked.calibration)
        for row in rows:
            find_row_target(calibration, row, asked)
    return rows


@dataclass(frozen=True)
class CalibrationPlan:
    """The `calibration` argument, and the options of `calibrate` that make it, if it is missing."""

    calibration: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    rollouts: int = 0  # at most

    @property
    def call(self) -> Call:
        return Call("calibration", CALIBRATE, self.options, Path(str(self.calibration)).with_suffix(".log"), alone=True)


def plan_calibration(asked: Comparison, rows: Sequence[PlannedRow], loads: Sequence[TaskLoad]) -> CalibrationPlan:
    """The calibration of these rows: one for all tasks, in the form of the first."""
    if asked.calibration is not None or not any(row.is_calibrated for row in rows):
        return CalibrationPlan(asked.calibration)
    pair = load_pair(asked.pair)

    def fits(calibration: Calibration) -> bool:
        """Whether it was solved for the rates of these rows, with the same form of prompts and the same decoding."""
        try:
            for row in rows:
                find_row_target(calibration, row, asked)
        except CalibrationError:
            return False
        check = CalibrationFit(calibration, pair, asked.arguments.get("enable_thinking"), False, calibration_command)
        return not check.list_differences(asked.harness.get("apply_chat_template", False), loads[0].sampling)

    packaged = find_packaged(pair.member("base").id, pair.member("guide").id, asked.arguments["direction"])
    if packaged and fits(packaged):
        return CalibrationPlan()
    options = _choose_options(asked, loads)
    out = asked.run_dir / f"calibration-{_digest_calibration(asked, pair, options, loads[0])[:8]}.json"
    if out.exists() and fits(read_calibration(out)):
        return CalibrationPlan(str(out))
    by_word: dict[str, list[str]] = {}
    for row in rows:
        if row.arguments.target_rate is not None:
            by_word.setdefault(row.word, []).append(f"{row.arguments.target_rate:g}")
    if by_word:
        options["methods"] = [f"{word}@{':'.join(rates)}" for word, rates in by_word.items()]
    named = (*PAIR, *LOADING)
    if loading := {n: v for n, v in asked.arguments.items() if n in KINDS and KINDS[n].loads and n not in named}:
        options["model_args"] = join_arguments(loading)
    options |= {name: asked.arguments[name] for name in ("batch_size", "device", "guide_device") if name in asked.arguments}
    options |= {"extend": True, "out": out} if out.exists() else {"out": out}
    rollouts = asked.prompts["num_prompts"] + sum(map(len, by_word.values())) * MOST * asked.prompts["num_held_out"]
    return CalibrationPlan(str(out), options, rollouts)


def _choose_options(asked: Comparison, loads: Sequence[TaskLoad]) -> dict[str, Any]:
    """All options of `calibrate` that change the content of the file, except the methods. Their order names the file."""
    task = loads[0].task
    given = {"task": task, **asked.arguments, **asked.harness, **asked.prompts}
    usual = _HUB_PROMPTS if "base" in given else str(prompts_for(task))
    names = ["base", "guide", "task", "include_path", *_READ]
    if "base" not in given and "prompts" not in given:  # those of the demo pair have the form of its tasks already
        names = [name for name in names if name not in ("task", "include_path")]
    if given["direction"] == "forward":
        names.remove("direction")
    options = {"prompts": given.get("prompts", usual), **{name: given[name] for name in names if name in given}}
    return options | loads[0].sampling.settings() | {"max_gen_toks": max(load.tokens for load in loads)}


def _digest_calibration(asked: Comparison, pair: Pair, options: Mapping[str, Any], load: TaskLoad) -> str:
    """Of all that can change the content of the file, but for the rates that it is solved for."""
    models = [describe_member(member, is_asked=False) for member in pair.members]
    words = write_words(options)
    read = [digest_path(Path(word)) if Path(word).is_file() else word for word in words]
    return digest_of([read, models, digest_plugins(asked.arguments.get("plugins")), digest_task(load.loaded)])


def find_row_target(calibration: Calibration, row: PlannedRow, asked: Comparison) -> Target | None:
    """The value that was solved for a row; None for a row without one. Raises CalibrationError if it is missing in the file."""
    rate = row.arguments.target_rate
    if rate is None:
        return None
    method, task = row.method, RunTask(asked.tasks[0], asked.harness.get("include_path"))
    command = make_command(replace(row.arguments, calibration=asked.calibration), method, task)
    return find_target(calibration, rate, method.settings, method.budget_parameter.name, command)


# --dry_run


def print_estimate(asked: Comparison) -> int:
    rows = check_rows(asked)
    loads = read_workload(asked)
    plan = plan_calibration(asked, rows, loads)
    lines = [str(plan.call)] if plan.options else []
    rates = {load.task: asked.target_rate for load in loads}
    for row in rows:
        late = "  # with the rate that the guided row realizes" if row.follows else ""
        lines += [f"{call}{late}" for call in plan_calls(asked, row, plan.calibration, rates)]
    tables = [_lay_out_tasks(loads, plan), _lay_out_memory(asked, rows, loads)]
    sys.stdout.write("\n".join([*map(WRITERS[asked.format], tables), *lines, ""]))
    return 0


def _lay_out_tasks(loads: Sequence[TaskLoad], plan: CalibrationPlan) -> Table:
    lines = []
    for load in loads:
        requests = load.problems * load.samples
        counts = load.problems, load.samples, requests, requests * load.tokens
        lines.append([load.task, *(f"{count:,}" for count in counts)])
    notes = ["Each row does all of these tasks. Tokens at most: every sample at the task's limit."]
    if plan.options:
        most = plan.rollouts * plan.options["max_gen_toks"]
        lines.append(["calibration", "", "", f"{plan.rollouts:,}", f"{most:,}"])
        notes.append(f"Calibration: all prompts once, and for each rate the held-out ones at most {MOST} times.")
    return Table(["Task", "Problems", "Samples", "Requests", "Tokens at most"], lines, notes)


def _lay_out_memory(asked: Comparison, rows: Sequence[PlannedRow], loads: Sequence[TaskLoad]) -> Table:
    """By model parameters, weights, and keys and values of one batch at the longest texts. No weights are read."""
    pair, tokens = asked.pair, max(load.tokens for load in loads)
    models = {role: (getattr(pair, role) or str(DEMO[role]), pair.for_role(role)) for role in PAIR}
    models |= {row.name: (str(row.arguments.guide), row.arguments) for row in rows if row.name == THINKING}
    is_auto = rows[0].arguments.batch_size == "auto"
    batch = rows[0].arguments.rows
    lines = []
    for role, (name, given) in models.items():
        member = Member(role, name, dtype=parse_dtype(role, given.dtype), given=given)
        count, size = member.weights.parameters, member.outline.dtype.itemsize
        cache = count_column_bytes(member.config, size) * tokens
        sizes = f"{count * size / 1e9:,.2f} GB", f"{cache / 1e6:,.1f} MB", f"{cache * batch / 1e9:,.2f} GB"
        lines.append([role, f"{count / 1e6:,.1f} M", *sizes])
    notes = [
        f"Cache: keys and values at {tokens:,} new tokens, without the prompt, in a batch of {batch}"
        f"{', the most that batch_size=auto takes' if is_auto else ''}. One row runs at a time. "
        "The rows base and thinking need one model, the others need base and guide. Weights are those before any quantization."
    ]
    return Table(["Model", "Parameters", "Weights", "Cache / sample", "Cache / batch"], lines, notes)
