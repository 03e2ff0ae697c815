"""`--dry_run`: which commands would run, and what they would take. An estimate says what it stands on, or is left out."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence

from lm_eval_takeover.commands._output import WRITERS, Table
from lm_eval_takeover.commands.compare.budget_parameters import CalibrationPlan, plan_calibration
from lm_eval_takeover.commands.compare.calls import plan_calls
from lm_eval_takeover.commands.compare.memory import describe_memory
from lm_eval_takeover.commands.compare.probe import ASSUMED_RATE, Measured, probe_rows
from lm_eval_takeover.commands.compare.rows import Row, plan_rows
from lm_eval_takeover.commands.compare.workload import TaskLoad, read_workload
from lm_eval_takeover.errors import ArgumentError

_STANDS = 1 - 1 / 2.718281828  # of a draft of 1 / g tokens that ends with probability g at each: (1 - (1 - g)^(1/g))


def print_estimate(options: argparse.Namespace) -> int:
    """Print the calls in their order, the work by task, the estimate by row, memory, and what all of it stands on."""
    if options.format in ("csv", "json"):
        raise ArgumentError(f"--format {options.format} goes with a comparison; --dry_run prints table, md or latex")
    loads = read_workload(options)
    rows = plan_rows(options)
    plan = plan_calibration(options, rows, loads[0].sampling, max(load.tokens for load in loads), loads[0].task)
    measured = probe_rows(options, rows, loads, plan) if options.probe else {}
    notes = list_notes(options, rows, measured, plan)
    tables = [_lay_out_tasks(rows, loads), _lay_out_rows(rows, options, loads, measured, notes)]
    write = WRITERS[options.format]
    texts = [write(table) for table in (*tables, describe_memory(options, loads))]
    sys.stdout.write("\n".join([*texts, list_commands(options, rows, loads, plan)]))
    return 0


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
    notes = [
        f"Tokens: --mean_tokens {options.mean_tokens} new ones a sample, or the task's limit where that is less."
        if options.mean_tokens
        else "Tokens are at most: every sample at the task's limit. The paper prints no lengths of answers, only this limit of "
        "16,384 new tokens (appendix A.1); --mean_tokens N takes a mean of your own.",
        f"Measured by --probe on {', '.join(measured)}: one problem, short texts, a small batch. Longer texts are slower, larger "
        "batches faster."
        if measured
        else "Passes of rows that draft: a takeover at every 1/rate-th token, drafts as long; how often the guide would accept a "
        "draft is not known before a run. --probe measures both.",
    ]
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
    counts = [(load.problems, load.samples, load.requests, load.requests * load.tokens) for load in loads]
    lines = [[load.task, *(f"{value:,}" for value in values)] for load, values in zip(loads, counts, strict=True)]
    return Table(columns, lines, [f"Of each of {len(rows)} rows: {', '.join(row.label for row in rows)}."])


def _lay_out_rows(
    rows: Sequence[Row],
    options: argparse.Namespace,
    loads: Sequence[TaskLoad],
    measured: Mapping[str, Measured],
    notes: list[str],
) -> Table:
    """By row new tokens, forward passes of both models (prefill apart) and hours; sums where all are known."""

    def show(value: float | None, form: str = ",.0f") -> str:
        return "-" if value is None else format(value, form)

    requests = sum(load.requests for load in loads)
    tokens = sum(load.requests * min(options.mean_tokens or load.tokens, load.tokens) for load in loads)
    lines, hours, speeds = [], list[float](), options.tokens_per_second
    for row in rows:
        known = measured.get(row.label)
        passes = known.passes if known else _assume_passes(row, options.target_rate if row.follows else row.rate)
        speed = speeds.get(row.label, speeds.get(row.name, speeds.get("", known.speed if known else None)))
        hours += [tokens / speed / 3600] if speed else []
        counts = [show(None if share is None else share * tokens) for share in passes]
        last = show(hours[-1], ",.2f") if speed else "-"
        lines.append([row.label, f"{requests:,}", f"{tokens:,}", *counts, last])
    if len(hours) == len(rows):
        whole = (f"{len(rows) * count:,}" for count in (requests, tokens))
        lines.append(["all", *whole, "", "", show(sum(hours), ",.2f")])
    return Table(["Row", "Requests", "Tokens", "Base passes", "Guide passes", "Hours"], lines, notes)
