"""The commands of a comparison: the calibration where none fits, the command of each row, and the places of its results.

RUN_DIR/calibration-DIGEST.json    if no packaged one fitted
RUN_DIR/ROW/samples                the row's run_dir: its journal and traces
RUN_DIR/ROW/row.json               which of its samples the row is made of, by task (`runs.identity.read_row`)
RUN_DIR/ROW/results-DIGEST         its --output_path, by a digest of all that can change a result (`contents`)
RUN_DIR/ROW/results-DIGEST/call.json   marks a finished call
RUN_DIR/ROW/lm_eval-DIGEST.log     what lm-eval printed
RUN_DIR/leaderboard.json           the table; RUN_DIR/rows.json what `frontier` reads
"""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lm_eval_takeover.arguments import KINDS, ModelArguments
from lm_eval_takeover.calibration.files import (
    calibration_command,
    find_target,
    matching_calibrations,
    name_rate,
    packaged_calibrations,
    read_calibration,
)
from lm_eval_takeover.calibration.thresholds import Calibration, Target
from lm_eval_takeover.commands.calibrate.rate_solver import MOST
from lm_eval_takeover.commands.compare.contents import TaskLoad, digest_path, identify_arguments, identify_code
from lm_eval_takeover.commands.compare.rows import PlannedRow, join_arguments, read_pair, select_loading, write_options
from lm_eval_takeover.demo import CALIBRATION_PROMPTS, DEMO, prompts_for
from lm_eval_takeover.errors import CalibrationError
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.pair.gate_choice import CalibrationFit, TaskRequest
from lm_eval_takeover.pair.loading import keep_read, load_pair
from lm_eval_takeover.results.settings import HARMLESS
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.paths import CALIBRATIONS

_HUB_PROMPTS = "openai/gsm8k:main"  # what the paper calibrates on (appendix A.1)


@dataclass(frozen=True)
class CalibrationPlan:
    """The `calibration` argument, and the `lm-eval-takeover` command that makes it, if it is missing."""

    calibration: str | None = None
    words: tuple[str, ...] = ()
    rollouts: int = 0  # at most
    max_gen_toks: int = 0


def plan_calibration(options: argparse.Namespace, rows: Sequence[PlannedRow], loads: Sequence[TaskLoad]) -> CalibrationPlan:
    """The calibration of these rows: one for all tasks, in the form of the first."""
    load, max_gen_toks = loads[0], max(each.tokens for each in loads)
    wanted, task, sampling = [row for row in rows if row.rate is not None], load.task, load.sampling
    if options.calibration is not None or not (wanted or any(row.reads_spike_ratio(options) for row in rows)):
        return CalibrationPlan(options.calibration)
    asked = read_pair(options)
    pair = load_pair(ModelArguments.parse(asked))
    base, guide = pair.member("base").id, pair.member("guide").id
    thinking = None if options.enable_thinking is None else options.enable_thinking == "True"

    def fits(calibration: Calibration) -> bool:
        """Whether it was solved for the rates of these rows, with the same form of prompts and the same decoding."""
        try:
            for row in wanted:
                find_row_target(calibration, row, options)
        except CalibrationError:
            return False
        check = CalibrationFit(calibration, pair, thinking, False, calibration_command)
        return not check.list_differences(TaskRequest(task, options.apply_chat_template, sampling))

    packaged = matching_calibrations(packaged_calibrations().values(), base, guide, options.direction)
    if packaged and fits(packaged[0]):
        return CalibrationPlan()
    words = _calibrate_words(options, sampling, max_gen_toks, task)
    models = {name: str(value) for name, value in ({**DEMO} | asked).items() if KINDS[name].key}
    models |= {name: options.model_args[name] for name in ("plugins",) if name in options.model_args}
    contents = [digest_path(Path(word)) if Path(word).is_file() else word for word in words]
    read = [contents, identify_arguments(models), load.form]
    out = Path(options.run_dir) / f"calibration-{digest_of(read)[:8]}.json"
    if out.exists() and fits(read_calibration(out)):
        return CalibrationPlan(str(out))
    by_word = {row.word: [f"{other.rate:g}" for other in wanted if other.word == row.word] for row in wanted}
    methods = [f"{word}@{':'.join(rates)}" for word, rates in by_word.items()]
    words += ["--methods", *methods, "--nearest"] if methods else []
    words += ["--model_args", join_arguments(loading)] if (loading := select_loading(options)) else []
    words += [*write_options(options, "batch_size", "device", "guide_device")]
    words += ["--extend"] if out.exists() else []
    rollouts = options.num_prompts + len(wanted) * MOST * options.num_held_out
    return CalibrationPlan(str(out), ("calibrate", *words, "--out", str(out)), rollouts, max_gen_toks)


