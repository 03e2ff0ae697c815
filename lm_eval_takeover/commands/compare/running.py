"""The rows one after the other, each in a process of its own, so that no memory of a GPU stays behind; then the table."""

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval_takeover import stopping
from lm_eval_takeover.commands.compare.calls import Call, plan_calls
from lm_eval_takeover.commands.compare.costs import describe_costs, write_costs
from lm_eval_takeover.commands.compare.gate import plan_gate
from lm_eval_takeover.commands.compare.processes import CallFailed, start
from lm_eval_takeover.commands.compare.workload import TaskLoad, read_workload
from lm_eval_takeover.commands.leaderboard.formats import write_table
from lm_eval_takeover.commands.leaderboard.rows import build_board
from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.results.runs import find_results
from lm_eval_takeover.storage.locks import Lock, Locked
from lm_eval_takeover.storage.whole_files import make_folder, write_text

TABLE = "leaderboard.json"
LOG = "lm_eval.log"  # of a row: all that its processes printed


def compare(options: argparse.Namespace) -> int:
    """Run what is not done yet, print the table, keep it in RUN_DIR. Returns the exit status: that of a process that failed."""
    run_dir = options.run_dir
    stopping.on_stop(lambda: f"what was finished is kept in '{run_dir}', and the same command goes on from there")
    try:
        make_folder(run_dir)
        lock = Lock(run_dir / "compare.lock")
    except Locked as holder:
        raise RunDirError(f"run_dir '{run_dir}' is in use by {holder}; wait for it, or give another") from None
    except OSError as error:
        raise RunDirError(f"run_dir '{run_dir}' cannot be written: {error}") from error
    try:
        calls = run_rows(options, read_workload(options))
    except CallFailed as failed:
        print(f"a row failed; what was finished is kept in '{run_dir}'", file=sys.stderr)
        return failed.status
    finally:
        lock.release()
    thinking = [call.results for call in calls if call.row == "thinking"]
    board = build_board([call.results for call in calls if call.row != "thinking"], thinking, None)
    board["costs"] = describe_costs(calls)
    write_text(run_dir / TABLE, json.dumps(board, indent=2) + "\n")
    sys.stdout.write(write_table(board, options.format, ("intervals",)))
    if options.format not in ("json", "csv"):
        sys.stdout.write("\n" + write_costs(board["costs"], options.format))
    return 0


def run_rows(options: argparse.Namespace, loads: Sequence[TaskLoad]) -> list[Call]:
    """All calls, done. Random takeovers come behind the guided row, whose realized rate they get. Raises CallFailed."""
    gate: dict[str, Any] = {}
    if "guided" in options.rows:
        plan = plan_gate(options, loads[0].sampling, max(load.tokens for load in loads), loads[0].task)
        if plan.words:
            say(options.quiet, f"calibration: {shlex.join(('lm-eval-takeover', *plan.words))}")
            start(
                ["lm_eval_takeover.cli", *plan.words],
                "calibration",
                options.run_dir / "calibration.log",
                quiet=options.quiet,
            )
        gate = plan.arguments
    done: list[Call] = []
    rate = None
    for row in options.rows:
        for call in plan_calls(options, row, gate, rate, [load.task for load in loads]):
            run_call(call, quiet=options.quiet)
            done.append(call)
        if row == "guided":
            rate = read_takeover(done[-1].results)["realized_rate"]
    return done


def say(quiet: bool, line: str) -> None:
    if not quiet:
        print(line, file=sys.stderr)


def run_call(call: Call, *, quiet: bool = False) -> None:
    """Run it unless it is done. What a call that was interrupted has left of its results is removed; its samples stay."""
    if call.is_done():
        say(quiet, f"{call.row}: done before")
        return
    shutil.rmtree(call.results, ignore_errors=True)
    say(quiet, f"{call.row}: {call.command}")
    start(["lm_eval", *call.words], call.row, call.folder / LOG, quiet=quiet)
    call.set_done()
    if call.row in ("guided", "random", "early") and read_takeover(call.results).get("takeovers") == 0:
        say(quiet, f"{call.row}: the guide wrote nothing")


def read_takeover(results: Path) -> dict[str, Any]:
    """What the run says of itself; empty for other model types."""
    document = json.loads(find_results(results)[-1].read_text())
    found: dict[str, Any] = document["config"].get("takeover") or {}
    return found
