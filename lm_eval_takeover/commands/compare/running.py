"""The rows one after the other, those of the pair in one process; then the tables and the picture."""

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_eval_takeover import stopping
from lm_eval_takeover.commands.compare.budget_parameters import CalibrationPlan, find_row_target, plan_calibration
from lm_eval_takeover.commands.compare.calls import Call, plan_calls
from lm_eval_takeover.commands.compare.frontier import describe_costs, describe_frontier
from lm_eval_takeover.commands.compare.rows import LEADERS, PlannedRow, plan_rows
from lm_eval_takeover.commands.compare.tables import write_areas, write_costs
from lm_eval_takeover.commands.compare.worker import CallFailed, start_worker
from lm_eval_takeover.commands.compare.workload import TaskLoad, read_workload
from lm_eval_takeover.commands.leaderboard.formats import describe_board, write_table
from lm_eval_takeover.commands.leaderboard.rows import build_board
from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.results.runs import find_results, read_run
from lm_eval_takeover.storage.locks import Lock, Locked
from lm_eval_takeover.storage.whole_files import make_folder, write_text

TABLE = "leaderboard.json"
WORKER = "lm_eval_takeover.commands.compare.worker"
Done = dict[PlannedRow, list[Call]]


def compare(options: argparse.Namespace) -> int:
    """Run what is not done yet, print the table, keep it in RUN_DIR. Returns the exit status: that of a process that failed."""
    run_dir = options.run_dir
    rows = plan_rows(options)
    stopping.on_stop(lambda: f"what was finished is kept in '{run_dir}', and the same command goes on from there")
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
    thinking = [call.results for row, calls in done.items() for call in calls if row.name == "thinking"]
    board = build_board([call.results for calls in done.values() for call in calls], thinking, None)
    runs = {row: [read_run(find_results(call.results)[-1]) for call in calls] for row, calls in done.items()}
    costs = describe_costs(runs)
    described = json.dumps(describe_board(board) | {"costs": costs}, indent=2) + "\n"
    write_text(options.run_dir / TABLE, described)
    areas = describe_frontier(runs, options.run_dir, options.cost)
    sys.stdout.write(described if options.format == "json" else write_table(board, options.format, ("intervals",)))
    if options.format not in ("json", "csv"):
        sys.stdout.write("\n" + write_costs(costs, options.format))
        sys.stdout.write("\n" + write_areas(areas, options.format, options.cost) if areas else "")


def run_rows(options: argparse.Namespace, rows: Sequence[PlannedRow], loads: Sequence[TaskLoad]) -> Done:
    """All calls by row, done. Rows that follow come last: they get what the guided row realized. Raises CallFailed."""
    plan = plan_calibration(options, rows, loads[0].sampling, max(load.tokens for load in loads), loads[0].task)
    if plan.words:
        _say(options, f"calibration: {shlex.join(('lm-eval-takeover', *plan.words))}")
        log = str(options.run_dir / "calibration.log")
        _run_worker(options, [{"row": "calibration", "words": plan.words, "results": None, "log": log}])
    tasks = [load.task for load in loads]
    kept = _drop_repeated(options, rows, plan)
    planned = {row: plan_calls(options, row, plan.calibration, tasks) for row in kept if not row.follows}
    run_calls(options, [call for calls in planned.values() for call in calls])
    followed = next((read_rates(planned[row], tasks) for row in planned if row.name in LEADERS), {})
    later = {row: plan_calls(options, row, plan.calibration, tasks, followed) for row in kept if row.follows}
    run_calls(options, [call for calls in later.values() for call in calls])
    done = {row: (planned | later)[row] for row in kept}
    for row, calls in done.items():
        if row.method is not None and not any(read_takeover(call.results).get("takeovers") for call in calls):
            _say(options, f"{row.label}: {row.method.policy.donor} wrote nothing")
    return done


def _drop_repeated(options: argparse.Namespace, rows: Sequence[PlannedRow], plan: CalibrationPlan) -> list[PlannedRow]:
    """The rows without those of a method whose budget parameter is where it is for another rate, since it can come no nearer."""
    calibration, seen, kept = plan.read(), set[tuple[str, float]](), list[PlannedRow]()
    for row in rows:
        if calibration is not None and row.rate is not None:
            target = find_row_target(calibration, row, options)
            if not target.is_reached:
                nearest = f"the nearest rate that {row.word} can reach on the calibration prompts is {target.realized_rate:.1%}"
                print(f"{row.label}: {nearest}", file=sys.stderr)
            if (row.word, target.value) in seen:
                kept[-1] = replace(kept[-1], covers=row.rate)
                continue
            seen.add((row.word, target.value))
        kept.append(row)
    return kept


def run_calls(options: argparse.Namespace, calls: Sequence[Call]) -> None:
    """Those that are not done: the pair's in one process, so that it is loaded once, each other one in its own."""
    for call in calls:
        _say(options, f"{call.row}: {'done before' if call.is_done() else call.command}")
    todo = [call for call in calls if not call.is_done()]
    together = [call for call in todo if not call.alone]
    for batch in [*([together] if together else []), *([call] for call in todo if call.alone)]:
        described = [{"row": c.row, "words": c.words, "results": str(c.results), "log": str(c.log)} for c in batch]
        _run_worker(options, described)


def _run_worker(options: argparse.Namespace, calls: Sequence[Mapping[str, Any]]) -> None:
    path = Path(options.run_dir) / "calls.json"
    write_text(path, json.dumps(calls))
    start_worker([WORKER, str(path), *(["--quiet"] if options.quiet else [])])


def _say(options: argparse.Namespace, text: str) -> None:
    if not options.quiet:
        print(text, file=sys.stderr)


def read_takeover(results: Path) -> dict[str, Any]:
    """What the run says of itself; empty for other model types."""
    document = json.loads(find_results(results)[-1].read_text())
    found: dict[str, Any] = document["config"].get("takeover") or {}
    return found


def read_rates(calls: Sequence[Call], tasks: Sequence[str]) -> Mapping[str, float]:
    """The realized rate of each task."""
    takeover = read_takeover(calls[0].results)
    return {task: takeover["per_task"][task]["realized_rate"] for task in tasks}
