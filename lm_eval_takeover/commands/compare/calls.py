"""The command of each row, and the places of its results.

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
from pathlib import Path
from typing import Any

from lm_eval_takeover.commands.compare.budget_parameters import CalibrationPlan
from lm_eval_takeover.commands.compare.contents import digest_path, identify_arguments, identify_code
from lm_eval_takeover.commands.compare.rows import PlannedRow, join_arguments, read_shared, write_options
from lm_eval_takeover.commands.compare.workload import TaskLoad
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.results.settings import HARMLESS
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.paths import CALIBRATIONS


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
    arguments |= shared | read_shared(options, row.arguments["policy"])
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
    if row.name != "thinking":
        lasting = {role: str(folder) for role, folder in DEMO.items()} | lasting
    key = digest_of([model, identify_arguments(lasting), words[4:], documents, _identify_method(row, given)])[:8]
    words += write_options(options, "include_path")
    folder = Path(options.run_dir) / row.label
    results, log = folder / f"results-{key}", folder / f"lm_eval-{key}.log"
    batch_size = (options.thinking_batch_size if row.name == "thinking" else None) or options.batch_size
    words += ["--batch_size", batch_size, *write_options(options, "device")]
    words += ["--output_path", str(results), "--log_samples"]
    alone = row.name == "thinking" or given.get("backend", "hf") != "hf"
    return Call(row.label, words, results, log, alone)


def _identify_method(row: PlannedRow, given: Mapping[str, str]) -> list[Any]:
    """The code that writes and judges, a plug-in's too, and the packaged calibrations where one of them is chosen."""
    if row.name == "thinking":
        return identify_code("answers", "tasks")
    sources = [] if row.method is None else [source.digest for source in row.method.policy.sources]
    packaged = None if "calibration" in given else digest_path(CALIBRATIONS)
    return [*identify_code(), sources, packaged]
