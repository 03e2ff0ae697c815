"""`--dry_run`: which commands would run, and what they would take. An estimate says what it stands on, or is left out."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval_takeover.commands._tables import WRITERS, Table
from lm_eval_takeover.commands.compare.calls import plan_calls
from lm_eval_takeover.commands.compare.knobs import CalibrationPlan, plan_calibration
from lm_eval_takeover.commands.compare.memory import describe_memory
from lm_eval_takeover.commands.compare.probe import ASSUMED_RATE, Measured, probe_rows
from lm_eval_takeover.commands.compare.rows import Row, plan_rows
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
    planned = plan_rows(options)
    plan = plan_calibration(options, planned, loads[0].sampling, max(load.tokens for load in loads), loads[0].task)
    measured = probe_rows(options, planned, loads, plan) if options.probe else {}
    rows = [estimate_row(row, options, loads, measured.get(row.label)) for row in planned]
    write = WRITERS[options.format]
    sys.stdout.write("\n".join([
        write(_lay_out_tasks(planned, loads)),
        write(_lay_out_rows(rows, list_notes(options, planned, measured, plan))),
        write(describe_memory(options, loads)),
        list_commands(options, planned, loads, plan),
    ]))  # fmt: skip
    return 0


def estimate_row(
    row: Row, options: argparse.Namespace, loads: Sequence[TaskLoad], measured: Measured | None = None
) -> RowEstimate:
    """What one row writes and reads; passes and speed as measured where they were."""
    requests = sum(load.requests for load in loads)
    tokens = sum(load.requests * min(options.mean_tokens or load.tokens, load.tokens) for load in loads)
    passes = measured.passes if measured else _assume_passes(row, options.target_rate if row.follows else row.rate)
    speeds: Mapping[str, float] = options.tokens_per_second
    rest = speeds.get(row.name, speeds.get("", measured.speed if measured else None))
    speed = speeds.get(row.label, rest)
    counts = [None if share is None else share * tokens for share in passes]
    return RowEstimate(
        row.label, requests, tokens, counts[0], counts[1], None if speed is None else tokens / speed / 3600
    )


_ALONE: Mapping[str, tuple[float | None, float | None]] = {"base": (1.0, 0.0)}  # the guide's own follow from drafts


def _assume_passes(row: Row, rate: float | None) -> tuple[float | None, float | None]:
    """Passes of (base, guide) per token.

    A policy that drafts: `E = (1 - (1 - g)^k) / g` tokens stand of a draft of `k = 1 / g`. One that asks the donor where it takes
    over alone: a pass of the host for each token, and one of the donor for each takeover.
    """
    if row.method is None or rate is None:
        return _ALONE.get(row.name, (None, None))
    host, donor = (1 / _STANDS, rate / _STANDS) if row.method.policy.drafts else (1.0, rate)
    if row.method.policy.needs_donor_length:  # the first tokens are the donor's
        host = 1 - rate
    return (host, donor) if row.method.policy.host == "base" else (donor, host)


def list_notes(
    options: argparse.Namespace, rows: Sequence[Row], measured: Mapping[str, Measured], plan: CalibrationPlan
) -> list[str]:
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
            "Passes of rows that draft: a takeover at every 1/rate-th token, drafts as long; how often the guide would "
            "accept a draft is not known before a run. --probe measures both."
        )
    if not options.tokens_per_second and not measured:
        notes.append("Hours need --tokens_per_second, or --probe.")
    if plan.words:
        rates = sum(row.rate is not None for row in rows)
        notes.append(
            f"Calibration, in addition: {options.num_prompts} rollouts of the host, each read once by the donor, and for each of "
            f"{rates} rates up to 12 searches over {options.num_held_out} rollouts, 2 or 3 as a rule."
        )
    return notes


def list_commands(
    options: argparse.Namespace, rows: Sequence[Row], loads: Sequence[TaskLoad], plan: CalibrationPlan
) -> str:
    """The commands in their order, as one would type them; done ones are named."""
    lines = [shlex.join(("lm-eval-takeover", *plan.words))] if plan.words else []
    tasks = [load.task for load in loads]
    assumed = dict.fromkeys(tasks, options.target_rate or ASSUMED_RATE)
    for row in rows:
        for call in plan_calls(options, row, plan.calibration, tasks, assumed if row.follows else None):
            late = "  # with the rate that the guided row realizes" if row.follows else ""
            lines.append(call.command + ("  # done" if call.is_done() else late))
    return "\n".join(lines) + "\n"


def _lay_out_tasks(rows: Sequence[Row], loads: Sequence[TaskLoad]) -> Table:
    columns = ["Task", "Problems", "Samples", "Requests", "Tokens at most"]
    lines = [
        [
            load.task,
            *(f"{value:,}" for value in (load.problems, load.samples, load.requests, load.requests * load.tokens)),
        ]
        for load in loads
    ]
    return Table(columns, lines, [f"Of each of {len(rows)} rows: {', '.join(row.label for row in rows)}."])


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