def find_row_target(calibration: Calibration, row: PlannedRow, options: argparse.Namespace) -> Target | None:
    """The value that was solved for a row; None for a row without a rate. Raises CalibrationError if there is none."""
    if row.rate is None or row.method is None:
        return None
    settings = row.method.settings
    solving = name_rate(row.rate, settings, options.model_args.get("plugins"))
    names = (options.base, options.guide, options.direction, CALIBRATION_PROMPTS)
    return find_target(calibration, row.rate, settings, partial(calibration_command, *names, solving=solving))


def _calibrate_words(options: argparse.Namespace, sampling: Sampling, max_gen_toks: int, task: str) -> list[str]:
    """All words that change the content of the file, except the methods."""
    arguments, prompts = options.model_args, options.prompts
    words = ["--prompts", prompts or (_HUB_PROMPTS if options.base else str(prompts_for(task)))]
    words += write_options(options, "base", "guide")
    words += ["--task", task] if options.base or prompts else []
    words += ["--direction", options.direction] if options.direction != "forward" else []
    words += write_options(options, "apply_chat_template", "trust_remote_code", "enable_thinking", "include_path")
    words += write_options(options, "field", "dtype", "guide_dtype", "num_prompts", "num_held_out")
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

    def is_done(self) -> bool:
        return (self.results / "call.json").exists()


def plan_calls(
    options: argparse.Namespace,
    row: PlannedRow,
    plan: CalibrationPlan,
    loads: Sequence[TaskLoad],
    followed: Mapping[str, float] = {},
) -> list[Call]:
    """The calls of one row: one, or for a row that follows one for each task, whose rates `followed` has.

    A thinking model has no journal. So it gets one call for each task, to keep what is done.
    """
    dtype = None if options.dtype == "auto" else options.dtype
    shared = {"dtype": dtype, "trust_remote_code": options.trust_remote_code or None}
    shared["enable_thinking"] = options.enable_thinking
    if row.name == "thinking":
        arguments = row.arguments | shared | options.thinking_args
        return [_make_call(options, row, options.thinking_backend, arguments, [load.task], loads) for load in loads]
    names = ("base", "guide", "guide_device", "guide_dtype")
    arguments = {"model": row.label} | {name: getattr(options, name) for name in names}
    arguments |= shared | keep_read(options.model_args, row.arguments["policy"])
    if row.method is not None:
        arguments |= ({"direction": "reverse"} if options.direction == "reverse" else {}) | {"target_rate": row.rate}
    arguments |= row.arguments
    arguments["run_dir"] = Path(options.run_dir) / row.label / "samples"
    parts: list[tuple[Sequence[str], dict[str, Any]]] = [(options.tasks, {})]
    if row.follows:
        parts = [([task], {"rate": followed[task]}) for task in (load.task for load in loads)]
    elif row.rate is not None or row.reads_spike_ratio(options):
        parts = [(options.tasks, {"calibration": plan.calibration})]
    return [_make_call(options, row, "guided-takeover", arguments | own, some, loads) for some, own in parts]


def _make_call(
    options: argparse.Namespace,
    row: PlannedRow,
    model: str,
    arguments: Mapping[str, Any],
    tasks: Sequence[str],
    loads: Sequence[TaskLoad],
) -> Call:
    given = {name: str(value) for name, value in arguments.items() if value is not None}
    words = ["--model", model, "--model_args", join_arguments(given), "--tasks", ",".join(tasks)]
    words += write_options(options, "apply_chat_template")
    words += ["--gen_kwargs", join_arguments(options.gen_kwargs)] if options.gen_kwargs else []
    words += write_options(options, "limit", "seed", "metadata")
    lasting = {name: value for name, value in given.items() if name not in HARMLESS}
    digests = {load.task: load.digest for load in loads}
    documents = {task: digests[task] for task in tasks} if digests.keys() >= {*tasks} else digests  # of groups: all
    if row.name == "thinking":
        code = identify_code("answers", "tasks")
    else:  # what writes and judges, a plug-in's too, and the packaged calibrations where one of them is chosen
        lasting = {role: str(folder) for role, folder in DEMO.items()} | lasting
        sources = [] if row.method is None else [source.digest for source in row.method.policy.sources]
        code = [*identify_code(), sources, None if "calibration" in given else digest_path(CALIBRATIONS)]
    key = digest_of([model, identify_arguments(lasting), words[4:], documents, code])[:8]
    words += write_options(options, "include_path")
    folder = Path(options.run_dir) / row.label
    results, log = folder / f"results-{key}", folder / f"lm_eval-{key}.log"
    batch_size = (options.thinking_batch_size if row.name == "thinking" else None) or options.batch_size
    words += ["--batch_size", batch_size, *write_options(options, "device")]
    words += ["--output_path", str(results), "--log_samples"]
    alone = row.name == "thinking" or given.get("backend", "hf") != "hf"
    return Call(row.label, words, results, log, alone)
