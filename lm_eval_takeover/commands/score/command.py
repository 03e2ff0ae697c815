"""The door of `score`: its options, and one run_dir after the other."""

import argparse
from pathlib import Path

from lm_eval_takeover.commands._engine_options import add_engine_options, read_engine_options
from lm_eval_takeover.errors import ArgumentError

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
    add("--base", help="hub id (id@revision) or local folder (default: the run's)")
    add("--guide", help="hub id (id@revision) or local folder (default: the run's)")
    add(
        "--batch_size",
        default="auto",
        help="samples at a time, a number or auto (default: auto); vLLM batches what fits",
    )
    add_engine_options(parser)
    add("--device", help="as in lm-eval's hf")
    add("--guide_device", help="default: --device")
    add("--dtype", help="as in lm-eval's hf (default: the run's)")
    add("--guide_dtype", help="default: the run's, or --dtype")
    add("--trust_remote_code", action="store_true", help="as in lm-eval's hf")
    add("--plugins", metavar="FILE+MODULE", help="files or modules with scores of your own, a column each")
    add("--overwrite", action="store_true", help="begin anew where RUN_DIR/scores holds scores already")


def run(options: argparse.Namespace) -> int:
    size = str(options.batch_size)
    if size != "auto" and not (size.isdigit() and int(size) > 0):
        raise ArgumentError(f"--batch_size {size} is neither auto nor a number of at least 1")
    from lm_eval_takeover.commands.score.scoring import Choice, score_runs

    choice = Choice(
        base=options.base,
        guide=options.guide,
        device=options.device,
        guide_device=options.guide_device,
        dtype=options.dtype,
        guide_dtype=options.guide_dtype or options.dtype,
        trust_remote_code=options.trust_remote_code or None,
        batch_size=size,
        plugins=options.plugins,
        engine=read_engine_options(options),
    )
    return score_runs(options.run_dirs, choice, overwrite=options.overwrite)
