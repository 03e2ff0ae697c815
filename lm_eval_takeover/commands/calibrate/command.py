"""The door of `calibrate`: its options, and what is checked before torch is loaded."""

import argparse
import os
from pathlib import Path

from lm_eval_takeover.commands._engine_options import add_engine_options
from lm_eval_takeover.errors import ArgumentError, nearest

HELP = "measure the gate's thresholds for a pair"
DESCRIPTION = """\
Roll out the host on held-out prompts, collect all scores and write tau and kappa by spike ratio, with a page (NAME.md)
beside the file. What an interrupted call has finished is kept, and the same call goes on from there."""
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
    add("--out", type=Path, help="the calibration file to write, NAME.json; its page is NAME.md")
    add("--overwrite", action="store_true", help="where these two files are there already")
    add(
        "--direction",
        choices=["forward", "reverse"],
        default="forward",
        help="who hosts: base, or guide (default: forward)",
    )


def _add_prompt_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("prompts").add_argument
    add("--prompts", help="JSONL file, or hub data set 'id[:config]'")
    add("--split", default="train", help="of a hub data set (default: train)")
    add(
        "--field",
        help="field of the prompt text, or of the problem with --task (default: problem with --task, else prompt; question for a "
        "hub data set without them)",
    )
    add(
        "--task",
        metavar="TASK",
        help="what will be run: its template goes around the problems, and its decoding settings are the defaults here",
    )
    add("--include_path", type=Path, metavar="DIR", help="a folder of task files for --task")
    add(
        "--template",
        help="Jinja template over a row's fields (default: the field's text of a file, the prompt of the mathematical tasks "
        "around it for a data set)",
    )
    add(
        "--apply_chat_template", action="store_true", help="put prompts into the guide's chat template, as lm_eval does"
    )
    add("--enable_thinking", type=_truth_value, metavar="BOOL", help="passed to the chat template")
    add("--num_prompts", type=int, default=500, help="how many prompts to draw (default: 500)")
    add("--license", help="of the prompts of a file, for the page (a data set's own is read from its card)")
    add(
        "--diagnostic",
        action="store_true",
        help="allow problems of benchmarks, as the paper's Table 13 has them (without --prompts those of --task); runs on these "
        "benchmarks refuse the file",
    )


def _add_rollout_options(parser: argparse.ArgumentParser) -> None:
    rollouts = parser.add_argument_group("rollouts")
    add = rollouts.add_argument
    add("--temperature", type=float, help="of the rollouts, 0 for greedy (default: the task's, else 0.6)")
    add("--top_p", type=float, help="of the rollouts (default: the task's, else 0.95)")
    add("--top_k", type=int, help="of the rollouts (default: the task's, else 0, which keeps all)")
    add("--max_gen_toks", type=int, help="of a rollout, at most (default: the task's, else 16384)")
    add("--seed", type=int, default=0, help="of the draw of prompts and of the rollouts (default: 0)")
    add("--batch_size", default="auto", help="rollouts at a time, a number or auto (default: auto)")
    add_engine_options(rollouts)
    add("--device", help="as in lm-eval's hf")
    add("--guide_device", help="default: --device")
    add("--dtype", default="auto", help="as in lm-eval's hf")
    add("--guide_dtype", help="default: --dtype")
    add("--trust_remote_code", action="store_true", help="as in lm-eval's hf")


def _add_rate_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("realized rate").add_argument
    add(
        "--target_rate", type=float, nargs="+", default=[], metavar="RATE", help="find the spike ratio that realizes it"
    )
    add(
        "--num_held_out",
        type=int,
        default=100,
        help="prompts that a rate is measured on, beside the others (default: 100)",
    )
    add(
        "--score",
        nargs="+",
        default=["ce"],
        metavar="SCORE",
        help="of --target_rate, --compare and the printed table (default: ce); the file holds all of them",
    )
    add("--kappa_rule", default="threshold_to_mean", help="of --target_rate and --compare (default: threshold_to_mean)")
    add(
        "--plugins",
        metavar="FILE+MODULE",
        help="files or modules with scores of your own, which are collected beside ours",
    )
    add("--window", type=int, default=10, help="of the gate whose takeovers are counted (default: 10)")


def _add_comparison_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("comparison").add_argument
    add(
        "--compare",
        nargs="+",
        metavar="FILE",
        help="print tau and kappa of these calibrations side by side; nothing is measured",
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
        if score not in scores.names():
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
            raise ArgumentError(f"--target_rate {rate} is outside 0..1, the share of tokens that the donor writes")
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
        if path.exists() and not options.overwrite:
            raise ArgumentError(f"--out: '{path}' is there already; give another name, or --overwrite")


def _check_prompt_options(options: argparse.Namespace) -> None:
    """Raise ArgumentError for options about prompts that do not go together."""
    if options.prompts is None and not (options.task and options.diagnostic):
        raise ArgumentError("--prompts is missing (see lm-eval-takeover calibrate --help)")
    if options.task and options.template:
        raise ArgumentError(f"--task {options.task} brings its own template; leave out --template, or --task")
    if options.include_path is not None and not options.task:
        raise ArgumentError("--include_path is where --task is looked for, and no --task is given")
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
        raise ArgumentError(f"{option} '{path}' cannot be written: no permission in '{folder}', or it is no folder")
