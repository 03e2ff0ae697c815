"""`compare` at work: the rows one after the other, those of the pair in this process; then the tables."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_eval_takeover import stopping
from lm_eval_takeover.calibration.files import find_calibration, note_tasks
from lm_eval_takeover.commands._output import write_json
from lm_eval_takeover.commands.compare.calls import CalibrationPlan, Call, find_row_target, plan_calibration, plan_calls
from lm_eval_takeover.commands.compare.comparison import DRAFTED, Comparison
from lm_eval_takeover.commands.compare.costs import describe_costs, write_costs
from lm_eval_takeover.commands.compare.rows import LEADERS, PlannedRow, plan_rows
from lm_eval_takeover.commands.compare.worker import CallFailed, run_batch, start_worker
from lm_eval_takeover.commands.compare.workload import read_workload
from lm_eval_takeover.commands.leaderboard.formats import describe_board, write_table
from lm_eval_takeover.commands.leaderboard.rows import build_board
from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.method.registry import load_plugins
from lm_eval_takeover.results.files import Run, file_date, find_results, read_run
from lm_eval_takeover.results.kept_rows import ComparedRow, write_kept_rows
from lm_eval_takeover.results.problems import ReadOptions
from lm_eval_takeover.runs.layout import ROW
from lm_eval_takeover.storage.files import Lock, Locked, make_folder, write_text

Done = dict[ComparedRow, list[Run]]  # by row the runs of its calls


def run_comparison(asked: Comparison) -> int:
    """Run what is not finished, then print and keep the tables. Returns the exit status: 0, or that of a failed process."""
    run_dir = asked.run_dir
    rows = check_rows(asked)
    plan = plan_calibration(asked, rows, read_workload(asked))
    stopping.on_stop_in(run_dir)
    try:
        make_folder(run_dir)
        lock = Lock(run_dir / "compare.lock")
    except Locked as holder:
        raise RunDirError(f"run_dir '{run_dir}' is in use by {holder}; wait for it, or give another") from None
    except OSError as error:
        raise RunDirError(f"run_dir '{run_dir}' cannot be written: {error}") from error
    try:
        done = run_rows(asked, rows, plan)
    except (Exception, SystemExit) as error:
        if stopping.find_stop(error) is None:
            print(f"a row failed; what was finished is kept in '{run_dir}'", file=sys.stderr)
        if not isinstance(error, CallFailed):
            raise
        return error.status
    finally:
        lock.release()
    write_kept_rows(run_dir, done)
    hidden = [DRAFTED] if "guide" in {row.name for row in done} else []  # both have one text
    board = build_board([run_dir], [], None, ReadOptions(group=asked.group), hidden)
    costs = describe_costs(done)
    described = write_json(describe_board(board) | {"costs": costs})
    write_text(run_dir / "leaderboard.json", described)
    sys.stdout.write(described if asked.format == "json" else write_table(board, asked.format, ("intervals", "same_as_guide")))
    if asked.format not in ("json", "csv"):
        host = next((row.host for row in done if row.host), "base")
        followers = [row.label for row in done if row.follows]
        sys.stdout.write("\n" + write_costs(costs, followers, asked.format, host))
    return 0


def check_rows(asked: Comparison) -> list[PlannedRow]:
    """The rows. Raises ArgumentError for one that cannot be run, CalibrationError where a given file was not solved for it."""
    note_tasks(asked.tasks, asked.include_path)
    load_plugins(asked.model_args.get("plugins"))
    rows = plan_rows(asked)
    if asked.calibration is not None:
        calibration, _ = find_calibration(asked.calibration)
        for row in rows:
            find_row_target(calibration, row, asked)
    return rows


def run_rows(asked: Comparison, rows: Sequence[PlannedRow], plan: CalibrationPlan) -> Done:
    """Run all calls and read what they left. Rows that follow run last. Raises CallFailed."""
    if plan.words:
        _say(asked, f"calibration: {shlex.join(('lm-eval-takeover', *plan.words))}")
        log = Path(str(plan.calibration)).with_suffix(".log")
        _run_worker(asked, [{"row": "calibration", "words": plan.words, "results": None, "log": log}])
    kept = _drop_repeated(asked, rows, plan)
    done, rates = Done(), dict[str, float]()
    for late in (False, True):
        calls: dict[ComparedRow, list[Call]] = {row: plan_calls(asked, row, plan, rates) for row in kept if row.follows is late}
        run_calls(asked, [call for of_row in calls.values() for call in of_row])
        for row, of_row in calls.items():
            done[row] = [read_run(max(find_results(call.results), key=file_date)) for call in of_row]
        leader = next((runs for row, runs in done.items() if row.name in LEADERS), [])
        rates = {task: result.counts.realized_rate or 0.0 for run in leader for task, result in run.tasks.items()}
    for row in kept:
        # Which samples of its run_dir it is made of, as calls with other settings leave their own there.
        own = {task: run.takeover["per_task"][task].get("identity") for run in done[row] for task in run.tasks}
        if own and all(own.values()):
            write_text(asked.run_dir / row.label / ROW, write_json(own))
        newest = {(run.source.parent, file_date(run.source)) for run in done[row]}
        for file in [*(asked.run_dir / row.label / "results").rglob("*.json*")]:
            if (file.parent, file_date(file)) not in newest:  # of an earlier command: its samples are in the journal
                file.unlink()
    return {row: done[row] for row in kept if done[row]}


def _drop_repeated(asked: Comparison, rows: Sequence[PlannedRow], plan: CalibrationPlan) -> list[PlannedRow]:
    """Leave out rows of a method that cannot reach a rate, if the nearest one is there already."""
    calibration = find_calibration(plan.calibration)[0] if plan.calibration else None
    seen, kept = dict[tuple[str, float], int](), list[PlannedRow]()
    for row in rows:
        target = find_row_target(calibration, row, asked) if calibration else None
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


def run_calls(asked: Comparison, calls: Sequence[Call]) -> None:
    """Run all of them; their journals hold what is finished. Those of the pair run here, where it is loaded once."""
    for call in calls:
        _say(asked, f"{call.row}: {call.command}")
    if here := [vars(call) for call in calls if not call.alone]:
        run_batch(here, quiet=asked.quiet)
    for call in (call for call in calls if call.alone):
        _run_worker(asked, [vars(call)])


def _run_worker(asked: Comparison, calls: Sequence[Mapping[str, Any]]) -> None:
    path = asked.run_dir / "calls.json"
    write_text(path, json.dumps(calls, default=str))
    start_worker([f"{__package__}.worker", str(path), *(["--quiet"] if asked.quiet else [])])


def _say(asked: Comparison, text: str) -> None:
    if not asked.quiet:
        print(text, file=sys.stderr)
