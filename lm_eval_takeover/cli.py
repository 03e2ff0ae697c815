"""The command `lm-eval-takeover`."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lm_eval_takeover import __version__, stopping
from lm_eval_takeover.errors import ArgumentError, install_error_hook, nearest

if TYPE_CHECKING:
    from lm_eval_takeover.commands.calibrate.rollouts import Work

CALIBRATE_EXAMPLE = """example:
  lm-eval-takeover calibrate --base Qwen/Qwen3-0.6B-Base --guide Qwen/Qwen3-8B \\
      --prompts openai/gsm8k:main --target_rate 0.05 0.08 --out my-pair.json
  lm-eval-takeover calibrate --compare my-pair.json other-prompts.json --plot scores.svg
"""

RESCORE_EXAMPLE = """examples:
  lm-eval-takeover rescore runs/math500
  lm-eval-takeover rescore runs/math500 --include_path my-tasks --output_path results/again
"""


class _Parser(argparse.ArgumentParser):
    """argparse's own errors already exit with 2; this keeps them to one line."""

    def error(self, message: str) -> "None":  # type: ignore[override]
        print(f"error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def parser() -> argparse.ArgumentParser:
    root = _Parser(prog="lm-eval-takeover", description="Tools around `lm_eval --model guided-takeover`.")
    root.add_argument("--version", action="version", version=__version__)
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    add_command = partial(commands.add_parser, formatter_class=argparse.RawDescriptionHelpFormatter)
    calibrate = add_command(
        "calibrate",
        help="measure the gate's thresholds for a pair",
        description="Roll out the host on held-out prompts, collect all scores and write tau and kappa by spike ratio, with a "
        "page (NAME.md) beside the file. What an interrupted call has finished is kept, and the same call goes on from there.",
        epilog=CALIBRATE_EXAMPLE,
    )
    add = calibrate.add_argument
    add("--base", help="hub id (id@revision) or local folder; without --base and --guide the bundled demo pair")
    add("--guide", help="hub id (id@revision) or local folder")
    add("--out", type=Path, help="the calibration file to write, NAME.json")
    add(
        "--direction",
        choices=["forward", "reverse"],
        default="forward",
        help="who hosts: base, or guide (default: forward)",
    )
    group = calibrate.add_argument_group("prompts")
    add = group.add_argument
    add("--prompts", help="JSONL file, or hub data set 'id[:config]'")
    add("--split", default="train", help="of a hub data set (default: train)")
    add("--field", help="field of the prompt text (default: prompt; question for a hub data set without one)")
    add(
        "--template",
        help="Jinja template over a row's fields (default: the field's text of a file, the prompt of the mathematical tasks "
        "around it for a data set)",
    )
    add(
        "--apply_chat_template", action="store_true", help="put prompts into the guide's chat template, as lm_eval does"
    )
    add("--enable_thinking", type=_truth, metavar="BOOL", help="passed to the chat template")
    add("--num_prompts", type=int, default=500, help="how many prompts to draw (default: 500)")
    add("--license", help="of the prompts of a file, for the page (a data set's own is read from its card)")
    group = calibrate.add_argument_group("rollouts")
    add = group.add_argument
    add("--temperature", type=float, default=0.6, help="of the rollouts (default: 0.6)")
    add("--top_p", type=float, default=0.95, help="of the rollouts (default: 0.95)")
    add("--max_gen_toks", type=int, default=4096, help="of a rollout, at most (default: 4096)")
    add("--seed", type=int, default=0, help="of the draw of prompts and of the rollouts (default: 0)")
    add("--batch_size", default="auto", help="rollouts at a time, a number or auto (default: auto)")
    add("--device", help="as in lm-eval's hf")
    add("--guide_device", help="default: --device")
    add("--dtype", default="auto", help="as in lm-eval's hf")
    add("--guide_dtype", help="default: --dtype")
    add("--trust_remote_code", action="store_true", help="as in lm-eval's hf")
    group = calibrate.add_argument_group("realized rate")
    add = group.add_argument
    add(
        "--target_rate", type=float, nargs="+", default=[], metavar="RATE", help="find the spike ratio that realizes it"
    )
    add(
        "--num_held_out",
        type=int,
        default=100,
        help="prompts that a rate is measured on, beside the others (default: 100)",
    )
    add("--score", nargs="+", default=["ce"], metavar="SCORE", help="of --target_rate and --compare (default: ce)")
    add("--kappa_rule", default="threshold_to_mean", help="of --target_rate and --compare (default: threshold_to_mean)")
    add("--window", type=int, default=10, help="of the gate whose takeovers are counted (default: 10)")
    group = calibrate.add_argument_group("comparison")
    add = group.add_argument
    add(
        "--compare",
        nargs="+",
        metavar="FILE",
        help="print tau and kappa of these calibrations side by side; nothing is measured",
    )
    add("--plot", type=Path, help="with --compare: survival curves of the scores, FILE.svg, .png or .pdf")
    calibrate.set_defaults(run=_calibrate)
    rescore = add_command(
        "rescore",
        help="verify the stored responses of a run anew",
        description="Score all responses that a run_dir holds with the installed version of the tasks, or another one. Nothing "
        "is generated. Writes results and samples as lm_eval does, and lists every verdict that changed.",
        epilog=RESCORE_EXAMPLE,
    )
    add = rescore.add_argument
    add("run_dir", type=Path, metavar="RUN_DIR", help="what the run was given as run_dir=…")
    add("--tasks", nargs="+", default=[], metavar="TASK", help="tasks or groups (default: all tasks of the run)")
    add("--include_path", type=Path, metavar="DIR", help="a folder of task files that go before the installed ones")
    add("--output_path", type=Path, metavar="DIR", help="where results go (default: RUN_DIR/rescored)")
    rescore.set_defaults(run=_rescore)
    return root


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return text.lower() == "true"


def _calibrate(options: argparse.Namespace) -> int:
    from lm_eval_takeover.calibration.thresholds import KAPPA_RULES
    from lm_eval_takeover.method.scores import SCORES

    for score in options.score:
        if score not in SCORES:
            raise ArgumentError(f"--score '{score}' is not known; {nearest(score, SCORES)}")
    if options.kappa_rule not in KAPPA_RULES:
        raise ArgumentError(
            f"--kappa_rule '{options.kappa_rule}' is not known; {nearest(options.kappa_rule, KAPPA_RULES)}"
        )
    return _compare(options) if options.compare else _measure(options)


def _compare(options: argparse.Namespace) -> int:
    from lm_eval_takeover.calibration.comparison import check_plot, compare, plot
    from lm_eval_takeover.calibration.files import find

    if options.plot:
        _check_writable("--plot", options.plot)
        check_plot(options.plot)
        if len(options.score) > 1:
            raise ArgumentError(
                f"--plot draws one score, and --score names {len(options.score)}: {', '.join(options.score)}"
            )
    calibrations = []
    for name in options.compare:
        calibration, column = find(name)
        if column is not None:
            raise ArgumentError(f"--compare '{name}': all columns are compared; leave out ':{column}'")
        calibrations.append(calibration)
    print("\n\n".join(compare(calibrations, score, options.kappa_rule) for score in options.score))
    if options.plot:
        plot(calibrations, options.plot, options.score[0])
        print(f"\nscores above, log-log -> {options.plot}")
    return 0


def _measure(options: argparse.Namespace) -> int:
    for name in ("prompts", "out"):
        if getattr(options, name) is None:
            raise ArgumentError(f"--{name} is missing (see lm-eval-takeover calibrate --help)")
    for name in ("num_prompts", "max_gen_toks", "num_held_out", "window"):
        if getattr(options, name) < 1:
            raise ArgumentError(f"--{name} {getattr(options, name)} is not at least 1")
    for rate in options.target_rate:
        if not 0 < rate < 1:
            raise ArgumentError(f"--target_rate {rate} is outside 0..1, the share of tokens that the donor writes")
    if options.plot:
        raise ArgumentError(
            "--plot goes with --compare: lm-eval-takeover calibrate --compare my-pair.json --plot scores.svg"
        )
    if options.out.suffix != ".json":
        raise ArgumentError(f"--out '{options.out}' is not a name of a calibration file; expected NAME.json")
    _check_writable("--out", options.out)
    _check_writable("--out", options.out.with_suffix(".md"))

    from dataclasses import replace

    from lm_eval_takeover.arguments import ModelArguments
    from lm_eval_takeover.calibration.files import write
    from lm_eval_takeover.calibration.page import card, rate_table, target_table
    from lm_eval_takeover.commands.calibrate.prompts import read_prompts
    from lm_eval_takeover.commands.calibrate.rollouts import Budget, Work, calibrate, decoding, kept_parts
    from lm_eval_takeover.method.request import Sampling
    from lm_eval_takeover.pair.loading import load_pair
    from lm_eval_takeover.storage.whole_files import write_text

    names = ("base", "guide", "device", "guide_device", "dtype", "guide_dtype", "trust_remote_code", "batch_size")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    arguments = ModelArguments.parse({**given, "direction": options.direction})
    sampling = Sampling(options.temperature, options.top_p)
    pair = load_pair(arguments)

    def chat(text: str) -> str:
        return pair.chat_prompt([{"role": "user", "content": text}], enable_thinking=options.enable_thinking)

    prompts = read_prompts(
        options.prompts,
        split=options.split,
        field=options.field,
        template=options.template,
        count=options.num_prompts,
        held_out=options.num_held_out if options.target_rate else 0,
        seed=options.seed,
        chat=chat if options.apply_chat_template else None,
        license=options.license,
    )

    def kept() -> str:
        parts = any(options.out.parent.glob(f".{options.out.name}.*.partial/*.npz"))
        return "what was finished is kept, and the same command goes on from there" if parts else "nothing was written"

    stopping.on_stop(kept)
    work = Work()
    settings = decoding(sampling, options.max_gen_toks, options.seed)
    page = options.out.with_suffix(".md")
    with kept_parts(options.out, pair, prompts, options.direction, settings) as parts:
        made = calibrate(
            pair,
            prompts,
            direction=options.direction,
            sampling=sampling,
            max_gen_toks=options.max_gen_toks,
            seed=options.seed,
            batch_size=arguments.rows,
            window=options.window,
            budget=Budget(options.target_rate, options.score, options.kappa_rule),
            parts=parts,
            work=work,
        )
        made = replace(made, name=options.out.stem)
        try:
            write(made, options.out)
            write_text(page, card(made))
        except OSError as error:
            raise ArgumentError(
                f"--out '{options.out}' cannot be written: {error}; what was measured is kept"
            ) from error
        if not work.unsolved:
            parts.clear()
    print(rate_table(made))
    if made.targets:
        print(f"\n{target_table(made)}")
    print(f"\n{made.rollouts} rollouts, {made.tokens:,} tokens -> {options.out}, {page}")
    print(_cost(work))
    if made.sparse_below is not None:
        print(f"few tokens: below a spike ratio of {made.sparse_below:.2g}, fewer than 30 of them lie above tau")
    if work.unsolved:
        raise ArgumentError(
            f"--target_rate: {'; '.join(work.unsolved)} (the file is written without it; the rollouts are kept for "
            f"another try)"
        )
    return 0


def _rescore(options: argparse.Namespace) -> int:
    from lm_eval.utils import make_table

    from lm_eval_takeover.commands.rescore import rescore, stored_runs, write_results

    if options.include_path is not None and not options.include_path.is_dir():
        raise ArgumentError(f"--include_path '{options.include_path}' is not a folder of task files")
    out = options.output_path or options.run_dir / "rescored"
    runs, verdicts = stored_runs(options.run_dir)
    done = []
    refusals = []
    for run in runs:
        try:
            done.append((run, rescore(run, verdicts, options.tasks, options.include_path)))
        except ArgumentError as error:  # a command that was stopped early, or was about other tasks
            refusals.append(error)
    if not done:
        raise refusals[-1]
    for number, (run, found) in enumerate(done, 1):
        if len(runs) > 1:
            print(f"command {number} of {len(done)}: {', '.join(run.tasks)}; model_args {run.facts.get('arguments')}")
        print(make_table(found.results))
        if found.results.get("groups"):
            print(make_table(found.results, "groups"))
        folder = write_results(found.results, out if len(done) == 1 else out / str(number))
        if found.left_out:
            print(
                f"{found.left_out} documents left out: not all their responses are here, or the tasks have them no more"
            )
        for change in found.changes:
            print(change)
        print(f"{len(found.changes)} of {found.compared:,} verdicts changed; results and samples -> {folder}")
    for refusal in refusals:
        print(f"not scored: {refusal}")
    return 0


def _cost(work: "Work") -> str:
    """Speed and peak memory of this call."""
    import resource

    import torch

    # Linux counts in KiB, macOS in bytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    parts = [f"peak memory {peak / 2**20:,.0f} MiB"]
    if torch.cuda.is_available():
        parts.append(f"of the GPU {torch.cuda.max_memory_allocated() / 2**20:,.0f} MiB")
    if work.tokens:
        parts.insert(0, f"{work.tokens / work.seconds:,.0f} tokens/s, rolled out and scored")
    if work.reused:
        parts.append(f"{work.reused} rollouts of an earlier call used again")
    return "; ".join(parts)


def _check_writable(option: str, out: Path) -> None:
    """Find out before hours of work, not after, that the result cannot be written."""
    if out.is_dir():
        raise ArgumentError(f"{option} '{out}' is a folder; expected a file")
    folder = next(parent for parent in out.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ArgumentError(f"{option} '{out}' cannot be written: no permission in '{folder}', or it is no folder")


def _option(word: str) -> tuple[str, str, str]:
    """`(option, "=", value)`; a word that is no option is all value."""
    return word.partition("=") if word.startswith("--") else ("", "", word)


def main(arguments: Sequence[str] | None = None) -> int:
    install_error_hook()
    given = sys.argv[1:] if arguments is None else arguments
    # `--target-rate` is `--target_rate`; values that follow an equals sign stay what they are.
    given = [re.sub(r"(?<=\w)-(?=\w)", "_", name) + sign + value for name, sign, value in map(_option, given)]
    options = parser().parse_args(given)
    try:
        with stopping.sigterm_raises():
            return int(options.run(options))
    except (KeyboardInterrupt, stopping.Terminated) as stop:
        print(stopping.last_words(), file=sys.stderr)
        return stopping.status(stop)


if __name__ == "__main__":
    sys.exit(main())
