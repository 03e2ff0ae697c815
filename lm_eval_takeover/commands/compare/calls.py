"""The rows of a comparison, the tasks that they do, and the commands that run them: a calibration where none fits, then each row.

RUN_DIR/calibration-DIGEST.json    if no packaged one fitted
RUN_DIR/ROW/samples                the row's run_dir: its journal and traces
RUN_DIR/ROW/row.json               which of its samples the row is made of, by task (`runs.identity.read_row`)
RUN_DIR/ROW/results                its --output_path; RUN_DIR/ROW/results/TASK for a row with a rate of its own for each task
RUN_DIR/ROW/lm_eval.log            what lm-eval printed
RUN_DIR/leaderboard.json           the table; RUN_DIR/rows.json what `leaderboard`, `report` and `frontier` read
"""

import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lm_eval._cli.utils import key_val_to_dict, try_parse_json
from lm_eval.evaluator_utils import get_sample_size

from lm_eval_takeover.arguments import DEFAULT_POLICY, KINDS, TWINS, ModelArguments
from lm_eval_takeover.calibration.commands import RunTask, calibration_command
from lm_eval_takeover.calibration.files import (
    Calibration,
    Target,
    find_target,
    matching_calibrations,
    name_rate,
    packaged_calibrations,
    read_calibration,
)
from lm_eval_takeover.calibration.tuning import SPIKE_RATIO, Method
from lm_eval_takeover.commands.calibrate.rollouts import MOST
from lm_eval_takeover.commands.compare.comparison import ALONE, GUIDED, Comparison
from lm_eval_takeover.demo import CALIBRATION_PROMPTS, prompts_for
from lm_eval_takeover.errors import ArgumentError, CalibrationError
from lm_eval_takeover.method.named import THINKING, Named, find_policy
from lm_eval_takeover.method.policy import policies
from lm_eval_takeover.method.registry import digest_plugins
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.pair.gate_choice import CalibrationFit, TaskRequest
from lm_eval_takeover.pair.loading import keep_read, load_pair, open_method, parse_arguments
from lm_eval_takeover.pair.pair import Pair
from lm_eval_takeover.results.kept_rows import DRAFTED, ComparedRow
from lm_eval_takeover.results.problems import ReadOptions, choose_accuracy
from lm_eval_takeover.runs.identity import describe_member, digest_task
from lm_eval_takeover.storage.digests import digest_of, digest_path
from lm_eval_takeover.storage.paths import make_component
from lm_eval_takeover.tasks.instances import read_generation_settings
from lm_eval_takeover.tasks.sampled import load_named_tasks

LEADERS = (GUIDED, "ce")  # whose realized rates the rows that follow take
_BY_HAND = ("tau", "spike_ratio", "early_tokens")  # they replace a rate, as each method's budget parameter does


@dataclass(frozen=True, eq=False)
class PlannedRow(ComparedRow):
    """A row that can be run; a model alone has no `method`."""

    arguments: dict[str, Any] = field(default_factory=dict)  # model arguments of this row alone
    method: Method | None = None


def plan_rows(asked: Comparison) -> list[PlannedRow]:
    """`--rows` at their rates, in their order. Raises ArgumentError for a row that cannot be run."""
    has_leader = any(word.name in LEADERS for word in asked.rows)
    rows = [row for word in asked.rows for row in _expand(word, asked, has_leader)]
    labels = [row.label for row in rows]
    if repeated := next((label for label in labels if labels.count(label) > 1), None):
        raise ArgumentError(f"--rows names {repeated} twice")
    return rows


