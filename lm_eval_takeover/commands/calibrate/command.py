import argparse
from pathlib import Path

from lm_eval_takeover.arguments import check_folder, split_plugins
from lm_eval_takeover.commands._options import COUNT, LOADING, PAIR, RATE, add_shared, check_include_path, check_prompts
from lm_eval_takeover.commands._output import check_replaceable, check_writable
from lm_eval_takeover.errors import ArgumentError

HELP = "find the thresholds of the gate for a pair"
DESCRIPTION = """\
Let the base answer prompts, score every token with both models, and write tau and kappa for each spike ratio. A page
(NAME.md) beside the file says what was measured. An interrupted call continues when you give it again."""
EXAMPLE = """examples:
  lm-eval-takeover calibrate --base Qwen/Qwen3-0.6B-Base --guide Qwen/Qwen3-8B --task takeover_gsm8k --apply_chat_template \\
      --prompts openai/gsm8k:main --target_rate 0.05 0.08 --out my-pair.json
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "base", "guide")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file to write, NAME.json (required); its page is NAME.md")
    add_shared(parser, "overwrite", overwrite={"help": "replace these two files if they exist"})
    parser.add_argument("--extend", action="store_true", help="if they exist: keep them, and solve only missing rates")
    add_shared(parser, "direction")

    group = parser.add_argument_group("prompts")
    add = group.add_argument
    add("--prompts", help="JSONL file, or hub data set 'id[:config]'; not your benchmark (required without --diagnostic)")
    add("--split", default="train", help="split of the hub data set (default: train)")
    add("--field", help="field with the prompt or problem (default: problem or question with --task, else prompt)")
    add("--task", metavar="TASK", help="the task that you will run; it supplies the template and the sampling settings")
    add_shared(group, "include_path", include_path={"help": "a folder of task files for --task"})
    add_shared(group, "apply_chat_template", "enable_thinking")
    add("--num_prompts", type=COUNT, default=500, metavar="N", help="number of prompts (default: 500)")
    allowed = "allow benchmark problems (without --prompts: those of --task); runs on these benchmarks refuse the file"
    add("--diagnostic", action="store_true", help=allowed)

    group = parser.add_argument_group("rollouts")
    add = group.add_argument
    add("--temperature", type=float, help="sampling temperature, 0 for greedy (default: the task's, else 0.6)")
    add("--top_p", type=float, help="top-p of the sampling (default: the task's, else 0.95)")
    add("--top_k", type=int, help="top-k of the sampling (default: the task's, else 0: off)")
    add("--min_p", type=float, help="min-p of the sampling (default: the task's, else 0: off)")
    add("--max_gen_toks", type=COUNT, help="most new tokens of a rollout (default: the task's, else 16384)")
    add_shared(
        group,
        *("seed", "batch_size", "backend", *LOADING, "model_args"),
        seed={"help": "seed for the choice of prompts and for the rollouts (default: 0)"},
        batch_size={"help": "rollouts at a time, a number or auto (default: auto)"},
        model_args={"help": "how the models are loaded: peft, load_in_4bit, …; arguments of the vLLM engine"},
    )

    group = parser.add_argument_group("realized rate")
    add = group.add_argument
    add("--target_rate", type=RATE, nargs="+", default=[], metavar="RATE", help="solve for this share of guide tokens")
    rows = "methods for --target_rate, as rows of compare: NAME[:argument=value…][@rate…] (default: the gates of --score)"
    add("--methods", nargs="+", default=[], metavar="METHOD", help=rows)
    more = "more prompts: rates are solved on half of them, and measured on the others (default: 100)"
    add("--num_held_out", type=COUNT, default=100, metavar="N", help=more)
    add("--score", nargs="+", default=[], metavar="SCORE", help="scores to solve and print (default: of --methods, else ce)")
    rules = ("threshold_to_mean", "tail_to_mean")
    add("--kappa_rule", choices=rules, default=rules[0], help="for --target_rate (default: threshold_to_mean)")
    add_shared(group, "plugins", plugins={"help": "files or modules with your own scores; they are collected too"})
    add("--window", type=COUNT, default=10, metavar="N", help="window of the gate for --target_rate (default: 10)")


def run(options: argparse.Namespace) -> int:
    _check_measurement(options)
    from lm_eval_takeover.method.registry import load_plugins, scores

    load_plugins(options.plugins)
    for score in options.score:
        if score not in scores:
            raise ArgumentError(f"--score '{score}' is not known; {scores.describe(score)}")
    from lm_eval_takeover.commands.calibrate.measurement import measure

    return measure(options)


def _check_measurement(options: argparse.Namespace) -> None:
    """Raise ArgumentError for prompts, rates and files that can be known to be wrong."""
    if options.prompts is None and not (options.task and options.diagnostic):
        raise ArgumentError("--prompts is missing (see lm-eval-takeover calibrate --help)")
    check_prompts(options.prompts, options.field, has_task=bool(options.task))
    if options.include_path is not None and not options.task:
        raise ArgumentError("--include_path goes with --task, and no --task is given")
    check_include_path(options)
    split_plugins(options.plugins)
    for role in PAIR:
        check_folder(role, getattr(options, role) or "")
    if options.enable_thinking is not None and not options.apply_chat_template:
        raise ArgumentError(f"--enable_thinking {options.enable_thinking} needs --apply_chat_template")
    if options.out is None:
        raise ArgumentError("--out is missing (see lm-eval-takeover calibrate --help)")
    if options.out.suffix != ".json":
        raise ArgumentError(f"--out '{options.out}' is not a name of a calibration file; expected NAME.json")
    goes_on = not options.out.exists() and any(options.out.parent.glob(f".{options.out.name}.*.partial"))  # the page is first
    for path in (options.out, options.out.with_suffix(".md")):
        check_writable("out", path)
        if (options.overwrite or options.extend) and path.suffix == ".json":
            check_replaceable("out", path, "a calibration")
        if path.exists() and not (options.overwrite or options.extend or goes_on):
            raise ArgumentError(f"--out: '{path}' exists; give another name, --overwrite, or --extend to add rates")
