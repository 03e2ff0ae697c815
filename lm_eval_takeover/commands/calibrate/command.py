"""The options of `calibrate`, and what is checked before torch is loaded."""

import argparse
import os
from pathlib import Path

from lm_eval_takeover.commands._options import ENGINE, add_shared, check_prompts
from lm_eval_takeover.commands._output import check_replaceable
from lm_eval_takeover.errors import ArgumentError, nearest

HELP = "find the thresholds of the gate for a pair"
DESCRIPTION = """\
Let the base answer prompts, score every token with both models, and write tau and kappa for each spike ratio. A page
(NAME.md) beside the file says what was measured. An interrupted call continues when you give it again."""
EXAMPLE = """examples:
  lm-eval-takeover calibrate --base Qwen/Qwen3-0.6B-Base --guide Qwen/Qwen3-8B --task takeover_gsm8k --apply_chat_template \\
      --prompts openai/gsm8k:main --target_rate 0.05 0.08 --out my-pair.json
  lm-eval-takeover calibrate --compare my-pair.json other-prompts.json --plot scores.svg
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    _add_pair_options(parser)
    _add_prompt_options(parser)
    _add_rollout_options(parser)
    _add_rate_options(parser)
    _add_comparison_options(parser)


def run(options: argparse.Namespace) -> int:
    if options.compare is None:
        _check_measurement(options)
        _check_gate(options)
        from lm_eval_takeover.commands.calibrate.measurement import measure

        return measure(options)
    _check_comparison(options)
    _check_gate(options)
    if options.plot:
        _check_writable("--plot", options.plot)
    from lm_eval_takeover.commands.calibrate.comparison import print_comparison

    return print_comparison(options)


def _add_pair_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--base", help="hub id (id@revision) or local folder; without --base and --guide the bundled demo pair")
    add("--guide", help="hub id (id@revision) or local folder")
    add("--out", type=Path, help="the file to write, NAME.json; its page is NAME.md")
    add("--overwrite", action="store_true", help="replace these two files if they exist")
    add(
        "--extend",
        action="store_true",
        help="if they exist: keep what they hold, and solve only the rates that are missing",
    )
    add(
        "--direction",
        choices=["forward", "reverse"],
        default="forward",
        help="forward: the base writes by default; reverse: the guide does (default: forward)",
    )


def _add_prompt_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("prompts").add_argument
    add("--prompts", help="JSONL file, or hub data set 'id[:config]'; not your benchmark")
    add("--split", default="train", help="split of the hub data set (default: train)")
    add(
        "--field",
        help="field with the prompt, or with the problem for --task (default: problem with --task, else prompt; question for a "
        "hub data set that has neither)",
    )
    add(
        "--task",
        metavar="TASK",
        help="the task that you will run; it supplies the prompt template and the sampling settings",
    )
    add("--include_path", type=Path, metavar="DIR", help="a folder of task files for --task")
    add(
        "--template",
        help="Jinja template with a row's fields (default: for a file the field's text, for a data set the prompt of the "
        "mathematical tasks)",
    )
    add("--apply_chat_template", action="store_true", help="use the guide's chat template, as lm_eval does")
    add("--enable_thinking", type=_truth_value, metavar="BOOL", help="passed to the chat template")
    add("--num_prompts", type=int, default=500, help="number of prompts (default: 500)")
    add("--license", help="licence of the prompts of a file, for the page (for a data set, its card says it)")
    add(
        "--diagnostic",
        action="store_true",
        help="allow benchmark problems, like the paper's Table 13 (without --prompts: those of --task); runs on these benchmarks "
        "refuse the file",
    )


def _add_rollout_options(parser: argparse.ArgumentParser) -> None:
    rollouts = parser.add_argument_group("rollouts")
    add = rollouts.add_argument
    add("--temperature", type=float, help="sampling temperature, 0 for greedy (default: the task's, else 0.6)")
    add("--top_p", type=float, help="top-p of the sampling (default: the task's, else 0.95)")
    add("--top_k", type=int, help="top-k of the sampling (default: the task's, else 0: off)")
    add("--max_gen_toks", type=int, help="most new tokens of a rollout (default: the task's, else 16384)")
    add("--seed", type=int, default=0, help="seed for the choice of prompts and for the rollouts (default: 0)")
    add("--batch_size", default="auto", help="rollouts at a time, a number or auto (default: auto)")
    add_shared(rollouts, *ENGINE)
    add("--device", help="as in lm-eval's hf")
    add("--guide_device", help="default: --device")
    add("--dtype", default="auto", help="as in lm-eval's hf")
    add("--guide_dtype", help="default: --dtype")
    add("--trust_remote_code", action="store_true", help="as in lm-eval's hf")


def _add_rate_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("realized rate").add_argument
    add(
        "--target_rate",
        type=float,
        nargs="+",
        default=[],
        metavar="RATE",
        help="find what realizes this share of guide tokens: a gate's spike ratio, or another method's own argument",
    )
    add(
        "--methods",
        nargs="+",
        default=[],
        metavar="METHOD",
        help="methods for --target_rate, as rows of compare: NAME[:argument=value…][@rate…] (default: the gates of --score)",
    )
    add("--nearest", action="store_true", help="if no value realizes a rate, keep the nearest one")
    add(
        "--num_held_out",
        type=int,
        default=100,
        help="more prompts, to measure the rate on (default: 100)",
    )
    add(
        "--score",
        nargs="+",
        default=["ce"],
        metavar="SCORE",
        help="scores for --target_rate, --compare and the printed table (default: ce); the file holds all scores",
    )
    add(
        "--kappa_rule",
        default="threshold_to_mean",
        help="kappa rule for --target_rate and --compare (default: threshold_to_mean)",
    )
    add(
        "--plugins",
        metavar="FILE+MODULE",
        help="files or modules with your own scores; they are collected too",
    )
    add("--window", type=int, default=10, help="window of the gate for --target_rate (default: 10)")


def _add_comparison_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("comparison").add_argument
    add(
        "--compare",
        nargs="+",
        metavar="FILE",
        help="print tau and kappa of these files side by side; measure nothing",
    )
    add("--plot", type=Path, help="with --compare: survival curves of the scores, FILE.svg, .png or .pdf")


_COMPARED = ("compare", "plot", "score", "kappa_rule", "plugins")  # what a comparison reads


def _check_comparison(options: argparse.Namespace) -> None:
    """Raise ArgumentError for options that a comparison would ignore."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    for name, default in vars(parser.parse_args([])).items():
        if name not in _COMPARED and getattr(options, name) != default:
            raise ArgumentError(
                f"--{name} is ignored by --compare, which measures nothing; leave it out (it goes with "
                f"{', '.join(f'--{one}' for one in _COMPARED[1:])})"
            )


