"""`compare` at work: the rows one after the other, those of the pair in one process; then the tables. With `--dry_run` the
commands, and the memory that they need.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lm_eval_takeover import stopping
from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.calibration.files import find_calibration, note_tasks
from lm_eval_takeover.commands._options import PAIR
from lm_eval_takeover.commands._output import WRITERS, Table, write_json
from lm_eval_takeover.commands.calibrate.rate_solver import MOST
from lm_eval_takeover.commands.compare.calls import CalibrationPlan, Call, find_row_target, plan_calibration, plan_calls
from lm_eval_takeover.commands.compare.contents import TaskLoad, read_workload
from lm_eval_takeover.commands.compare.rows import (
    DRAFTED,
    LEADERS,
    ComparedRow,
    PlannedRow,
    describe_costs,
    plan_rows,
    read_pair,
    write_costs,
    write_kept_rows,
)
from lm_eval_takeover.commands.compare.worker import CallFailed, start_worker
from lm_eval_takeover.commands.leaderboard.formats import describe_board, write_table
from lm_eval_takeover.commands.leaderboard.rows import build_board
from lm_eval_takeover.decoding.costs import count_column_bytes
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.results.files import Run, find_results, read_run
from lm_eval_takeover.runs.layout import ROW
from lm_eval_takeover.storage.locks import Lock, Locked
from lm_eval_takeover.storage.whole_files import make_folder, write_text
from lm_eval_takeover.vllm.block_rule import make_empty

Done = dict[ComparedRow, list[Run]]  # by row the runs of its calls
_ROWS_OF_AUTO = 64
_ASSUMED_RATE = 0.05  # of rows that follow, if the gate of the guided row is set by hand


def compare(options: argparse.Namespace) -> int:
    """Run what is not done yet, then print and keep the tables. Returns the exit status: 0, or that of a failed process."""
    run_dir = options.run_dir
    note_tasks(options.tasks, options.include_path)
    rows = plan_rows(options)
    stopping.on_stop_in(run_dir)
    try:
        make_folder(run_dir)
        lock = Lock(run_dir / "compare.lock")
    except Locked as holder:
        raise RunDirError(f"run_dir '{run_dir}' is in use by {holder}; wait for it, or give another") from None
    except OSError as error:
        raise RunDirError(f"run_dir '{run_dir}' cannot be written: {error}") from error
    try:
        done = run_rows(options, rows, read_workload(options))
    except CallFailed as failed:
        print(f"a row failed; what was finished is kept in '{run_dir}'", file=sys.stderr)
        return failed.status
    finally:
        lock.release()
    _print_tables(options, done)
    return 0


def _print_tables(options: argparse.Namespace, done: Done) -> None:
    thinking = [run.source.parent for row, runs in done.items() for run in runs if row.name == "thinking"]
    hidden = DRAFTED if "guide" in {row.name for row in done} else ""  # both have one text
    shown = [row for row in done if row.name != hidden]
    labels = {run.source.parent: row.label for row in shown for run in done[row]}
    board = build_board(list(labels), thinking, None, labels)
    places = {folder.resolve(): place for place, folder in enumerate(labels)}  # tables have the order of --rows
    board = replace(board, rows=sorted(board.rows, key=lambda row: places[row.results.resolve().parent] if row.results else 0))
    costs = describe_costs(done)
    described = write_json(describe_board(board) | {"costs": costs})
    write_text(options.run_dir / "leaderboard.json", described)
    write_kept_rows(options.run_dir, done)
    sys.stdout.write(described if options.format == "json" else write_table(board, options.format, ("intervals",)))
    if options.format not in ("json", "csv"):
        host = next((row.host for row in done if row.host), "base")
        followers = [row.label for row in done if row.follows]
        sys.stdout.write("\n" + write_costs(costs, followers, options.format, host))


def run_rows(options: argparse.Namespace, rows: Sequence[PlannedRow], loads: Sequence[TaskLoad]) -> Done:
    """Run all calls and read what they left. Rows that follow run last. Raises CallFailed."""
    plan = plan_calibration(options, rows, loads)
    if plan.words:
        _say(options, f"calibration: {shlex.join(('lm-eval-takeover', *plan.words))}")
        log = Path(str(plan.calibration)).with_suffix(".log")
        _run_worker(options, [{"row": "calibration", "words": plan.words, "results": None, "log": log}])
    kept = _drop_repeated(options, rows, plan)
    done, rates = Done(), dict[str, float]()
    for late in (False, True):
        calls: dict[ComparedRow, list[Call]] = {
            row: plan_calls(options, row, plan, loads, rates) for row in kept if row.follows is late
        }
        run_calls(options, [call for of_row in calls.values() for call in of_row])
        done |= {row: [read_run(find_results(call.results)[-1]) for call in of_row] for row, of_row in calls.items()}
        leader = next((runs for row, runs in done.items() if row.name in LEADERS), [])
        rates = {task: result.counts.realized_rate or 0.0 for run in leader for task, result in run.tasks.items()}
    for row in kept:  # which samples of its run_dir it is made of, as calls with other settings leave their own there
        runs = [run for run in done[row] if run.takeover]
        own = {task: run.takeover["per_task"][task].get("identity") for run in runs for task in run.tasks}
        if own and all(own.values()):
            write_text(options.run_dir / row.label / ROW, write_json(own))
    return {row: done[row] for row in kept}


def _drop_repeated(options: argparse.Namespace, rows: Sequence[PlannedRow], plan: CalibrationPlan) -> list[PlannedRow]:
    """Leave out rows of a method that cannot reach a rate, if the nearest one is there already."""
    calibration = find_calibration(plan.calibration)[0] if plan.calibration else None
    seen, kept = dict[tuple[str, float], int](), list[PlannedRow]()
    for row in rows:
        target = find_row_target(calibration, row, options) if calibration else None
        if target is None:
            kept.append(row)
            continue
        if not target.is_reached:
            nearest = f"{row.word} can reach on the calibration prompts is {target.realized_rate:.1%}"
            print(f"{row.label}: the nearest rate that {nearest}", file=sys.stderr)
        if (same := seen.setdefault((row.word, target.value), len(kept))) == len(kept):
            kept.append(row)
        else:
            kept[same] = replace(kept[same], covers=row.rate)
    return kept


def run_calls(options: argparse.Namespace, calls: Sequence[Call]) -> None:
    """Run those that are not done. Calls of the pair share one process, which loads it once."""
    for call in calls:
        _say(options, f"{call.row}: {'done before' if call.is_done() else call.command}")
    todo = [call for call in calls if not call.is_done()]
    batches = [call for call in todo if not call.alone], *([call] for call in todo if call.alone)
    for batch in filter(None, batches):
        _run_worker(options, [vars(call) for call in batch])


def _run_worker(options: argparse.Namespace, calls: Sequence[Mapping[str, Any]]) -> None:
    path = Path(options.run_dir) / "calls.json"
    write_text(path, json.dumps(calls, default=str))
    start_worker([f"{__package__}.worker", str(path), *(["--quiet"] if options.quiet else [])])


def _say(options: argparse.Namespace, text: str) -> None:
    if not options.quiet:
        print(text, file=sys.stderr)


# What a comparison would take.


def print_estimate(options: argparse.Namespace) -> int:
    """Print the work by task, the memory by model, and all commands in their order; a comment marks those that are done."""
    loads = read_workload(options)
    rows = plan_rows(options)
    plan = plan_calibration(options, rows, loads)
    lines = [shlex.join(("lm-eval-takeover", *plan.words))] if plan.words else []
    rates = {load.task: options.target_rate or _ASSUMED_RATE for load in loads}
    for row in rows:
        late = "  # with the rate that the guided row realizes" if row.follows else ""
        calls = plan_calls(options, row, plan, loads, rates)
        lines += [call.command + ("  # done" if call.is_done() else late) for call in calls]
    tables = [_lay_out_tasks(loads, plan), _lay_out_memory(options, rows, loads)]
    sys.stdout.write("\n".join([*map(WRITERS[options.format], tables), *lines, ""]))
    return 0


def _lay_out_tasks(loads: Sequence[TaskLoad], plan: CalibrationPlan) -> Table:
    """The work of each row by task, and that of the calibration."""
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


def _lay_out_memory(options: argparse.Namespace, rows: Sequence[PlannedRow], loads: Sequence[TaskLoad]) -> Table:
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
        empty, dtype = make_empty(member), member.given.dtype
        count = int(empty.num_parameters())
        parsed = member.config.dtype if dtype == "auto" else getattr(torch, dtype.removeprefix("torch."), None)
        size = (parsed or torch.float32).itemsize
        cache = count_column_bytes(member.config, size) * tokens
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
    eight = own.get("load_in_8bit") or own.get("quant_method") == "fp8"
    four, eight = given.load_in_4bit or own.get("load_in_4bit"), given.load_in_8bit or eight
    bits = 4 if four else 8 if eight else own.get("bits")
    total = empty.num_parameters() * size
    if not bits:
        return float(total)
    head = empty.get_output_embeddings()
    layers = sum(m.weight.numel() for m in empty.modules() if isinstance(m, torch.nn.Linear) and m is not head)
    return float(total - layers * (size - bits / 8))
