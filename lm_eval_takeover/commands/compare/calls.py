"""The commands of a comparison: the calibration where none fits, the command of each row, and the places of its results.

RUN_DIR/calibration-DIGEST.json    if no packaged one fitted
RUN_DIR/ROW/samples                the row's run_dir: its journal and traces
RUN_DIR/ROW/row.json               which of its samples the row is made of, by task (`runs.identity.read_row`)
RUN_DIR/ROW/results                its --output_path; RUN_DIR/ROW/results/TASK for a row with a rate of its own for each task
RUN_DIR/ROW/lm_eval.log            what lm-eval printed
RUN_DIR/leaderboard.json           the table; RUN_DIR/rows.json what `leaderboard`, `report` and `frontier` read
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lm_eval_takeover.arguments import KINDS, TWINS, ModelArguments
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
from lm_eval_takeover.commands.compare.comparison import Comparison
from lm_eval_takeover.commands.compare.rows import PlannedRow, join_arguments
from lm_eval_takeover.commands.compare.workload import TaskLoad
from lm_eval_takeover.demo import CALIBRATION_PROMPTS, prompts_for
from lm_eval_takeover.errors import CalibrationError
from lm_eval_takeover.method.registry import digest_plugins
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.pair.gate_choice import CalibrationFit, TaskRequest
from lm_eval_takeover.pair.loading import keep_read, load_pair
from lm_eval_takeover.pair.pair import Pair
from lm_eval_takeover.results.kept_rows import THINKING
from lm_eval_takeover.runs.identity import describe_member, digest_task
from lm_eval_takeover.storage.digests import digest_of, digest_path

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
    if asked.calibration is not None or not (wanted or any(row.reads_spike_ratio(asked) for row in rows)):
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
    return find_target(calibration, row.rate, settings, partial(calibration_command, *names, solving=solving))


def _calibrate_words(asked: Comparison, sampling: Sampling, max_gen_toks: int, task: str) -> list[str]:
    """All words that change the content of the file, except the methods."""
    arguments, prompts = asked.model_args, asked.prompts
    words = ["--prompts", prompts or (_HUB_PROMPTS if asked.base else str(prompts_for(task)))]
    words += asked.write("base", "guide")
    words += ["--task", task] if asked.base or prompts else []
    words += ["--direction", asked.direction] if asked.direction != "forward" else []
    words += asked.write("apply_chat_template", "trust_remote_code", "enable_thinking", "include_path")
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
    if row.rate is not None or row.reads_spike_ratio(asked):
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