def _truth_value(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return text.lower() == "true"


def _check_gate(options: argparse.Namespace) -> None:
    """Raise ArgumentError for a score or a kappa rule that is not known."""
    from lm_eval_takeover.calibration.thresholds import KAPPA_RULES
    from lm_eval_takeover.method.registry import load_plugins, scores

    load_plugins(options.plugins)
    for score in options.score:
        if score not in scores:
            raise ArgumentError(f"--score '{score}' is not known; {scores.describe(score)}")
    if options.kappa_rule not in KAPPA_RULES:
        raise ArgumentError(
            f"--kappa_rule '{options.kappa_rule}' is not known; {nearest(options.kappa_rule, KAPPA_RULES)}"
        )


def _check_measurement(options: argparse.Namespace) -> None:
    """Raise ArgumentError for what can be known to be wrong without a model."""
    _check_prompt_options(options)
    for name in ("num_prompts", "max_gen_toks", "num_held_out", "window"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise ArgumentError(f"--{name} {value} is not at least 1")
    for rate in options.target_rate:
        if not 0 < rate < 1:
            raise ArgumentError(
                f"--target_rate {rate} is outside 0..1: it is the share of tokens to take over; for 5 % give 0.05"
            )
    if options.plot:
        raise ArgumentError(
            "--plot goes with --compare: lm-eval-takeover calibrate --compare my-pair.json --plot scores.svg"
        )
    if options.out is None:
        raise ArgumentError("--out is missing (see lm-eval-takeover calibrate --help)")
    if options.out.suffix != ".json":
        raise ArgumentError(f"--out '{options.out}' is not a name of a calibration file; expected NAME.json")
    for path in (options.out, options.out.with_suffix(".md")):
        _check_writable("--out", path)
        if (options.overwrite or options.extend) and path.suffix == ".json":
            check_replaceable("out", path, "a calibration")
        if path.exists() and not (options.overwrite or options.extend):
            raise ArgumentError(
                f"--out: '{path}' exists already; give another name, --overwrite, or --extend to add rates"
            )


def _check_prompt_options(options: argparse.Namespace) -> None:
    """Raise ArgumentError for options about prompts that do not go together."""
    if options.prompts is None and not (options.task and options.diagnostic):
        raise ArgumentError("--prompts is missing (see lm-eval-takeover calibrate --help)")
    check_prompts(options.prompts)
    if options.task and options.template:
        raise ArgumentError(f"--task {options.task} brings its own template; leave out --template, or --task")
    if options.include_path is not None and not options.task:
        raise ArgumentError("--include_path goes with --task, and no --task is given")
    if options.include_path is not None and not options.include_path.is_dir():
        raise ArgumentError(f"--include_path '{options.include_path}' is not a folder of task files")
    if options.enable_thinking is not None and not options.apply_chat_template:
        raise ArgumentError(
            f"--enable_thinking {options.enable_thinking} is passed to the chat template; add --apply_chat_template"
        )


def _check_writable(option: str, path: Path) -> None:
    """Raise ArgumentError, before hours of work, where the result cannot be written."""
    if path.is_dir():
        raise ArgumentError(f"{option} '{path}' is a folder; expected a file")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ArgumentError(f"{option} '{path}' cannot be written: no permission in '{folder}', or it is not a folder")
