"""The options of `compare`, and what is checked before torch is loaded."""

import argparse
import math
from pathlib import Path

from lm_eval_takeover.arguments import ModelArguments, check_folder
from lm_eval_takeover.commands._options import LOADING, add_shared, check_include_path, check_prompts, read_truth
from lm_eval_takeover.errors import ArgumentError

HELP = "run a pair by several methods and print one table"
DESCRIPTION = """\
Run a pair by several methods and print the leaderboard with Recovery, intervals and costs. If no calibration fits the pair, one
is measured first.

A row is NAME[:argument=value…][@rate…], for example base, guide, thinking=MODEL, guided, entropy@0.05 or ensemble:weight=0.3.
NAME may be any score or policy. A rate is the share of tokens to take over. For each rate, compare finds the value of the
method's own argument on calibration prompts. Without rates, random and early take the rate that guided has on each task.
All rows of the pair share their random numbers.

To continue an interrupted command, give it again: it ends with the same tables."""
EXAMPLE = """examples:
  lm-eval-takeover compare --base Qwen/Qwen3-0.6B-Base --guide Qwen/Qwen3-8B --tasks takeover_paper --target_rate 0.08 \\
      --apply_chat_template --rows base,random,guided,guide,thinking=Qwen/Qwen3-0.6B --run_dir runs/mine
  lm-eval-takeover compare --tasks takeover_demo --target_rate 0.05 --batch_size 400 --run_dir runs/demo
  lm-eval-takeover compare --tasks takeover_demo --rows base,guide,ce,entropy,random --rates 0.01,0.05,0.1 --run_dir runs/grid
"""
DEFAULT_RATE = 0.05
_BY_HAND = ("tau", "spike_ratio")  # model arguments that stand for a target rate
_OWN = ("base", "guide", "run_dir", "rate", "early_tokens", "model", "calibration", "target_rate", "seed")
_LISTED = (*LOADING, "enable_thinking", "batch_size", "direction", "target_rate")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "base", "guide", "tasks", tasks={"required": True})
    add = parser.add_argument
    folder = "folder for all results; what is finished there is used again"
    add("--run_dir", type=Path, required=True, metavar="DIR", help=folder)
    rows = "NAME[:argument=value…][@rate…] (default: base,random,guided,guide)"
    add("--rows", default="base,random,guided,guide", metavar="ROW,…", help=rows)
    add("--rates", metavar="RATE,…", help="shares of tokens to take over, for all rows that name none but guided")
    target = "share of tokens to take over, where there are no --rates (default: 0.05)"
    add("--target_rate", type=float, metavar="RATE", help=target)
    add_shared(parser, "direction")
    backend = "lm-eval's model type for thinking=MODEL (default: hf)"
    add("--thinking_backend", choices=["hf", "vllm"], default="hf", help=backend)
    add("--thinking_args", nargs="+", default=[], metavar="NAME=VALUE", help="more arguments of the thinking model")
    add("--thinking_batch_size", metavar="N", help="batch size of the thinking model (default: --batch_size)")

    add = parser.add_argument_group("calibration").add_argument
    add("--calibration", help="a packaged name or a file (default: one that fits, else it is measured)")
    add("--prompts", help="prompts of the calibration, as in calibrate (default: openai/gsm8k:main)")
    add("--field", metavar="NAME", help="field of the prompts, as in calibrate")
    add("--num_prompts", type=int, default=500, metavar="N", help="as in calibrate (default: 500)")
    add("--num_held_out", type=int, default=100, metavar="N", help="as in calibrate (default: 100)")

    harness = parser.add_argument_group("as in lm_eval, for all rows")
    add_shared(
        harness,
        *("apply_chat_template", "enable_thinking", "batch_size", *LOADING, "seed", "include_path", "model_args"),
        enable_thinking={"type": lambda text: str(read_truth(text))},
        seed={"default": None, "help": "seed of all random numbers (default: lm_eval's)"},
        model_args={"nargs": "+", "default": [], "metavar": "NAME=VALUE"},
    )
    add = harness.add_argument
    add("--gen_kwargs", nargs="+", default=[], metavar="NAME=VALUE", help="decoding of all rows")
    add("--limit", type=float, metavar="N", help="problems of each task; below 1, a share of them")
    add("--metadata", metavar="JSON", help="passed to the tasks")

    output = parser.add_argument_group("output")
    add_shared(output, "format")
    add = output.add_argument
    add("--quiet", action="store_true", help="print the table only; what rows print is in DIR/ROW/lm_eval-*.log")
    add("--dry_run", action="store_true", help="print the commands and the memory that they need; run nothing")


def run(options: argparse.Namespace) -> int:
    check_options(options)
    if options.dry_run and options.format in ("csv", "json"):
        raise ArgumentError(f"--format {options.format}: --dry_run prints table, md or latex")
    from lm_eval_takeover.commands.compare.running import compare, print_estimate

    return print_estimate(options) if options.dry_run else compare(options)


def check_options(options: argparse.Namespace) -> None:
    """Put tasks and arguments into their types. Raises ArgumentError for what is wrong whatever the models are."""
    options.tasks = [task for word in options.tasks for task in word.split(",") if task]
    for name in ("model_args", "thinking_args", "gen_kwargs"):
        setattr(options, name, _parse_pairs(name, getattr(options, name)))
    for name in options.model_args:
        if name in _OWN:
            raise ArgumentError(f"--model_args {name}=… is set by compare itself; see --help for the option")
    options.direction = options.model_args.pop("direction", options.direction)
    options.guided_policy = options.model_args.pop("policy", None)
    by_hand = {name: value for name, value in options.model_args.items() if name in _BY_HAND}
    if by_hand and options.rates:
        raise ArgumentError(f"--rates would be ignored beside {next(iter(by_hand))}=…; give one of them")
    if not by_hand and options.target_rate is None:
        options.target_rate = DEFAULT_RATE
    listed = {name: getattr(options, name) for name in _LISTED if getattr(options, name) is not None}
    ModelArguments.parse({**listed, **by_hand})
    check_prompts(options.prompts)
    check_include_path(options)
    if (options.base is None) != (options.guide is None):
        raise ArgumentError("--base and --guide go together; without both the bundled demo pair is compared")
    for role in ("base", "guide") if options.base is not None else ():
        check_folder(role, getattr(options, role))
    if options.limit is not None and not 0 < options.limit < math.inf:
        raise ArgumentError(f"--limit {options.limit:g} is not a number above 0")
    from lm_eval_takeover.calibration.files import find_calibration
    from lm_eval_takeover.commands.compare.calls import find_row_target
    from lm_eval_takeover.commands.compare.rows import plan_rows
    from lm_eval_takeover.method.named import parse_rates
    from lm_eval_takeover.method.registry import load_plugins

    load_plugins(options.model_args.get("plugins"))
    options.rates = parse_rates("rates", options.rates, options.rates.split(",")) if options.rates else ()
    rows = plan_rows(options)
    if options.calibration is not None:
        calibration, _ = find_calibration(options.calibration)
        for row in rows:
            find_row_target(calibration, row, options)


def _parse_pairs(option: str, words: list[str]) -> dict[str, str]:
    """`NAME=VALUE` words, several joined by commas where no value holds one."""
    values = {}
    for word in words:
        parts = word.split(",") if all("=" in part for part in word.split(",")) else [word]
        for part in parts:
            name, sign, value = part.partition("=")
            if not sign or not name:
                raise ArgumentError(f"--{option} '{part}' is not NAME=VALUE")
            values[name] = value
    return values