def _expand(named: Named, asked: Comparison, has_leader: bool) -> Iterator[PlannedRow]:
    """One row for each rate. Raises ArgumentError."""
    if named.name == THINKING:
        yield PlannedRow(THINKING, THINKING, word=THINKING, arguments={"policy": "guide", **named.arguments})
        return
    label = make_component("-".join([named.name, *(f"{name}-{value}" for name, value in named.arguments.items())]))
    if named.name in ALONE:
        if named.rates or named.arguments.keys() - ({"block_size"} if named.name == DRAFTED else set()):
            raise ArgumentError(f"--rows {named.name}: the {named.name} alone has neither rates nor arguments")
        yield PlannedRow(label, named.name, word=label, arguments=ALONE[named.name] | dict(named.arguments))
        return
    own = find_policy("rows", "ce" if named.name == GUIDED else named.name) | dict(named.arguments)
    shared = keep_read(asked.model_args, own["policy"]) | {"direction": asked.direction}
    by_hand = any(name in own for name in _BY_HAND) or "target_rate" not in policies.get(own["policy"]).reads()
    method = open_method(parse_arguments({**shared, **own, "target_rate": None if by_hand else 0.5}))
    parameter = method.policy.budget_parameter
    by_hand = by_hand or parameter is None or parameter.name in own
    if by_hand and named.rates:
        reason = "its arguments set already how many tokens are taken over"
        if parameter is None:
            reason = f"policy={method.policy.name} has no budget_parameter that a rate could be solved by"
        raise ArgumentError(f"--rows {named.name}@{named.rates[0]:g}: {reason}; leave the rate out")
    rates = () if by_hand else named.rates or (asked.rates if named.name != GUIDED else ())
    follows = not (by_hand or rates) and named.name in ("random", "early") and has_leader
    method_name = own.get("score", "ce") if own["policy"] == DEFAULT_POLICY else own["policy"]
    given = {key: shared[key] for key in ("score_top_p",) if key in shared} | dict(named.arguments)
    word = ":".join([method_name, *(f"{key}={value}" for key, value in given.items())])
    roles = method.policy.host, method.policy.donor, method.policy.mixes
    for rate in rates or [None if by_hand or follows else asked.target_rate]:
        at = f"{label}@{rate:g}" if rates else label
        yield PlannedRow(at, named.name, rate, follows, word, None, *roles, arguments=own, method=method)


def join_arguments(values: Mapping[str, str]) -> str:
    """As lm_eval reads it: `name=value,…`, or JSON where a value holds a comma."""
    if any("," in value for value in values.values()):
        return json.dumps(values)
    return ",".join(f"{name}={value}" for name, value in values.items())


_DEFAULT_TOKENS = 256  # new tokens where a task says nothing, as guided-takeover


@dataclass(frozen=True)
class TaskLoad:
    """One task: `problems` under `--limit`, `samples` of each, at most `tokens` new tokens in a sample."""

    task: str
    problems: int
    samples: int
    tokens: int
    sampling: Sampling
    loaded: Any = None  # lm-eval's object


def _read_metadata(text: str | None) -> dict[str, Any] | None:
    """As lm-eval reads `--metadata`: a JSON object, or `a=1,b=2`. Raises ArgumentError for anything else."""
    if not text:
        return None
    with contextlib.suppress(ValueError):
        parsed = try_parse_json(text)
        parsed = key_val_to_dict(parsed) if isinstance(parsed, str) else parsed
        if isinstance(parsed, dict):
            return parsed
    raise ArgumentError(f"--metadata '{text}' is neither a JSON object nor NAME=VALUE,…")


def read_workload(asked: Comparison) -> list[TaskLoad]:
    """The single tasks, also of groups. Raises ArgumentError for a task that is unknown or cannot be compared, ResultsError
    for one without the field of `--group`."""
    tasks = load_named_tasks(asked.tasks, asked.include_path, metadata=_read_metadata(asked.metadata))
    given = {k: v for pair in asked.gen_kwargs.items() for k, v in key_val_to_dict("=".join(pair)).items()}
    loads = []
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
        settings = {**(task.config.generation_kwargs or {}), **given}
        sampling, _, tokens = read_generation_settings(settings, _DEFAULT_TOKENS)
        problems = min(len(task.eval_docs), get_sample_size(task, asked.limit) or len(task.eval_docs))
        loads.append(TaskLoad(name, problems, task.config.repeats or 1, tokens, sampling, task))
    return loads


