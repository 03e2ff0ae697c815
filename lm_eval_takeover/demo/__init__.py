"""The bundled demo pair: a laboratory in which the true decision tokens are known, not a language model.

It has the checkpoints, 200 test puzzles and calibration prompts. Out: paths, problems and prompts. It imports no other folder.
`scripts/puzzle.py` makes the puzzles and knows their decisions; `scripts/train_demo_pair.py` trains the pair again.
"""

import json
from pathlib import Path

FOLDER = Path(__file__).parent
DEMO = {"base": FOLDER / "base", "guide": FOLDER / "guide"}
PROMPT = "Problem: {problem}\nSolution:"  # as in task_configs/takeover_demo.yaml
PROBLEMS = FOLDER / "problems.jsonl"
CALIBRATION_PROMPTS = FOLDER / "calibration_prompts.jsonl"


def problems() -> list[dict[str, str]]:
    """The 200 puzzles of the demo task, each with `problem` and `answer`."""
    return [json.loads(line) for line in PROBLEMS.read_text().splitlines()]


def calibration_prompts() -> list[str]:
    """The 700 prompts that the demo pair is calibrated on; no puzzle of the task is among them."""
    return [json.loads(line)["prompt"] for line in CALIBRATION_PROMPTS.read_text().splitlines()]
