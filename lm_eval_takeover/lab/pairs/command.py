"""The options of `pairs`."""

import argparse
from pathlib import Path

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.lab.extra import need_lab_packages

HELP = "write takeovers as preference pairs to train on"
DESCRIPTION = """\
Write preference pairs (prompt, chosen, rejected) of a guided run, as texts and as token ids, and a script that trains on them
with TRL. It takes the run's run_dir and the folder that effects wrote for it."""
EXAMPLE = """examples:
  lm-eval-takeover pairs runs/guided --effects effects --out pairs
  lm-eval-takeover pairs runs/guided --tokens_only --out pairs
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_dir", type=Path, metavar="RUN_DIR", help="the run_dir of a guided run, or what compare made of its row")
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the files")
    add("--effects", type=Path, metavar="DIR", help="the folder that effects had as --out")
    add("--tokens_only", action="store_true", help="single tokens, not whole continuations")
    add("--weights", metavar="SCORE", help="add this score at each token, by the run's models, as weights")
    add("--min_effect", type=float, default=0.25, metavar="X", help="least effect, 0 to 1 (default: 0.25)")
    add("--confidence", type=float, default=0.9, metavar="C", help="of an effect's sign (default: 0.9)")


def run(options: argparse.Namespace) -> int:
    if not (0 <= options.min_effect <= 1 and 0 < options.confidence < 1):
        raise ArgumentError(f"--min_effect {options.min_effect} or --confidence {options.confidence} is outside 0..1")
    need_lab_packages("pairs")
    from lm_eval_takeover.lab.pairs.writing import export

    return export(options)
