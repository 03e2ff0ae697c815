"""`--dry_run --probe`: speed and passes of the pair's rows, measured on one problem of the first task with short texts."""

import argparse
import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lm_eval_takeover.commands.compare.calls import ASSUMED_RATE, plan_calls
from lm_eval_takeover.commands.compare.gate import GatePlan
from lm_eval_takeover.commands.compare.running import read_takeover, run_call
from lm_eval_takeover.commands.compare.workload import TaskLoad

_TOKENS = 256


@dataclass(frozen=True)
class Measured:
    """Passes of (base, guide) per token, and tokens per second of generation."""

    passes: tuple[float, float]
    speed: float


def probe_rows(options: argparse.Namespace, loads: Sequence[TaskLoad], plan: GatePlan) -> dict[str, Measured]:
    """By row. A guided row needs its calibration, and a thinking model does not count its tokens: both are said and left out."""
    short = copy.copy(options)
    short.run_dir = Path(options.run_dir) / "probe"
    short.limit, short.tasks = 1.0, [loads[0].task]
    short.gen_kwargs = {**options.gen_kwargs, "max_gen_toks": str(min(_TOKENS, loads[0].tokens))}
    found = {}
    for row in options.rows:
        if row == "thinking" or (row == "guided" and plan.words):
            reason = (
                "no calibration yet" if row == "guided" else f"lm-eval's {options.thinking_backend} counts no tokens"
            )
            print(f"{row}: not probed, {reason}", file=sys.stderr)
            continue
        (call,) = plan_calls(short, row, plan.arguments, options.target_rate or ASSUMED_RATE, short.tasks)
        run_call(call)
        said = read_takeover(call.results)
        passes = said["base_passes"] / said["tokens"], said["guide_passes"] / said["tokens"]
        found[row] = Measured(passes, said["tokens"] / max(said["seconds"], 1e-3))
    return found
