import argparse
from pathlib import Path

from lm_eval_takeover.commands._options import COUNT

HELP = "print answers of a run, with their takeovers"
DESCRIPTION = """\
Print one answer. Takeovers are in brackets, with the token that each replaced: [fox|ant]. The bar is left out if that token
is the same, or is not known. An answer that has brackets of its own gets ⟦fox|ant⟧. --wrong, --right, --rescued and --missed
print such answers, of other problems first. Below stand the score of each takeover beside what it had to exceed, and the highest
score that did not fire: which test held it, and the guide's likeliest token there, if `score` has read the run. A rescued answer
is right, and no sample of the base solves its problem. A missed one is wrong, and a sample of the guide solves its problem. Both
need that row of a comparison."""
EXAMPLE = """example:
  lm-eval-takeover show runs/guided --task takeover_demo --doc 3 --sample 0
  lm-eval-takeover show runs/guided --wrong --number 5
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_dir", type=Path, metavar="RUN_DIR", help="a run's run_dir; for a folder of compare its guided row")
    add("--task", help="default: the run's only task")
    add("--doc", type=int, help="lm-eval's doc_id (default: 0, or any with --wrong and the like)")
    add("--sample", type=int, help="number of the sample, from 0 (default: as for --doc)")
    kinds = parser.add_mutually_exclusive_group()
    for kind in ("wrong", "right", "rescued", "missed"):
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=f"print answers that are {kind}")
    add("--number", type=COUNT, default=1, metavar="N", help="how many of these (default: 1)")
    add("--tokenizer", help="hub id or local folder, if the run's own tokenizer cannot be loaded")


def run(options: argparse.Namespace) -> int:
    from lm_eval_takeover.commands.show.rollout import show

    return show(options)
