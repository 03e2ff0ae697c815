"""The calls of a row: each one run of lm-eval with the row's model arguments.

RUN_DIR/calibration-DIGEST.json    if no packaged one fitted
RUN_DIR/ROW/samples                the row's run_dir: its journal and traces
RUN_DIR/ROW/row.json               which of its samples the row is made of, by task (`runs.identity.read_row`)
RUN_DIR/ROW/results                its --output_path; RUN_DIR/ROW/results/TASK for a row with a rate of its own for each task
RUN_DIR/ROW/lm_eval.log            what lm-eval printed
RUN_DIR/leaderboard.json           the table; RUN_DIR/rows.json what `leaderboard`, `report` and `frontier` read
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.commands.compare.calibration_plan import CalibrationPlan
from lm_eval_takeover.commands.compare.comparison import Comparison
from lm_eval_takeover.commands.compare.rows import PlannedRow
from lm_eval_takeover.commands.compare.worker import CALIBRATE, LM_EVAL, Call
from lm_eval_takeover.method.named import THINKING

_OF_LM_EVAL = ("batch_size", "device")  # model arguments that are options of its own


def plan_calibrate_call(plan: CalibrationPlan) -> Call:
    return Call("calibration", CALIBRATE, plan.options, Path(str(plan.calibration)).with_suffix(".log"), alone=True)


def plan_calls(
    asked: Comparison, row: PlannedRow, plan: CalibrationPlan, followed: Mapping[str, float] | None = None
) -> list[Call]:
    """The calls of one row: one, or for a row that follows one for each task, whose rates `followed` has."""
    folder = asked.run_dir / row.label
    if row.follows:
        at = {task: replace(row.arguments, rate=rate) for task, rate in (followed or {}).items()}
        return [_make_call(asked, row, at[task], [task], folder / "results" / task, f"lm_eval-{task}.log") for task in at]
    arguments = replace(row.arguments, calibration=plan.calibration) if row.is_calibrated else row.arguments
    return [_make_call(asked, row, arguments, asked.tasks, folder / "results", "lm_eval.log")]


def _make_call(
    asked: Comparison, row: PlannedRow, arguments: ModelArguments, tasks: Sequence[str], results: Path, log: str
) -> Call:
    given = arguments.differing()
    own = {name: given.pop(name) for name in _OF_LM_EVAL if name in given}
    options = {"model": "guided-takeover", "model_args": given, "tasks": list(tasks), **asked.harness, **own}
    options |= {"output_path": str(results), "log_samples": True}
    alone = row.name == THINKING or arguments.backend != "hf"
    return Call(row.label, LM_EVAL, options, asked.run_dir / row.label / log, alone)