_HUB_PROMPTS = "openai/gsm8k:main"  # what the paper calibrates on (appendix A.1)


@dataclass(frozen=True)
class CalibrationPlan:
    """The `calibration` argument, and the `lm-eval-takeover` command that makes it, if it is missing."""

    calibration: str | None = None
    words: tuple[str, ...] = ()
    rollouts: int = 0  # at most
    max_gen_toks: int = 0


def plan_calibration(asked: Comparison, rows: Sequence[PlannedRow], loads: Sequence[TaskLoad]) -> CalibrationPlan:
    """The calibration of these rows: one for all tasks, in the form of the first."""
    load, max_gen_toks = loads[0], max(each.tokens for each in loads)
    wanted, task, sampling = [row for row in rows if row.rate is not None], load.task, load.sampling
    if asked.calibration is not None or not (wanted or any(SPIKE_RATIO in row.arguments for row in rows)):
        return CalibrationPlan(asked.calibration)
    pair = load_pair(ModelArguments.parse(asked.pair))
    base, guide = pair.member("base").id, pair.member("guide").id
    thinking = None if asked.enable_thinking is None else asked.enable_thinking == "True"

    def fits(calibration: Calibration) -> bool:
        """Whether it was solved for the rates of these rows, with the same form of prompts and the same decoding."""
        try:
            for row in wanted:
                find_row_target(calibration, row, asked)
        except CalibrationError:
            return False
        check = CalibrationFit(calibration, pair, thinking, False, calibration_command)
        return not check.list_differences(TaskRequest(task, asked.apply_chat_template, sampling))

    packaged = matching_calibrations(packaged_calibrations().values(), base, guide, asked.direction)
    if packaged and fits(packaged[0]):
        return CalibrationPlan()
    words = _calibrate_words(asked, sampling, max_gen_toks, task)
    out = asked.run_dir / f"calibration-{_digest_calibration(asked, pair, words, load)[:8]}.json"
    if out.exists() and fits(read_calibration(out)):
        return CalibrationPlan(str(out))
    by_word = {row.word: [f"{other.rate:g}" for other in wanted if other.word == row.word] for row in wanted}
    methods = [f"{word}@{':'.join(rates)}" for word, rates in by_word.items()]
    words += ["--methods", *methods] if methods else []
    words += ["--model_args", join_arguments(asked.loading)] if asked.loading else []
    words += asked.write("batch_size", "device", "guide_device")
    words += ["--extend"] if out.exists() else []
    rollouts = asked.num_prompts + len(wanted) * MOST * asked.num_held_out
    return CalibrationPlan(str(out), ("calibrate", *words, "--out", str(out)), rollouts, max_gen_toks)


def _digest_calibration(asked: Comparison, pair: Pair, words: Sequence[str], load: TaskLoad) -> str:
    """Of all that can change the content of the file, but for the rates that it is solved for: words, files, models, the task."""
    models = [describe_member(member, is_asked=False) for member in pair.members]
    read = [digest_path(Path(word)) if Path(word).is_file() else word for word in words]
    return digest_of([read, models, digest_plugins(asked.model_args.get("plugins")), digest_task(load.loaded, 0)])


def find_row_target(calibration: Calibration, row: PlannedRow, asked: Comparison) -> Target | None:
    """The value that was solved for a row; None for a row without a rate. Raises CalibrationError if there is none."""
    if row.rate is None or row.method is None:
        return None
    settings = row.method.settings
    solving = name_rate(row.rate, settings, asked.model_args.get("plugins"))
    names = (asked.base, asked.guide, asked.direction, CALIBRATION_PROMPTS)
    options = RunTask(asked.tasks[0], asked.include_path)._asdict() | {"solving": solving}
    return find_target(calibration, row.rate, settings, partial(calibration_command, *names, **options))


