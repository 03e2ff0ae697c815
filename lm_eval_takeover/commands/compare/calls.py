"""The calls of a row: each one run of lm-eval with the row's model arguments.

RUN_DIR/calibration-DIGEST.json    if no packaged one fitted
RUN_DIR/ROW/samples                the row's run_dir: its journal and traces
RUN_DIR/ROW/row.json               which of its samples the row is made of, by task (`runs.identity.read_row`)
RUN_DIR/ROW/results                its --output_path; RUN_DIR/ROW/results/TASK for a row with a rate of its own for each task
RUN_DIR/ROW/lm_eval.log            what lm-eval printed
RUN_DIR/leaderboard.json           the table; RUN_DIR/rows.json what `leaderboard`, `report` and `frontier` read
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

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
    folder, calls = asked.run_dir / row.label, []
    arguments = replace(row.arguments, calibration=plan.calibration) if row.is_calibrated else row.arguments
    parts = [(asked.tasks, arguments, "results", "lm_eval.log")]
    if row.follows:
        at = {task: replace(arguments, rate=rate) for task, rate in (followed or {}).items()}
        parts = [([task], at[task], f"results/{task}", f"lm_eval-{task}.log") for task in at]
    for tasks, given, results, log in parts:
        values = given.differing()
        own = {name: values.pop(name) for name in _OF_LM_EVAL if name in values}
        options = {"model": "guided-takeover", "model_args": values, "tasks": tasks, **asked.harness, **own}
        options |= {"output_path": str(folder / results), "log_samples": True}
        alone = row.name == THINKING or given.backend != "hf"
        calls.append(Call(row.label, LM_EVAL, options, folder / log, alone))
    return calls
