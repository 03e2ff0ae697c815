"""The options of `show`."""

import argparse
from pathlib import Path

HELP = "print one answer of a run, with its takeovers"
DESCRIPTION = """\
Print one answer. Takeovers are in brackets, with the token that each replaced: [fox|ant]. The bar is left out if that token
is the same, or is not known. An answer that has brackets of its own gets ⟦fox|ant⟧."""
EXAMPLE = """example:
  lm-eval-takeover show runs/guided --task takeover_demo --doc 3 --sample 0
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_dir", type=Path, metavar="RUN_DIR", help="a run's run_dir; for a folder of compare its guided row")
    add("--task", help="default: the run's only task")
    add("--doc", type=int, default=0, help="lm-eval's doc_id (default: 0)")
    add("--sample", type=int, default=0, help="number of the sample, from 0 (default: 0)")
    add("--tokenizer", help="hub id or local folder, if the run's own tokenizer cannot be loaded")


def run(options: argparse.Namespace) -> int:
    from lm_eval_takeover.commands.show.rollout import show

    return show(options)
