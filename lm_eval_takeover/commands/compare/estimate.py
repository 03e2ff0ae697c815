"""`--dry_run`: which commands would run, and what they would take. An estimate says what it stands on, or is left out."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval_takeover.commands._tables import WRITERS, Table
from lm_eval_takeover.commands.compare.calls import ASSUMED_RATE, plan_calls
from lm_eval_takeover.commands.compare.gate import GatePlan, plan_gate
from lm_eval_takeover.commands.compare.memory import describe_memory
from lm_eval_takeover.commands.compare.probe import Measured, probe_rows
from lm_eval_takeover.commands.compare.workload import TaskLoad, read_workload
from lm_eval_takeover.errors import ArgumentError

_STANDS = 1 - 1 / 2.718281828  # of a draft of 1 / g tokens that ends with probability g at each: (1 - (1 - g)^(1/g))


@dataclass(frozen=True)
class RowEstimate:
    """New tokens, forward passes of one row (prefill apart) of both models, and hours; None where it is not known."""

    row: str
    requests: int
    tokens: int
    base_passes: float | None
    guide_passes: float | None
    hours: float | None


def print_estimate(options: argparse.Namespace) -> int:
    """Print the calls in their order, the work by task, the estimate by row, memory, and what all of it stands on."""
    if options.format in ("csv", "json"):
        raise ArgumentError(f"--format {options.format} goes with a comparison; --dry_run prints table, md or latex")
    loads = read_workload(options)
    plan = plan_gate(options, loads[0].sampling, max(load.tokens for load in loads), loads[0].task)
    measured = probe_rows(options, loads, plan) if options.probe else {}
    rows = [estimate_row(row, options, loads, measured.get(row)) for row in options.rows]
    write = WRITERS[options.format]
    sys.stdout.write("\n".join([
        write(_lay_out_tasks(options, loads)),
        write(_lay_out_rows(rows, list_notes(options, measured, plan))),
        write(describe_memory(options, loads)),
        list_commands(options, loads, plan),
    ]))  # fmt: skip
    return 0


def estimate_row(
    row: str, options: argparse.Namespace, loads: Sequence[TaskLoad], measured: Measured | None = None
) -> RowEstimate:
    """What one row writes and reads; passes and speed as measured where they were."""
    requests = sum(load.requests for load in loads)
    tokens = sum(load.requests * min(options.mean_tokens or load.tokens, load.tokens) for load in loads)
    passes = measured.passes if measured else _assume_passes(row, options.target_rate)
    speeds: Mapping[str, float] = options.tokens_per_second
    speed = speeds.get(row, speeds.get("", measured.speed if measured else None))
    counts = [None if share is None else share * tokens for share in passes]
    return RowEstimate(row, requests, tokens, counts[0], counts[1], None if speed is None else tokens / speed / 3600)


def _assume_passes(row: str, rate: float | None) -> tuple[float | None, float | None]:
    """Passes of (base, guide) per token: `E = (1 - (1 - g)^k) / g` tokens stand of a draft of `k = 1 / g`."""
    if row == "base":
        return 1.0, 0.0
    if row == "guided" and rate is not None:
        return 1 / _STANDS, rate / _STANDS
    if row in ("random", "early") and rate is not None:
        return 1.0 if row == "random" else 1 - rate, rate
    return None, None


def list_notes(options: argparse.Namespace, measured: Mapping[str, Measured], plan: GatePlan) -> list[str]:
    """What the figures stand on."""
    notes = []
    if options.mean_tokens:
        notes.append(
            f"Tokens: --mean_tokens {options.mean_tokens} new ones a sample, or the task's limit where that is less."
        )
    else:
        notes.append(
            "Tokens are at most: every sample at the task's limit. The paper prints no lengths of answers, only this limit of "
            "16,384 new tokens (appendix A.1); --mean_tokens N takes a mean of your own."
        )
    if measured:
        notes.append(
            f"Measured by --probe on {', '.join(measured)}: one problem, short texts, a small batch. Longer texts are slower, "
            "larger batches faster."
        )
    else:
        notes.append(
            "Passes of the guided row: a takeover at every 1/rate-th token, drafts as long; how often the guide would "
            "accept a draft is not known before a run. --probe measures both."
        )
    if not options.tokens_per_second and not measured:
        notes.append("Hours need --tokens_per_second, or --probe.")
    if plan.words:
        count = options.num_prompts + options.num_held_out
        notes.append(
            f"Calibration, in addition: {options.num_prompts} rollouts of the base, each read once by the guide, and up to 12 "
            f"searches over {options.num_held_out} guided ones ({count} prompts)."
        )
    return notes


def list_commands(options: argparse.Namespace, loads: Sequence[TaskLoad], plan: GatePlan) -> str:
    """The commands in their order, as one would type them; done ones are named."""
    lines = [shlex.join(("lm-eval-takeover", *plan.words))] if plan.words else []
    tasks = [load.task for load in loads]
    for row in options.rows:
        rate = options.target_rate or ASSUMED_RATE
        for call in plan_calls(options, row, plan.arguments, rate, tasks):
            late = "  # with the rate that the guided row realizes" if row in ("random", "early") else ""
            lines.append(call.command + ("  # done" if call.is_done() else late))
    return "\n".join(lines) + "\n"


def _lay_out_tasks(options: argparse.Namespace, loads: Sequence[TaskLoad]) -> Table:
    columns = ["Task", "Problems", "Samples", "Requests", "Tokens at most"]
    lines = [
        [
            load.task,
            *(f"{value:,}" for value in (load.problems, load.samples, load.requests, load.requests * load.tokens)),
        ]
        for load in loads
    ]
    return Table(columns, lines, [f"Of each of {len(options.rows)} rows: {', '.join(options.rows)}."])


def _lay_out_rows(rows: Sequence[RowEstimate], notes: list[str]) -> Table:
    def show(value: float | None, form: str = ",.0f") -> str:
        return "-" if value is None else format(value, form)

    lines = [
        [
            row.row,
            f"{row.requests:,}",
            f"{row.tokens:,}",
            show(row.base_passes),
            show(row.guide_passes),
            show(row.hours, ",.2f"),
        ]
        for row in rows
    ]
    known: list[Any] = [row.hours for row in rows if row.hours is not None]
    if len(known) == len(rows):
        lines.append(
            [
                "all",
                f"{sum(r.requests for r in rows):,}",
                f"{sum(r.tokens for r in rows):,}",
                "",
                "",
                show(sum(known), ",.2f"),
            ]
        )
    return Table(["Row", "Requests", "Tokens", "Base passes", "Guide passes", "Hours"], lines, notes)
