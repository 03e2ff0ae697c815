import argparse
from pathlib import Path

from lm_eval_takeover.commands._options import add_stored_pair, read_stored_pair

HELP = "score the stored samples of a run with both models"
DESCRIPTION = """\
Read every stored sample of a run_dir with base and guide. Write scores, entropies, log-probabilities and ranks of all tokens
to RUN_DIR/scores. An interrupted call continues when you give it again. With --backend hf a model reads a text in one pass;
with --backend vllm it reads one token a step, many texts at a time."""
EXAMPLE = """examples:
  lm-eval-takeover score runs/base
  lm-eval-takeover score runs/base --guide Qwen/Qwen3-8B --batch_size 8
  lm-eval-takeover score runs/base --backend vllm --model_args tensor_parallel_size=4
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    folders = "the folder that a run had as run_dir=; a folder of compare means its base"
    add("run_dirs", type=Path, nargs="+", metavar="RUN_DIR", help=folders)
    add("--overwrite", action="store_true", help="replace scores that the run has")
    add_stored_pair(parser)


def run(options: argparse.Namespace) -> int:
    given = read_stored_pair(options)
    from lm_eval_takeover.runs.run_reader import read_run_folders

    folders = [read_run_folders([folder]) for folder in options.run_dirs]
    from lm_eval_takeover.lab.score.scoring import score_runs

    return score_runs(folders, given, overwrite=options.overwrite, allow=options.allow)
