"""`--dry_run`: the commands that would run, the memory that they need and, with `--probe`, their hours."""

import argparse
import copy
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.commands._output import WRITERS, Table
from lm_eval_takeover.commands.compare.budget_parameters import CalibrationPlan, plan_calibration
from lm_eval_takeover.commands.compare.calls import plan_calls
from lm_eval_takeover.commands.compare.rows import PlannedRow, plan_rows
from lm_eval_takeover.commands.compare.running import read_call, run_calls
from lm_eval_takeover.commands.compare.workload import TaskLoad, read_workload
from lm_eval_takeover.decoding.costs import count_column_bytes
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.vllm.pair_costs import count_parameters

_ROWS_OF_AUTO = 64
_ASSUMED_RATE = 0.05  # of rows that follow, if the gate of the guided row is set by hand
_TOKENS = 256  # of a sample, in a probe


@dataclass(frozen=True)
class Speed:
    """Passes of (base, guide) per token, and tokens per second of generation."""

    passes: tuple[float, float]
    tokens_per_second: float


def print_estimate(options: argparse.Namespace) -> int:
    """Print the work by task, the hours by row with `--probe`, the memory by model, and all commands in their order."""
    if options.format in ("csv", "json"):
        raise ArgumentError(f"--format {options.format} goes with a comparison; --dry_run prints table, md or latex")
    loads = read_workload(options)
    rows = plan_rows(options)
    plan = plan_calibration(options, rows, loads[0].sampling, max(load.tokens for load in loads), loads[0].task)
    tables = [lay_out_tasks(loads)]
    if options.probe:
        tables.append(lay_out_hours(rows, loads, *probe_rows(options, rows, loads, plan)))
    texts = [WRITERS[options.format](table) for table in (*tables, lay_out_memory(options, rows, loads))]
    sys.stdout.write("\n".join([*texts, list_commands(options, rows, loads, plan)]))
    return 0


def probe_rows(
    options: argparse.Namespace, rows: Sequence[PlannedRow], loads: Sequence[TaskLoad], plan: CalibrationPlan
) -> tuple[dict[str, Speed], dict[str, str]]:
    """By label the speeds, measured on one problem of the first task with short texts, or why a row has none."""
    short = copy.copy(options)
    short.run_dir = Path(options.run_dir) / "probe"
    short.limit, short.tasks = 1.0, [loads[0].task]
    short.gen_kwargs = {**options.gen_kwargs, "max_gen_toks": str(min(_TOKENS, loads[0].tokens))}
    planned, reasons = {}, {}
    for row in rows:
        if row.name == "thinking":
            reasons[row.label] = f"lm-eval's {options.thinking_backend} counts no tokens"
        elif row.rate is not None and plan.words:
            reasons[row.label] = "its calibration is not measured yet"
        else:
            rates = {loads[0].task: options.target_rate or _ASSUMED_RATE} if row.follows else None
            (planned[row.label],) = plan_calls(short, row, plan.calibration, short.tasks, rates)
    run_calls(short, list(planned.values()))
    speeds = {}
    for label, call in planned.items():
        run = read_call(call)
        tokens = run.counts.tokens or 1
        passes = (run.counts.base_passes or 0) / tokens, (run.counts.guide_passes or 0) / tokens
        speeds[label] = Speed(passes, tokens / max(run.seconds or 0.0, 1e-3))
    return speeds, reasons


def lay_out_tasks(loads: Sequence[TaskLoad]) -> Table:
    """The work of each row by task."""
    lines = [
        [load.task, *(f"{n:,}" for n in (load.problems, load.samples, load.requests, load.most_tokens))]
        for load in loads
    ]
    notes = ["Each row does all of this. Tokens at most: every sample at the task's limit."]
    return Table(["Task", "Problems", "Samples", "Requests", "Tokens at most"], lines, notes)


def lay_out_hours(
    rows: Sequence[PlannedRow], loads: Sequence[TaskLoad], speeds: Mapping[str, Speed], reasons: Mapping[str, str]
) -> Table:
    """By row forward passes of both models (prefill apart) and hours, all at most."""
    tokens = sum(load.most_tokens for load in loads)
    lines, hours = [], 0.0
    for row in rows:
        if speed := speeds.get(row.label):
            hours += (own := tokens / speed.tokens_per_second / 3600)
            lines.append([row.label, *(f"{share * tokens:,.0f}" for share in speed.passes), f"{own:,.2f}"])
        else:
            lines.append([row.label, "", "", ""])
    lines.append(["all of these", "", "", f"{hours:,.2f}"])
    notes = [
        "Measured on one problem with short texts and a small batch. Longer texts are slower, larger batches faster."
    ]
    notes += [f"{label} is not measured: {reason}." for label, reason in reasons.items()]
    return Table(["Row", "Base passes at most", "Guide passes at most", "Hours at most"], lines, notes)


def lay_out_memory(options: argparse.Namespace, rows: Sequence[PlannedRow], loads: Sequence[TaskLoad]) -> Table:
    """By model parameters, weights, and keys and values of one batch at the longest texts. No weights are read."""
    names = {"base": options.base or str(DEMO["base"]), "guide": options.guide or str(DEMO["guide"])}
    names |= {row.name: row.arguments["pretrained"] for row in rows if row.name == "thinking"}
    tokens, is_auto = max(load.tokens for load in loads), options.batch_size.startswith("auto")
    batch = _ROWS_OF_AUTO if is_auto else int(options.batch_size)
    lines = []
    for role, name in names.items():
        member = Member(role, name, given=ModelArguments(trust_remote_code=options.trust_remote_code))
        count, text = count_parameters(member), member.config.get_text_config()
        dtype = (options.guide_dtype if role == "guide" else None) or options.dtype
        asked = member.config.dtype if dtype == "auto" else getattr(torch, dtype.removeprefix("torch."), None)
        size = (asked or torch.float32).itemsize
        cache = count_column_bytes(text, text.num_hidden_layers, size) * tokens
        sizes = f"{count * size / 1e9:,.2f} GB", f"{cache / 1e6:,.1f} MB", f"{cache * batch / 1e9:,.2f} GB"
        lines.append([role, f"{count / 1e6:,.1f} M", *sizes])
    notes = [
        f"Cache: keys and values at {tokens:,} new tokens, without the prompt, in a batch of {batch}"
        f"{', the most that batch_size=auto takes' if is_auto else ''}. One row runs at a time. "
        "The rows base and thinking need one model, the others need base and guide."
    ]
    return Table(["Model", "Parameters", "Weights", "Cache / sample", "Cache / batch"], lines, notes)


def list_commands(
    options: argparse.Namespace, rows: Sequence[PlannedRow], loads: Sequence[TaskLoad], plan: CalibrationPlan
) -> str:
    """The commands in their order, as one would type them; a comment marks those that are done."""
    lines = [shlex.join(("lm-eval-takeover", *plan.words))] if plan.words else []
    tasks = [load.task for load in loads]
    for row in rows:
        late = "  # with the rate that the guided row realizes" if row.follows else ""
        rates = dict.fromkeys(tasks, options.target_rate or _ASSUMED_RATE) if row.follows else None
        calls = plan_calls(options, row, plan.calibration, tasks, rates)
        lines += [call.command + ("  # done" if call.is_done() else late) for call in calls]
    return "\n".join(lines) + "\n"