def _calibrate_words(asked: Comparison, sampling: Sampling, max_gen_toks: int, task: str) -> list[str]:
    """All words that change the content of the file, except the methods."""
    arguments, prompts = asked.model_args, asked.prompts
    words = ["--prompts", prompts or (_HUB_PROMPTS if asked.base else str(prompts_for(task)))]
    words += asked.write("base", "guide")
    words += ["--task", task, *asked.write("include_path")] if asked.base or prompts else []
    words += ["--direction", asked.direction] if asked.direction != "forward" else []
    words += asked.write("apply_chat_template", "trust_remote_code", "enable_thinking")
    words += asked.write("field", "dtype", "guide_dtype", "num_prompts", "num_held_out")
    for name in ("kappa_rule", "window", "plugins"):
        words += [f"--{name}", arguments[name]] if name in arguments else []
    for name, value in sampling.settings().items():
        words += [f"--{name}", f"{value:g}"]
    return [*words, "--max_gen_toks", str(max_gen_toks)]


@dataclass(frozen=True)
class Call:
    """One `lm_eval` command: `words` are its arguments."""

    row: str
    words: Sequence[str]
    results: Path
    log: Path
    alone: bool  # whether it needs a process of its own, since it does not use the loaded pair

    @property
    def command(self) -> str:
        return shlex.join(["lm_eval", *self.words])


def plan_calls(
    asked: Comparison, row: PlannedRow, plan: CalibrationPlan, followed: Mapping[str, float] | None = None
) -> list[Call]:
    """The calls of one row: one, or for a row that follows one for each task, whose rates `followed` has."""
    folder = asked.run_dir / row.label
    dtype = None if asked.dtype == "auto" else asked.dtype
    given: dict[str, Any] = {"model": row.label, "dtype": dtype, "trust_remote_code": asked.trust_remote_code or None}
    given |= {name: getattr(asked, name) for name in ("base", "guide", "guide_device", "guide_dtype", "enable_thinking")}
    given |= keep_read(asked.model_args, row.arguments["policy"])
    if row.name == THINKING:  # another model than the pair's: without what belongs to their repositories, or to the guide
        theirs = {*TWINS.values(), *(name for name, kind in KINDS.items() if kind.own)}
        given = {name: value for name, value in given.items() if name not in theirs}
    if row.method is not None:
        given |= ({"direction": "reverse"} if asked.direction == "reverse" else {}) | {"target_rate": row.rate}
    given |= row.arguments | {"run_dir": folder / "samples"}
    if row.rate is not None or SPIKE_RATIO in row.arguments:
        given["calibration"] = plan.calibration
    parts: list[tuple[Sequence[str], dict[str, Any], Path]] = [(asked.tasks, {}, folder / "results")]
    if row.follows:
        parts = [([task], {"rate": rate}, folder / "results" / task) for task, rate in (followed or {}).items()]
    return [_make_call(asked, row, given | own, some, results) for some, own, results in parts]


def _make_call(asked: Comparison, row: PlannedRow, arguments: Mapping[str, Any], tasks: Sequence[str], results: Path) -> Call:
    given = {name: str(value) for name, value in arguments.items() if value is not None}
    words = ["--model", "guided-takeover", "--model_args", join_arguments(given), "--tasks", ",".join(tasks)]
    words += asked.write("apply_chat_template")
    words += ["--gen_kwargs", join_arguments(asked.gen_kwargs)] if asked.gen_kwargs else []
    words += asked.write("limit", "seed", "metadata", "include_path", "batch_size", "device")
    words += ["--output_path", str(results), "--log_samples"]
    log = asked.run_dir / row.label / ("lm_eval.log" if not row.follows else f"lm_eval-{results.name}.log")
    return Call(row.label, words, results, log, row.name == THINKING or given.get("backend", "hf") != "hf")
