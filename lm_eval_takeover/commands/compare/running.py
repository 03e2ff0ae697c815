"""`compare` at work: the rows one after the other, those of the pair in this process, then the tables."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_eval_takeover import stopping
from lm_eval_takeover.calibration.files import find_calibration
from lm_eval_takeover.commands._output import WRITERS, Table, holding, name_roles, show_figure, write_json
from lm_eval_takeover.commands.compare.comparison import Comparison
from lm_eval_takeover.commands.compare.planning import (
    CalibrationPlan,
    check_rows,
    find_row_target,
    plan_calibration,
    read_workload,
)
from lm_eval_takeover.commands.compare.rows import LEADERS, PlannedRow, plan_calls
from lm_eval_takeover.commands.compare.worker import Call, CallFailed, run_apart, run_batch
from lm_eval_takeover.commands.leaderboard.formats import describe_board, write_table
from lm_eval_takeover.commands.leaderboard.rows import build_board
from lm_eval_takeover.results.files import Run, file_date, find_results, join_calls, read_run
from lm_eval_takeover.results.kept_rows import ComparedRow, write_kept_rows
from lm_eval_takeover.results.problems import ReadOptions
from lm_eval_takeover.runs.identity import COUNTS
from lm_eval_takeover.runs.layout import ROW
from lm_eval_takeover.storage.files import write_text


def run_comparison(asked: Comparison) -> int:
    """Run what is not finished, then print and keep the tables. Returns the exit status: 0, or that of a failed process."""
    run_dir = asked.run_dir
    rows = check_rows(asked)
    plan = plan_calibration(asked, rows, read_workload(asked))
    stopping.on_stop_in(run_dir)
    with holding("run_dir", run_dir, "compare.lock") as lock:
        try:
            done = run_rows(asked, rows, plan)
        except (Exception, SystemExit) as error:
            if stopping.find_stop(error) is None and lock.is_in_place():
                print(f"a row failed; what was finished is kept in '{run_dir}'", file=sys.stderr)
            if not isinstance(error, CallFailed):
                raise
            return error.returncode
    write_kept_rows(run_dir, done)
    board = build_board([run_dir], [], None, ReadOptions(group=asked.group))
    counted = {row: {name: getattr(run.counts, name) for name in COUNTS} for row, run in done.items()}
    costs = [{"row": row.label, **counts, "seconds": done[row].seconds} for row, counts in counted.items()]
    described = write_json(describe_board(board) | {"costs": costs})
    write_text(run_dir / "leaderboard.json", described)
    sys.stdout.write(described if asked.format == "json" else write_table(board, asked.format, ("intervals", "same_as_guide")))
    if asked.format not in ("json", "csv"):
        host = next((row.host for row in done if row.host), "base")
        sys.stdout.write("\n" + write_costs(costs, [row.label for row in done if row.follows], asked.format, host))
    return 0


def run_rows(asked: Comparison, rows: Sequence[PlannedRow], plan: CalibrationPlan) -> dict[ComparedRow, Run]:
    """Run all calls and read what they left. Rows that follow run last. Raises CallFailed."""
    if plan.options:
        run_calls(asked, [plan.call])
    kept = _drop_repeated(asked, rows, plan)
    done, rates = dict[ComparedRow, list[Run]](), dict[str, float]()
    for late in (False, True):
        calls = {row: plan_calls(asked, row, plan.calibration, rates) for row in kept if row.follows is late}
        run_calls(asked, [call for of_row in calls.values() for call in of_row])
        for row, of_row in calls.items():
            done[row] = [read_run(max(find_results(Path(call.options["output_path"])), key=file_date)) for call in of_row]
        leaders = [row for row in done if row.name in LEADERS]  # `guided`, else the `ce` that has its rate
        leaders.sort(key=lambda row: (row.name != LEADERS[0], asked.target_rate not in (row.rate, row.covers)))
        led = [result for row in leaders[:1] for run in done[row] for result in run.tasks.items()]
        rates = {task: result.counts.realized_rate or 0.0 for task, result in led}
    for row in kept:
        # Which samples of its run_dir it is made of, as calls with other settings leave their own there.
        own = {task: run.takeover["per_task"][task].get("identity") for run in done[row] for task in run.tasks}
        if own and all(own.values()):
            write_text(asked.run_dir / row.label / ROW, write_json(own))
        newest = {(run.source.parent, file_date(run.source)) for run in done[row]}
        for file in [*(asked.run_dir / row.label / "results").rglob("*.json*")]:
            if (file.parent, file_date(file)) not in newest:  # of an earlier command: its samples are in the journal
                file.unlink()
    places = {row: [str(run.source.parent.relative_to(asked.run_dir)) for run in runs] for row, runs in done.items()}
    return {replace(row, results=places[row]): join_calls(done[row]) for row in kept if done[row]}


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
            nearest = f"{row.word} can reach on the calibration prompts is {target.nearest_rate:.1%}"
            print(f"{row.label}: the nearest rate that {nearest}", file=sys.stderr)
        if (same := seen.setdefault((row.word, target.value), len(kept))) == len(kept):
            kept.append(row)
        else:
            print(f"{row.label}: the same as {kept[same].label}", file=sys.stderr)
            if (row.rate or 0.0) > (kept[same].rate or 0.0):  # not the same rate by another name
                kept[same] = replace(kept[same], covers=row.rate)
    return kept


def run_calls(asked: Comparison, calls: Sequence[Call]) -> None:
    """Run all of them; their journals hold what is finished. Those of the pair run here, where it is loaded once."""
    for call in calls:
        _say(asked, f"{call.row}: {call}")
    if here := [call for call in calls if not call.alone]:
        run_batch(here, quiet=asked.quiet)
    for call in (call for call in calls if call.alone):
        run_apart(call, quiet=asked.quiet)


def _say(asked: Comparison, text: str) -> None:
    if not asked.quiet:
        print(text, file=sys.stderr)


def write_costs(costs: Sequence[Mapping[str, Any]], followers: Sequence[str], format_name: str, host: str) -> str:
    """Tokens, takeovers and passes by row, empty for other model types, and seconds. `followers` are rows that follow guided."""
    numbers = (*COUNTS, "seconds")
    lines = [[row["row"], *(show_figure(row[name], ",.0f") for name in numbers)] for row in costs]
    changed = "Changed: tokens that differ from the base's draw; empty if that is not known. "
    written = (
        f"Takeovers: tokens that the guide wrote. {changed * any(row['changed'] is not None for row in costs)}"
        "Asked: tokens at which the method needs the guide. A pass is one forward call for one sample, without prefill. "
        "Seconds are those of generation; an attempt that was interrupted counts until its last finished sample."
        f"{any(row['seconds'] is None for row in costs) * ' They are empty where samples of another command were used again.'}"
    )
    notes = [name_roles(written, host)]
    notes += [f"{', '.join(followers)}: at the rate that the guided row realized on each task."] if followers else []
    columns = ["Row", *(name.capitalize().replace("_", " ") for name in numbers)]
    return WRITERS[format_name](Table(columns, lines, notes))
