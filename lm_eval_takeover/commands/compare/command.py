import argparse
from pathlib import Path

from lm_eval_takeover.commands._options import COUNT, LOADING, RATE, add_shared, number
from lm_eval_takeover.errors import ArgumentError

HELP = "run a pair by several methods and print one table"
DESCRIPTION = """\
Run a pair by several methods and print the leaderboard with Recovery, intervals and costs. If no calibration fits the pair, one
is measured first.

A row is NAME[:argument=value…][@rate…], for example base, guide, thinking=MODEL, guided, entropy@0.05 or ensemble:weight=0.3.
NAME may be any score or policy. A rate is the share of tokens to take over. For each rate, compare finds the value of the
method's own argument on calibration prompts; that of random and early is the rate itself. Without rates, these two take the
rate that guided has on each task.
All rows share their random numbers.

To continue an interrupted command, give it again: it ends with the same tables."""
EXAMPLE = """examples:
  lm-eval-takeover compare --base Qwen/Qwen3-0.6B-Base --guide Qwen/Qwen3-8B --tasks takeover_paper --target_rate 0.08 \\
      --apply_chat_template --rows base,random,guided,guide,thinking=Qwen/Qwen3-0.6B --run_dir runs/mine
  lm-eval-takeover compare --tasks takeover_demo --target_rate 0.05 --batch_size 400 --run_dir runs/demo
  lm-eval-takeover compare --tasks takeover_demo --rows base,guide,ce,entropy,random --rates 0.01,0.05,0.1 --run_dir runs/grid
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "base", "guide", "tasks", tasks={"required": True})
    add = parser.add_argument
    folder = "folder for all results; samples that are finished there are used again"
    add("--run_dir", type=Path, required=True, metavar="DIR", help=folder)
    rows = "NAME[:argument=value…][@rate…] (default: base,random,guided,guide)"
    add("--rows", default="base,random,guided,guide", metavar="ROW,…", help=rows)
    add("--rates", metavar="RATE,…", help="shares of tokens to take over, for rows without a rate of their own, except guided")
    target = "share of tokens to take over, where there are no --rates (default: 0.05)"
    add("--target_rate", type=RATE, default=0.05, metavar="RATE", help=target)
    add_shared(parser, "direction", "plugins")

    add = parser.add_argument_group("calibration").add_argument
    add("--calibration", help="a packaged name or a file (default: one that fits, else it is measured)")
    add("--prompts", help="prompts of the calibration, as in calibrate (default: openai/gsm8k:main; the demo pair has its own)")
    add("--field", metavar="NAME", help="field of the prompts, as in calibrate")
    add("--num_prompts", type=COUNT, default=500, metavar="N", help="as in calibrate (default: 500)")
    add("--num_held_out", type=COUNT, default=100, metavar="N", help="as in calibrate (default: 100)")

    harness = parser.add_argument_group("as in lm_eval, for all rows")
    add_shared(
        harness,
        *("apply_chat_template", "enable_thinking", "batch_size", *LOADING, "seed", "include_path", "model_args"),
        seed={"default": None, "help": "seed of all random numbers (default: lm_eval's)"},
        model_args={"nargs": "+", "default": [], "metavar": "NAME=VALUE"},
    )
    add = harness.add_argument
    add("--gen_kwargs", nargs="+", default=[], metavar="NAME=VALUE", help="decoding of all rows")
    problems = number(float, "a number of problems or a share below 1", lambda n: 0 < n < 1 or (n >= 1 and n.is_integer()))
    add("--limit", type=problems, metavar="N", help="problems of each task; below 1, a share of them")
    add("--metadata", metavar="JSON", help="passed to the tasks")

    output = parser.add_argument_group("output")
    add_shared(output, "group", "format")
    add = output.add_argument
    add("--quiet", action="store_true", help="print the table only; what rows print is in DIR/ROW/lm_eval.log")
    add("--dry_run", action="store_true", help="print the commands and the memory that they need; run nothing")


def run(options: argparse.Namespace) -> int:
    if options.dry_run and options.format in ("csv", "json"):
        raise ArgumentError(f"--format {options.format}: --dry_run prints table, md or latex")
    from lm_eval_takeover.commands.compare.comparison import read_comparison

    asked = read_comparison(options)
    from lm_eval_takeover.commands.compare import planning, running

    return planning.print_estimate(asked) if options.dry_run else running.run_comparison(asked)
