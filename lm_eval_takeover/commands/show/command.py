"""The door of `show`: its options."""

import argparse
from pathlib import Path

HELP = "one rollout of a run, takeovers marked"
DESCRIPTION = """\
Print one rollout. A takeover is set in brackets and followed by what the host would have written there with the same random
numbers: [fox|ant]; the token alone where that is the same, or not known."""
EXAMPLE = """example:
  lm-eval-takeover show runs/guided --task takeover_demo --doc 3 --sample 0
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_dir", type=Path, metavar="RUN_DIR", help="what a run was given as run_dir=…")
    add("--task", help="default: the run's, where it has one")
    add("--doc", type=int, default=0, help="lm-eval's doc_id (default: 0)")
    add("--sample", type=int, default=0, help="which of a problem's samples, from 0 (default: 0)")
    add("--tokenizer", help="hub id or local folder, where the run's own cannot be had")


def run(options: argparse.Namespace) -> int:
    from lm_eval_takeover.commands.show.rollout import show

    return show(options)
