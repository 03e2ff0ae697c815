"""The door of `score`: its options, and one run_dir after the other."""

import argparse
from pathlib import Path

from lm_eval_takeover.commands._pair_options import add_pair_options, read_choice

HELP = "both models along the stored samples of a run"
DESCRIPTION = """\
Read every stored sample of a run_dir with base and guide, and write scores, entropies, log-probabilities and ranks of all its
tokens to RUN_DIR/scores. What an interrupted call has written is kept. By --backend hf each model reads a text in one pass, by
--backend vllm a token a step, many texts at a time."""
EXAMPLE = """examples:
  lm-eval-takeover score runs/base
  lm-eval-takeover score runs/base --guide Qwen/Qwen3-8B --batch_size 8
  lm-eval-takeover score runs/base --backend vllm --engine_args tensor_parallel_size=4
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_dirs", type=Path, nargs="+", metavar="RUN_DIR", help="what a run was given as run_dir=…")
    add("--overwrite", action="store_true", help="begin anew where RUN_DIR/scores holds scores already")
    add_pair_options(parser)


def run(options: argparse.Namespace) -> int:
    choice = read_choice(options)
    from lm_eval_takeover.commands.score.scoring import score_runs

    return score_runs(options.run_dirs, choice, overwrite=options.overwrite)
