"""The calibration of a comparison: one that fits, or the options of `calibrate` that measure it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lm_eval_takeover.arguments import KINDS, join_arguments, write_words
from lm_eval_takeover.calibration.commands import RunTask, calibration_command
from lm_eval_takeover.calibration.files import Calibration, Target, find_packaged, find_target, read_calibration
from lm_eval_takeover.commands._options import LOADING, PAIR
from lm_eval_takeover.commands.calibrate.rollouts import MOST
from lm_eval_takeover.commands.compare.comparison import Comparison
from lm_eval_takeover.commands.compare.rows import PlannedRow
from lm_eval_takeover.commands.compare.worker import CALIBRATE, Call
from lm_eval_takeover.commands.compare.workload import TaskLoad
from lm_eval_takeover.demo import prompts_for
from lm_eval_takeover.errors import CalibrationError
from lm_eval_takeover.method.registry import digest_plugins
from lm_eval_takeover.pair.gate_choice import CalibrationFit, make_command
from lm_eval_takeover.pair.pair import Pair, load_pair
from lm_eval_takeover.runs.identity import describe_member, digest_task
from lm_eval_takeover.storage.digests import digest_of, digest_path

_HUB_PROMPTS = "openai/gsm8k:main"  # what the paper calibrates on (appendix A.1)
_READ = (
    "direction", "apply_chat_template", "trust_remote_code", "enable_thinking", "field", "dtype", "guide_dtype", "num_prompts",
    "num_held_out", "kappa_rule", "window", "plugins",
)  # fmt: skip
_SPEED = ("batch_size", "device", "guide_device")


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
    options |= {name: asked.arguments[name] for name in _SPEED if name in asked.arguments}
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
    if rate is None or row.method is None:
        return None
    method, task = row.method, RunTask(asked.tasks[0], asked.harness.get("include_path"))
    command = make_command(replace(row.arguments, calibration=asked.calibration), method, task)
    return find_target(calibration, rate, method.settings, method.budget_parameter.name, command)
