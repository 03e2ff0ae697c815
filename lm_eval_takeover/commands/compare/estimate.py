"""`--dry_run`: the commands that would run, the memory that they need and, with `--probe`, their hours."""

import argparse
import copy
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.calibration.tuning import SPIKE_RATIO
from lm_eval_takeover.commands._options import PAIR
from lm_eval_takeover.commands._output import WRITERS, Table
from lm_eval_takeover.commands.calibrate.rate_solver import MOST
from lm_eval_takeover.commands.compare.budget_parameters import CalibrationPlan, plan_calibrations
from lm_eval_takeover.commands.compare.calls import plan_calls
from lm_eval_takeover.commands.compare.rows import PlannedRow, plan_rows, read_pair
from lm_eval_takeover.commands.compare.running import read_call, run_calls
from lm_eval_takeover.commands.compare.workload import TaskLoad, read_workload
from lm_eval_takeover.decoding.costs import count_column_bytes
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.method.policies import Gated, Random
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.runs.layout import PROBE
from lm_eval_takeover.vllm.block_rule import make_empty

_ROWS_OF_AUTO = 64
_ASSUMED_RATE = 0.05  # of rows that follow, if the gate of the guided row is set by hand
_ASSUMED_TAU = 0.1  # nats, of gates whose calibration is not measured yet
_TOKENS = 256  # of a sample, in a probe


def print_estimate(options: argparse.Namespace) -> int:
    """Print the work by task, the hours by row with `--probe`, the memory by model, and all commands in their order."""
    loads = read_workload(options)
    rows = plan_rows(options)
    plans = plan_calibrations(options, rows, loads)
    hours = [lay_out_hours(rows, loads, plans, *probe_rows(options, rows, loads, plans))] if options.probe else []
    tables = [lay_out_tasks(loads, plans), *hours, lay_out_memory(options, rows, loads)]
    texts = [WRITERS[options.format](table) for table in tables]
    sys.stdout.write("\n".join([*texts, list_commands(options, rows, loads, plans)]))
    return 0


def probe_rows(
    options: argparse.Namespace, rows: Sequence[PlannedRow], loads: Sequence[TaskLoad], plans: Sequence[CalibrationPlan]
) -> tuple[dict[str, float], dict[str, str]]:
    """By label the tokens per second, measured on one problem of the first task with short texts, or why a row has none."""
    short = copy.copy(options)
    short.run_dir = Path(options.run_dir) / PROBE
    short.limit, short.tasks = 1.0, [loads[0].task]
    short.gen_kwargs = {**options.gen_kwargs, "max_gen_toks": str(min(_TOKENS, loads[0].tokens))}
    planned, reasons = {}, {}
    for row in rows:
        is_open = bool(plans[0].words) and (row.rate is not None or row.reads_spike_ratio(options))
        if row.name == "thinking":
            reasons[row.label] = f"lm-eval's {options.thinking_backend} counts no tokens"
        elif (probed := _set_by_hand(row) if is_open else row) is None:
            reasons[row.label] = "its calibration is not measured yet"
        else:
            first, rates = [replace(plans[0], tasks=short.tasks)], {loads[0].task: options.target_rate or _ASSUMED_RATE}
            (planned[row.label],) = plan_calls(short, probed, first, loads[:1], rates)
    run_calls(short, list(planned.values()))
    runs = {label: read_call(call) for label, call in planned.items()}
    return {label: (run.counts.tokens or 0) / max(run.seconds or 0.0, 1e-3) for label, run in runs.items()}, reasons


def _set_by_hand(row: PlannedRow) -> PlannedRow | None:
    """The row without its calibration, which is still to be measured: a gate at a usual tau, or the rate itself."""
    policy = row.method.policy if row.method is not None else None
    if isinstance(policy, Gated) and not policy.scorer.binary:
        own = {name: value for name, value in row.arguments.items() if name != SPIKE_RATIO}
        return replace(row, rate=None, arguments=own | {"tau": _ASSUMED_TAU, "kappa": 0})
    return replace(row, rate=None, arguments=row.arguments | {"rate": row.rate}) if isinstance(policy, Random) else None


def lay_out_tasks(loads: Sequence[TaskLoad], plans: Sequence[CalibrationPlan]) -> Table:
    """The work of each row by task, and that of calibrations."""
    names = ("problems", "samples", "requests", "most_tokens")
    lines = [[load.task, *(f"{getattr(load, name):,}" for name in names)] for load in loads]
    notes = ["Each row does all of these tasks. Tokens at most: every sample at the task's limit."]
    for plan in (plan for plan in plans if plan.words):
        name = f"calibration{f' of {plan.tasks[0]}' if len(plans) > 1 else ''}"
        lines.append([name, "", "", f"{plan.rollouts:,}", f"{plan.rollouts * plan.max_gen_toks:,}"])
        notes[1:] = [f"Calibration: all prompts once, and for each rate the held-out ones at most {MOST} times."]
    return Table(["Task", "Problems", "Samples", "Requests", "Tokens at most"], lines, notes)


