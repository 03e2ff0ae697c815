"""The door of `report`: its options."""

import argparse
import math
from pathlib import Path

from lm_eval_takeover.errors import ArgumentError

HELP = "an analysis as one HTML file, with the rollouts behind it"
DESCRIPTION = """\
Write what `lm-eval-takeover analyze` found as one HTML file that opens from disk, without a network: tasks by runs, the
figures, and a grid of problems by runs that opens rollouts beside those of the base. Where not all rollouts fit, the page
says which it has: for each problem those samples first that the compared run changed."""
EXAMPLE = """example:
  lm-eval-takeover analyze runs/base runs/guided --out analysis
  lm-eval-takeover report analysis --out report.html
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("analysis", type=Path, metavar="DIR", help="what analyze was given as --out; it names the run folders")
    add("--out", type=Path, required=True, metavar="FILE", help="the report, an HTML file")
    add("--max_size", type=float, default=15.0, metavar="MB", help="of the file, in 10^6 bytes (default: 15)")
    add("--tokenizer", help="hub id or local folder, where the runs' own cannot be had")


def run(options: argparse.Namespace) -> int:
    if not (math.isfinite(options.max_size) and options.max_size > 0):
        raise ArgumentError(f"--max-size {options.max_size} is not a number of megabytes above 0")
    try:
        import polars  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError as error:
        raise ArgumentError(
            f"report needs the package {error.name}: pip install 'lm-eval-takeover[analysis]'"
        ) from error
    from lm_eval_takeover.commands.report.building import build

    return build(options)
