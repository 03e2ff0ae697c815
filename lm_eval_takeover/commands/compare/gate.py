"""The gate of the guided row: a calibration that fits, or the command that measures one."""

import argparse
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.calibration.files import matching_calibrations, packaged_calibrations, read_calibration
from lm_eval_takeover.calibration.thresholds import KAPPA_RULES, Calibration
from lm_eval_takeover.demo import CALIBRATION_PROMPTS
from lm_eval_takeover.errors import CalibrationError
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.pair.loading import load_pair
from lm_eval_takeover.storage.digests import digest_of

_HUB_PROMPTS = "openai/gsm8k:main"  # what the paper calibrates on (appendix A.1)


@dataclass(frozen=True)
class GatePlan:
    """Model arguments of the guided row, and the words behind `lm-eval-takeover` that make `out` first, if there are any."""

    arguments: dict[str, Any]
    words: tuple[str, ...] = ()
    out: Path | None = None


def plan_gate(options: argparse.Namespace, sampling: Sampling, max_gen_toks: int, task: str) -> GatePlan:
    """How the guided row comes by its gate; `sampling` and `max_gen_toks` are those of the tasks as they will run."""
    if options.target_rate is None:
        return GatePlan({"calibration": options.calibration})
    target = {"target_rate": options.target_rate}
    if options.calibration is not None:
        return GatePlan({"calibration": options.calibration, **target})
    names = ("dtype", "guide_dtype", "device", "guide_device", "trust_remote_code")
    asked = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    pair = load_pair(ModelArguments.parse({"base": options.base, "guide": options.guide, **asked}))
    base, guide = pair.member("base").id, pair.member("guide").id
    packaged = matching_calibrations(packaged_calibrations().values(), base, guide, "forward")
    if any(_fits(calibration, options, sampling) for calibration in packaged):
        return GatePlan(target)
    words = _calibrate_words(options, sampling, max_gen_toks, task)
    out = options.run_dir / f"calibration-{digest_of([words, str(base), str(guide)])[:8]}.json"
    arguments = {"calibration": str(out), **target}
    if out.exists():
        if _fits(read_calibration(out), options, sampling):
            return GatePlan(arguments)
        words.append("--overwrite")  # written without its rate, which is then searched anew
    return GatePlan(arguments, ("calibrate", *words, *_speed_words(options), "--out", str(out)), out)


def _fits(calibration: Calibration, options: argparse.Namespace, sampling: Sampling) -> bool:
    """Whether a run with these options may use it: solved for the rate and gate, same form of prompts and decoding."""
    arguments = ModelArguments.parse({**options.model_args, "target_rate": options.target_rate})
    try:
        rule = arguments.kappa_rule or KAPPA_RULES[0]
        calibration.target(options.target_rate, arguments.score or "ce", rule, arguments.window)
    except CalibrationError:
        return False
    thinking = None if options.enable_thinking is None else options.enable_thinking == "True"
    chat = calibration.prompts.get("chat_template")
    form = chat == options.apply_chat_template and (not chat or calibration.prompts.get("enable_thinking") == thinking)
    settings = ("temperature",) if sampling.temperature == 0 else ("temperature", "top_p", "top_k")
    same = (math.isclose(calibration.decoding.get(name, math.nan), getattr(sampling, name)) for name in settings)
    return form and all(same)


def _calibrate_words(options: argparse.Namespace, sampling: Sampling, max_gen_toks: int, task: str) -> list[str]:
    """What decides on the content of the file."""
    arguments = options.model_args
    words = ["--prompts", options.prompts or (_HUB_PROMPTS if options.base else str(CALIBRATION_PROMPTS))]
    if options.base:
        words += ["--base", options.base, "--guide", options.guide]
    if options.base or options.prompts:
        words += ["--task", task]
    for name in ("apply_chat_template", "trust_remote_code"):
        words += [f"--{name}"] if getattr(options, name) else []
    for name in ("enable_thinking", "include_path", "dtype", "guide_dtype", "num_prompts", "num_held_out"):
        words += [f"--{name}", str(getattr(options, name))] if getattr(options, name) is not None else []
    for name in ("score", "kappa_rule", "window", "plugins"):
        words += [f"--{name}", arguments[name]] if name in arguments else []
    for name in ("temperature", "top_p", "top_k"):
        words += [f"--{name}", f"{getattr(sampling, name):g}"]
    return [*words, "--max_gen_toks", str(max_gen_toks), "--target_rate", f"{options.target_rate:g}"]


def _speed_words(options: argparse.Namespace) -> list[str]:
    given = {name: getattr(options, name) for name in ("batch_size", "device", "guide_device")}
    return [word for name, value in given.items() if value is not None for word in (f"--{name}", os.fspath(value))]
