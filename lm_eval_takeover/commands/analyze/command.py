"""The door of `analyze`: its options."""

import argparse
import math
from pathlib import Path

from lm_eval_takeover.errors import ArgumentError

HELP = "the paper's analyses of what runs left behind"
DESCRIPTION = """\
Where decisions lie (concentration, lorenz, position, overlap, planning, failure), read off base rollouts that
`lm-eval-takeover score` has scored; and what runs bring (budget, rates, flips, cross, ranks). Each is written as
DIR/NAME.csv, NAME.json and NAME.svg. What cannot be shown is said in a line."""
EXAMPLE = """examples:
  lm-eval-takeover analyze runs/base runs/guided runs/guide --out analysis
  lm-eval-takeover analyze runs/base --out analysis --only concentration,failure
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_dirs", type=Path, nargs="+", metavar="RUN_DIR", help="what a run was given as run_dir=…")
    add("--out", type=Path, required=True, metavar="DIR", help="where tables and figures go")
    add("--only", default="", metavar="NAME,…", help="these analyses (default: all that can be shown)")
    add("--near", type=float, default=0.1, help="nats of js below which the models are near, for cross (default: 0.1)")
    add("--tokenizer", help="hub id or local folder, where the run's own cannot be had, for planning")


def run(options: argparse.Namespace) -> int:
    if not (math.isfinite(options.near) and options.near > 0):
        raise ArgumentError(f"--near {options.near} is not a number of nats above 0")
    try:
        import polars  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError as error:
        raise ArgumentError(
            f"analyze needs the package {error.name}: pip install 'lm-eval-takeover[analysis]'"
        ) from error
    from lm_eval_takeover.commands.analyze.tables import analyze

    return analyze(options)
