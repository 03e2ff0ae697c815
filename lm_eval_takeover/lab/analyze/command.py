import argparse
import math
from pathlib import Path

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.lab.extra import need_lab_packages

HELP = "make the paper's tables and figures from runs"
DESCRIPTION = """\
Write the paper's analyses as DIR/NAME.csv, NAME.json and NAME.svg. concentration, lorenz, position, overlap, planning, failure
and signals show where base and guide disagree; they read base runs that `lm-eval-takeover score` has scored (guide runs:
--rollouts guide). budget, rates, flips, cross, examples and ranks show what guided runs do. An analysis that lacks its input is
skipped with one line."""
EXAMPLE = """examples:
  lm-eval-takeover analyze runs/base runs/guided runs/guide --out analysis
  lm-eval-takeover analyze runs/demo --out analysis    # all rows of a comparison
  lm-eval-takeover analyze runs/base --out analysis --only concentration,failure
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    folders = "the folder that a run had as run_dir=, or a folder of compare"
    add("run_dirs", type=Path, nargs="+", metavar="RUN_DIR", help=folders)
    add("--out", type=Path, required=True, metavar="DIR", help="folder for tables and figures")
    add("--only", default="", metavar="NAME,…", help="only these analyses (default: all)")
    add("--near", type=float, default=0.1, help="for cross: js in nats below which the models are near (default: 0.1)")
    add("--rollouts", choices=("base", "guide"), default="base", help="whose scored texts are read (default: base)")
    named = "for planning and examples: hub id or local folder, if the run's own tokenizer cannot be loaded"
    add("--tokenizer", help=named)


def run(options: argparse.Namespace) -> int:
    if not (math.isfinite(options.near) and options.near > 0):
        raise ArgumentError(f"--near {options.near} is not a number of nats above 0")
    need_lab_packages("analyze")
    from lm_eval_takeover.lab.analyze.tables import analyze

    return analyze(options.run_dirs, options.out, options.only, options.near, options.rollouts, options.tokenizer)
