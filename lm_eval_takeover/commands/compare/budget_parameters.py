"""Where the budget parameters come from: a calibration, or the command that measures it."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

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
from lm_eval_takeover.commands.compare.contents import digest_path, identify_arguments
from lm_eval_takeover.commands.compare.rows import PlannedRow, join_arguments, read_pair, select_loading, write_options
from lm_eval_takeover.commands.compare.workload import TaskLoad
from lm_eval_takeover.demo import CALIBRATION_PROMPTS, DEMO, prompts_for
from lm_eval_takeover.errors import CalibrationError
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.pair.calibration_check import CalibrationFit, TaskRequest
from lm_eval_takeover.pair.loading import load_pair
from lm_eval_takeover.storage.digests import digest_of

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
    for name in ("temperature", "top_p", "top_k"):
        words += [f"--{name}", f"{getattr(sampling, name):g}"]
    return [*words, "--max_gen_toks", str(max_gen_toks)]
