"""The bundled demo pair: a laboratory in which the true decision tokens are known, not a language model.

It has the checkpoints, 200 test puzzles, 100 graded ones and calibration prompts for both. Out: paths, problems and prompts. It
imports no other folder. `scripts/puzzle.py` and `scripts/graded_puzzle.py` make the puzzles and know their decisions;
`scripts/train_demo_pair.py` trains the pair again.
"""

import json
from pathlib import Path

FOLDER = Path(__file__).parent
DEMO = {"base": FOLDER / "base", "guide": FOLDER / "guide"}
PROMPT = "Problem: {problem}\nSolution:"  # as in task_configs/takeover_demo.yaml
PROBLEMS = FOLDER / "problems.jsonl"
CALIBRATION_PROMPTS = FOLDER / "calibration_prompts.jsonl"
GRADED_PROBLEMS = FOLDER / "graded_problems.jsonl"
GRADED_PROMPTS = FOLDER / "graded_prompts.jsonl"


def problems(path: Path = PROBLEMS) -> list[dict[str, str]]:
    """The 200 puzzles of the demo task, with `problem` and `answer`. Those of `GRADED_PROBLEMS` also have `given` and `kind`."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def prompts_for(task: str) -> Path:
    """The calibration prompts that are like the problems of this task."""
    return GRADED_PROMPTS if task == "takeover_demo_graded" else CALIBRATION_PROMPTS


def calibration_prompts() -> list[str]:
    """The 700 prompts that the demo pair is calibrated on; no puzzle of the task is among them."""
    return [json.loads(line)["prompt"] for line in CALIBRATION_PROMPTS.read_text().splitlines()]
