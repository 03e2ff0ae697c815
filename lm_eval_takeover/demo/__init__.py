"""The bundled demo pair: a laboratory in which the true decision tokens are known, not a language model."""

from pathlib import Path

FOLDER = Path(__file__).parent
DEMO = {"base": FOLDER / "base", "guide": FOLDER / "guide"}
PROMPT = "Problem: {problem}\nSolution:"  # as in task_configs/takeover_demo.yaml
PROBLEMS = FOLDER / "problems.jsonl"
CALIBRATION_PROMPTS = FOLDER / "calibration_prompts.jsonl"