def lay_out_hours(
    rows: Sequence[PlannedRow],
    loads: Sequence[TaskLoad],
    plans: Sequence[CalibrationPlan],
    speeds: Mapping[str, float],
    reasons: Mapping[str, str],
) -> Table:
    """By row the speed and the hours, at most; their sum."""
    tokens = sum(load.most_tokens for load in loads)
    hours = {label: tokens / speed / 3600 for label, speed in speeds.items()}
    shown = {label: [f"{speed:,.0f}", f"{hours[label]:,.2f}"] for label, speed in speeds.items()}
    lines = [[row.label, *shown.get(row.label, ["", ""])] for row in rows]
    if speeds and (most := sum(plan.rollouts * plan.max_gen_toks for plan in plans)):
        slowest = min(speeds.values())
        hours["calibration"] = most / slowest / 3600
        lines.append(["calibration", f"{slowest:,.0f}", f"{hours['calibration']:,.2f}"])
    lines.append(["all that are measured" if reasons else "all of these", "", f"{sum(hours.values()):,.2f}"])
    notes = [
        "Measured on one problem with short texts and a small batch. Longer texts are slower, larger batches faster. "
        f"A gate without a calibration is measured at tau={_ASSUMED_TAU} nats."
    ]
    notes += [f"{label} is not measured: {reason}." for label, reason in reasons.items()]
    return Table(["Row", "Tokens/s", "Hours at most"], lines, notes)


def lay_out_memory(options: argparse.Namespace, rows: Sequence[PlannedRow], loads: Sequence[TaskLoad]) -> Table:
    """By model parameters, weights, and keys and values of one batch at the longest texts. No weights are read."""
    names = {"base": options.base or str(DEMO["base"]), "guide": options.guide or str(DEMO["guide"])}
    names |= {row.name: row.arguments["pretrained"] for row in rows if row.name == "thinking"}
    arguments = ModelArguments.parse(read_pair(options))
    trusted = ModelArguments(trust_remote_code=options.trust_remote_code, dtype=options.dtype)
    tokens, is_auto = max(load.tokens for load in loads), options.batch_size.startswith("auto")
    batch = _ROWS_OF_AUTO if is_auto else int(options.batch_size)
    lines = []
    for role, name in names.items():
        member = Member(role, name, given=arguments.for_role(role) if role in PAIR else trusted)
        empty, text, dtype = make_empty(member), member.config.get_text_config(), member.given.dtype
        count = int(empty.num_parameters())
        parsed = member.config.dtype if dtype == "auto" else getattr(torch, dtype.removeprefix("torch."), None)
        size = (parsed or torch.float32).itemsize
        cache = count_column_bytes(text, text.num_hidden_layers, size) * tokens
        sizes = f"{_count_bytes(member, empty, size) / 1e9:,.2f} GB", f"{cache / 1e6:,.1f} MB", f"{cache * batch / 1e9:,.2f} GB"
        lines.append([role, f"{count / 1e6:,.1f} M", *sizes])
    notes = [
        f"Cache: keys and values at {tokens:,} new tokens, without the prompt, in a batch of {batch}"
        f"{', the most that batch_size=auto takes' if is_auto else ''}. One row runs at a time. "
        "The rows base and thinking need one model, the others need base and guide."
    ]
    return Table(["Model", "Parameters", "Weights", "Cache / sample", "Cache / batch"], lines, notes)


def _count_bytes(member: Member, empty: Any, size: int) -> float:
    """Of the weights: the layers in the bits of their quantization, if they have one, and all else in the dtype."""
    given, own = member.given, member.given.quantization_config or getattr(member.config, "quantization_config", None) or {}
    asked = {name: getattr(given, name) or own.get(name) for name in ("load_in_4bit", "load_in_8bit")}
    bits = 4 if asked["load_in_4bit"] else 8 if asked["load_in_8bit"] or own.get("quant_method") == "fp8" else own.get("bits")
    total = empty.num_parameters() * size
    if not bits:
        return float(total)
    head = empty.get_output_embeddings()
    layers = sum(m.weight.numel() for m in empty.modules() if isinstance(m, torch.nn.Linear) and m is not head)
    return float(total - layers * (size - bits / 8))


def list_commands(
    options: argparse.Namespace, rows: Sequence[PlannedRow], loads: Sequence[TaskLoad], plans: Sequence[CalibrationPlan]
) -> str:
    """The commands in their order, as one would type them; a comment marks those that are done."""
    lines = [shlex.join(("lm-eval-takeover", *plan.words)) for plan in plans if plan.words]
    rates = {load.task: options.target_rate or _ASSUMED_RATE for load in loads}
    for row in rows:
        late = "  # with the rate that the guided row realizes" if row.follows else ""
        calls = plan_calls(options, row, plans, loads, rates)
        lines += [call.command + ("  # done" if call.is_done() else late) for call in calls]
    return "\n".join(lines) + "\n"
