"""The options of `rescore`."""

import argparse
from pathlib import Path
from typing import get_args

from lm_eval_takeover.commands._options import add_shared, check_include_path
from lm_eval_takeover.errors import nearest

HELP = "judge the stored answers of a run again"
DESCRIPTION = """\
Judge all answers in a run_dir again, with the installed tasks or those of --include_path. Nothing is generated. Results and
samples are written as lm_eval does, and every verdict that changed is listed."""
EXAMPLE = """examples:
  lm-eval-takeover rescore runs/math500
  lm-eval-takeover rescore runs/math500 --include_path my-tasks --output_path results/again
  lm-eval-takeover rescore runs/math500 --verifier math_verify,boxed,last_number,exact_match
"""
_VERIFIERS = (
    "who judges, one or more: takeover (the default); math_verify, that library alone; boxed, which reads boxes alone; "
    "last_number; exact_match, letter by letter"
)


def _read_verifiers(text: str) -> list[str]:
    from lm_eval_takeover.answers.samples import Verifier

    names = list(dict.fromkeys(text.split(",")))
    if wrong := [name for name in names if name not in get_args(Verifier)]:
        raise argparse.ArgumentTypeError(f"'{wrong[0]}' is no verifier; {nearest(wrong[0], get_args(Verifier))}")
    return names


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_dir", type=Path, metavar="RUN_DIR", help="the folder that a run had as run_dir=, or a row of compare")
    tasks = {"default": [], "help": "tasks or groups (default: all tasks of the run)"}
    folder = {"help": "a folder of task files that replace the installed ones"}
    add_shared(parser, "tasks", "include_path", tasks=tasks, include_path=folder)
    add("--verifier", type=_read_verifiers, metavar="NAME,…", default=["takeover"], help=_VERIFIERS)
    out = "folder for the results (default: RUN_DIR/rescored, or RUN_DIR/VERIFIER); each of several has a folder in it"
    add("--output_path", type=Path, metavar="DIR", help=out)


def run(options: argparse.Namespace) -> int:
    check_include_path(options)
    from lm_eval_takeover.commands.rescore.scoring import rescore_all

    return rescore_all(options)
