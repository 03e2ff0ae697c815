import argparse
from pathlib import Path

from lm_eval_takeover.commands._options import add_shared
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.lab.extra import need_lab_packages
from lm_eval_takeover.lab.frontier import COSTS

HELP = "draw accuracy against cost, from folders of compare"
DESCRIPTION = """\
Draw Acc and Pass@8 of every row against one cost. Print the area under each method's curve, and the least cost of 50 and 90 %
of the guide's gain. Folders may hold other methods of one pair, other seeds or other pairs; they must agree in all else."""
EXAMPLE = """examples:
  lm-eval-takeover frontier runs/grid --out runs/grid
  lm-eval-takeover frontier runs/one runs/two --out both --cost passes
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", type=Path, nargs="+", metavar="RUN", help="a folder that compare had as --run_dir")
    out = "folder for frontier.csv, .json, .svg and frontier_area.csv, .json"
    add("--out", type=Path, required=True, metavar="DIR", help=out)
    add("--cost", choices=COSTS, default="share", help="the picture's horizontal axis (default: share)")
    effects = "what `effects` wrote of one of these rows: adds an oracle over single tokens"
    add("--effects", type=Path, metavar="DIR", help=effects)
    add_shared(parser, "format", format={"choices": ("table", "md", "latex")})


def run(options: argparse.Namespace) -> int:
    if options.effects is not None and not (options.effects / "effects.json").exists():
        raise ArgumentError(f"--effects '{options.effects}' has no effects.json; expected what `effects --out` wrote")
    need_lab_packages("frontier")
    from lm_eval_takeover.lab.frontier.output import make_frontier

    return make_frontier(options)
