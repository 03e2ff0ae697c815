"""What a comparison would take: the work by task, the memory by model, and all commands in their order."""

import shlex
import sys
from collections.abc import Sequence

import torch

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.commands._options import PAIR
from lm_eval_takeover.commands._output import WRITERS, Table
from lm_eval_takeover.commands.calibrate.rate_solver import MOST
from lm_eval_takeover.commands.compare.calls import CalibrationPlan, plan_calibration, plan_calls
from lm_eval_takeover.commands.compare.comparison import Comparison
from lm_eval_takeover.commands.compare.rows import PlannedRow
from lm_eval_takeover.commands.compare.running import check_rows
from lm_eval_takeover.commands.compare.workload import TaskLoad, read_workload
from lm_eval_takeover.decoding.costs import count_column_bytes
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.results.kept_rows import THINKING
from lm_eval_takeover.vllm.block_rule import make_empty

_ROWS_OF_AUTO = 64
_ASSUMED_RATE = 0.05  # of rows that follow, if the gate of the guided row is set by hand


def print_estimate(asked: Comparison) -> int:
    rows = check_rows(asked)
    loads = read_workload(asked)
    plan = plan_calibration(asked, rows, loads)
    lines = [shlex.join(("lm-eval-takeover", *plan.words))] if plan.words else []
    rates = {load.task: asked.target_rate or _ASSUMED_RATE for load in loads}
    for row in rows:
        late = "  # with the rate that the guided row realizes" if row.follows else ""
        lines += [call.command + late for call in plan_calls(asked, row, plan, rates)]
    tables = [_lay_out_tasks(loads, plan), _lay_out_memory(asked, rows, loads)]
    sys.stdout.write("\n".join([*map(WRITERS[asked.format], tables), *lines, ""]))
    return 0


def _lay_out_tasks(loads: Sequence[TaskLoad], plan: CalibrationPlan) -> Table:
    lines = []
    for load in loads:
        requests = load.problems * load.samples
        counts = load.problems, load.samples, requests, requests * load.tokens
        lines.append([load.task, *(f"{count:,}" for count in counts)])
    notes = ["Each row does all of these tasks. Tokens at most: every sample at the task's limit."]
    if plan.words:
        lines.append(["calibration", "", "", f"{plan.rollouts:,}", f"{plan.rollouts * plan.max_gen_toks:,}"])
        notes.append(f"Calibration: all prompts once, and for each rate the held-out ones at most {MOST} times.")
    return Table(["Task", "Problems", "Samples", "Requests", "Tokens at most"], lines, notes)


def _lay_out_memory(asked: Comparison, rows: Sequence[PlannedRow], loads: Sequence[TaskLoad]) -> Table:
    """By model parameters, weights, and keys and values of one batch at the longest texts. No weights are read."""
    names = {"base": asked.base or str(DEMO["base"]), "guide": asked.guide or str(DEMO["guide"])}
    names |= {row.name: row.arguments["guide"] for row in rows if row.name == THINKING}
    arguments = ModelArguments.parse(asked.pair)
    trusted = ModelArguments(trust_remote_code=asked.trust_remote_code, dtype=asked.dtype)
    tokens, is_auto = max(load.tokens for load in loads), asked.batch_size.startswith("auto")
    batch = _ROWS_OF_AUTO if is_auto else int(asked.batch_size)
    lines = []
    for role, name in names.items():
        member = Member(role, name, given=arguments.for_role(role) if role in PAIR else trusted)
        count, dtype = int(make_empty(member).num_parameters()), member.given.dtype
        parsed = member.config.dtype if dtype == "auto" else getattr(torch, dtype.removeprefix("torch."), None)
        size = (parsed or torch.float32).itemsize
        cache = count_column_bytes(member.config, size) * tokens
        sizes = f"{count * size / 1e9:,.2f} GB", f"{cache / 1e6:,.1f} MB", f"{cache * batch / 1e9:,.2f} GB"
        lines.append([role, f"{count / 1e6:,.1f} M", *sizes])
    notes = [
        f"Cache: keys and values at {tokens:,} new tokens, without the prompt, in a batch of {batch}"
        f"{', the most that batch_size=auto takes' if is_auto else ''}. One row runs at a time. "
        "The rows base and thinking need one model, the others need base and guide. Weights are those before any quantization."
    ]
    return Table(["Model", "Parameters", "Weights", "Cache / sample", "Cache / batch"], lines, notes)
