"""The command of each row, and the places of its results.

RUN_DIR/calibration-DIGEST.json    if no packaged one fitted
RUN_DIR/ROW/samples                the row's run_dir: its journal and traces
RUN_DIR/ROW/results-DIGEST         its --output_path, by a digest of all that can change a result
RUN_DIR/ROW/results-DIGEST/call.json   marks a finished call
RUN_DIR/ROW/lm_eval-DIGEST.log     what lm-eval printed
RUN_DIR/leaderboard.json           the table; RUN_DIR/frontier.* the picture
"""

import argparse
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval_takeover.commands.compare.budget_parameters import CalibrationPlan
from lm_eval_takeover.commands.compare.rows import PlannedRow, read_shared, write_options
from lm_eval_takeover.results.settings import HARMLESS
from lm_eval_takeover.storage.digests import digest_of


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
    plans: Sequence[CalibrationPlan],
    tasks: Sequence[str],
    followed: Mapping[str, float] = {},
) -> list[Call]:
    """The calls of one row, one for each calibration; `followed` has the rate of each task for a row that follows.

    A thinking model has no journal. So it gets one call for each task, to keep what is done.
    """
    dtype = None if options.dtype == "auto" else options.dtype
    shared = {"dtype": dtype, "trust_remote_code": options.trust_remote_code or None}
    shared["enable_thinking"] = options.enable_thinking
    if row.name == "thinking":
        arguments = row.arguments | shared | options.thinking_args
        return [_make_call(options, row, options.thinking_backend, arguments, [task]) for task in tasks]
    names = ("base", "guide", "guide_device", "guide_dtype")
    arguments = {"model": row.label} | {name: getattr(options, name) for name in names}
    arguments |= shared | read_shared(options, row.arguments["policy"])
    if row.method is not None:
        arguments |= ({"direction": "reverse"} if options.direction == "reverse" else {}) | {"target_rate": row.rate}
    arguments |= row.arguments
    arguments["run_dir"] = Path(options.run_dir) / row.label / "samples"
    parts: list[tuple[Sequence[str], dict[str, Any]]] = [(options.tasks, {})]
    if row.follows:
        parts = [([task], {"rate": followed[task]}) for task in tasks]
    elif row.rate is not None or row.reads_spike_ratio(options):
        parts = [(plan.tasks, {"calibration": plan.calibration}) for plan in plans]
    return [_make_call(options, row, "guided-takeover", arguments | own, some) for some, own in parts]


def _make_call(
    options: argparse.Namespace, row: PlannedRow, model: str, arguments: Mapping[str, Any], tasks: Iterable[str]
) -> Call:
    given = {name: str(value) for name, value in arguments.items() if value is not None}
    words = ["--model", model, "--model_args", _join(given), "--tasks", ",".join(tasks)]
    words += write_options(options, "apply_chat_template")
    words += ["--gen_kwargs", _join(options.gen_kwargs)] if options.gen_kwargs else []
    words += write_options(options, "limit", "seed", "include_path", "metadata")
    lasting = {name: value for name, value in given.items() if name not in HARMLESS}
    key = digest_of([model, lasting, *words[4:]])[:8]
    folder = Path(options.run_dir) / row.label
    results, log = folder / f"results-{key}", folder / f"lm_eval-{key}.log"
    batch_size = (options.thinking_batch_size if row.name == "thinking" else None) or options.batch_size
    words += ["--batch_size", batch_size, *write_options(options, "device")]
    words += ["--output_path", str(results), "--log_samples"]
    alone = row.name == "thinking" or given.get("backend", "hf") != "hf"
    return Call(row.label, words, results, log, alone)


def _join(values: Mapping[str, str]) -> str:
    """As lm_eval reads it: `name=value,…`, or JSON where a value holds a comma."""
    if any("," in value for value in values.values()):
        return json.dumps(values)
    return ",".join(f"{name}={value}" for name, value in values.items())
