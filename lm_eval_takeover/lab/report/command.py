import argparse
import math
from pathlib import Path

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.lab.extra import need_lab_packages

HELP = "write an analysis as one HTML file"
DESCRIPTION = """\
Write the result of `lm-eval-takeover analyze` as one HTML file that opens from disk, without a network. It has tasks by runs,
the figures, and a grid of problems by runs. A cell opens an answer beside the base's answer. If not all answers fit,
those that base and run judge differently come first, and the page says how many it has."""
EXAMPLE = """example:
  lm-eval-takeover analyze runs/base runs/guided --out analysis
  lm-eval-takeover report analysis --out report.html
  lm-eval-takeover report runs/demo --out report.html    # a comparison: analyses it into runs/demo/analysis first
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    folder = "the folder that analyze had as --out; or a run_dir, or a folder of compare"
    add("analysis", type=Path, metavar="DIR", help=folder)
    add("--out", type=Path, required=True, metavar="FILE", help="the report, an HTML file")
    add("--effects", type=Path, metavar="DIR", help="the folder that effects had as --out; shows the largest effects")
    size = "largest size of the file, in 10^6 bytes (default: 15)"
    add("--max_size", type=float, default=15.0, metavar="MB", help=size)
    add("--tokenizer", help="hub id or local folder, if the runs' own tokenizer cannot be loaded")


def run(options: argparse.Namespace) -> int:
    if not (math.isfinite(options.max_size) and options.max_size > 0):
        raise ArgumentError(f"--max_size {options.max_size} is not a number of megabytes above 0")
    need_lab_packages("report")
    from lm_eval_takeover.commands._output import check_replaceable
    from lm_eval_takeover.lab.report.building import build

    check_replaceable("out", options.out, "a report")
    return build(options)
