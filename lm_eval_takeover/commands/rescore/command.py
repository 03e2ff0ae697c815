import argparse
from pathlib import Path

from lm_eval_takeover.commands._options import add_shared, check_include_path

HELP = "judge the stored answers of a run again"
DESCRIPTION = """\
Judge all answers in a run_dir again, with the installed tasks or those of --include_path. Nothing is generated. Results and
samples are written as lm_eval does, and every verdict that changed is listed. Without --output_path these are the run's
verdicts from then on."""
EXAMPLE = """examples:
  lm-eval-takeover rescore runs/math500
  lm-eval-takeover rescore runs/math500 --include_path my-tasks --output_path results/again
  lm-eval-takeover rescore runs/math500 --verifier math_verify
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_dir", type=Path, metavar="RUN_DIR", help="the folder that a run had as run_dir=, or a row of compare")
    tasks = {"default": [], "help": "tasks or groups (default: all tasks of the run)"}
    folder = {"help": "a folder of task files that replace the installed ones"}
    add_shared(parser, "tasks", "include_path", tasks=tasks, include_path=folder)
    judges = "who judges: takeover (the default), or math_verify, that library alone"
    add("--verifier", choices=("takeover", "math_verify"), default="takeover", help=judges)
    out = "folder for the results (default: RUN_DIR/rescored, or RUN_DIR/VERIFIER)"
    add("--output_path", type=Path, metavar="DIR", help=out)


def run(options: argparse.Namespace) -> int:
    check_include_path(options)
    from lm_eval_takeover.commands.rescore.scoring import rescore_all

    return rescore_all(options)
