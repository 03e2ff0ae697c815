"""`--dry_run --probe`: speed and passes of the pair's rows, measured on one problem of the first task with short texts."""

import argparse
import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lm_eval_takeover.commands.compare.budget_parameters import CalibrationPlan
from lm_eval_takeover.commands.compare.calls import plan_calls
from lm_eval_takeover.commands.compare.rows import Row
from lm_eval_takeover.commands.compare.running import read_takeover, run_calls
from lm_eval_takeover.commands.compare.workload import TaskLoad

ASSUMED_RATE = 0.05  # of rows that follow, before a run whose gate is set by hand
_TOKENS = 256


@dataclass(frozen=True)
class Measured:
    """Passes of (base, guide) per token, and tokens per second of generation."""

    passes: tuple[float, float]
    speed: float


def probe_rows(
    options: argparse.Namespace, rows: Sequence[Row], loads: Sequence[TaskLoad], plan: CalibrationPlan
) -> dict[str, Measured]:
    """By label. A row with a rate needs its calibration, and a thinking model counts no tokens: both are said and left out."""
    short = copy.copy(options)
    short.run_dir = Path(options.run_dir) / "probe"
    short.limit, short.tasks = "1", [loads[0].task]
    short.gen_kwargs = {**options.gen_kwargs, "max_gen_toks": str(min(_TOKENS, loads[0].tokens))}
    assumed = {loads[0].task: options.target_rate or ASSUMED_RATE}
    planned = {}
    for row in rows:
        if row.name == "thinking" or (row.rate is not None and plan.words):
            counts_none = f"lm-eval's {options.thinking_backend} counts no tokens"
            reason = counts_none if row.name == "thinking" else "no calibration yet"
            print(f"{row.label}: not probed, {reason}", file=sys.stderr)
            continue
        (planned[row.label],) = plan_calls(short, row, plan.calibration, short.tasks, assumed if row.follows else None)
    run_calls(short, list(planned.values()))
    found = {}
    for label, call in planned.items():
        said = read_takeover(call.results)
        passes = said["base_passes"] / said["tokens"], said["guide_passes"] / said["tokens"]
        found[label] = Measured(passes, said["tokens"] / max(said["seconds"], 1e-3))
    return found
