"""The options of `paper`."""

import argparse
from pathlib import Path

from lm_eval_takeover.lab.extra import need_lab_packages

HELP = "make every table and figure of the papers"
DESCRIPTION = """\
Make the tables and figures of 'Reasoning Can Be Restored by Correcting a Few Decision Tokens' (T1 to T14, F1 to F9) and the
claims of 'Sparse but Critical' (S1 to S8). Runs compare, score, analyze, report and calibrate where their results are missing,
then writes DIR/index.html and DIR/index.md: each table beside the printed one, each figure, and what differs in set-up.

To continue an interrupted command, give it again. A set-up whose models or data cannot be loaded is named in the index; the
others are made. --pair demo makes all items of the bundled pair."""
EXAMPLE = """examples:
  lm-eval-takeover paper --pair demo --limit 3 --run_dir runs/paper -- --num_prompts 20 --num_held_out 10
  lm-eval-takeover paper --setups my.toml --pair mine --limit 20 --run_dir runs/mine
  lm-eval-takeover paper --pair qwen3-0.6b --items T3,T4,F2 --run_dir runs/paper --dry_run
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--run_dir", type=Path, required=True, metavar="DIR", help="folder for all results and the index")
    add("--pair", metavar="NAME", help="only this set-up of the manifest (default: all that its items name)")
    add("--setups", type=Path, metavar="FILE", help="TOML file with set-ups of your own as [pairs.NAME], for --pair")
    add("--items", default="", metavar="ITEM,…", help="only these, for example T3,T4,F2 (default: all)")
    add("--limit", type=float, metavar="N", help="problems of each task, as in compare")
    add("--dry_run", action="store_true", help="print the commands and the memory that they need; run nothing")
    add("rest", nargs="*", default=[], metavar="-- OPTION", help="options of `compare`")


def run(options: argparse.Namespace) -> int:
    need_lab_packages("paper")
    from lm_eval_takeover.lab.paper.running import make_paper

    return make_paper(options)
