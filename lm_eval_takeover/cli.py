"""The command `lm-eval-takeover`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lm_eval_takeover import __version__
from lm_eval_takeover.errors import ArgumentError, install_error_hook

CALIBRATE_EXAMPLE = """example:
  lm-eval-takeover calibrate --base Qwen/Qwen3-0.6B-Base --guide Qwen/Qwen3-8B \\
      --prompts openai/gsm8k:main --out my-pair.json
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
    calibrate = commands.add_parser(
        "calibrate",
        help="measure the gate's thresholds for a pair",
        description="Roll out the host on held-out prompts, collect all scores and write tau and kappa by spike ratio.",
        epilog=CALIBRATE_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = calibrate.add_argument
    add("--base", help="hub id (id@revision) or local folder; without --base and --guide the bundled demo pair")
    add("--guide", help="hub id (id@revision) or local folder")
    add("--prompts", required=True, help="JSONL file, or hub data set 'id[:config]'")
    add("--split", default="train", help="of a hub data set (default: train)")
    add("--field", help="field of the prompt text (default: prompt; question for a hub data set without one)")
    add("--num_prompts", type=int, default=500, help="how many prompts to draw (default: 500)")
    add("--out", required=True, type=Path, help="the calibration file to write, NAME.json")
    add(
        "--direction",
        choices=["forward", "reverse"],
        default="forward",
        help="who hosts: base, or guide (default: forward)",
    )
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
    calibrate.set_defaults(run=_calibrate)
    return root


def _calibrate(options: argparse.Namespace) -> int:
    if options.num_prompts < 1:
        raise ArgumentError(f"--num_prompts {options.num_prompts} is not at least 1")
    if options.max_gen_toks < 1:
        raise ArgumentError(f"--max_gen_toks {options.max_gen_toks} is not at least 1 token")
    _check_writable(options.out)

    from lm_eval_takeover.arguments import ModelArguments
    from lm_eval_takeover.calibrate import calibrate, read_prompts, table
    from lm_eval_takeover.loading import load_pair
    from lm_eval_takeover.sampling import Sampling

    names = ("base", "guide", "device", "guide_device", "dtype", "guide_dtype", "trust_remote_code", "batch_size")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    arguments = ModelArguments.parse({**given, "direction": options.direction})
    sampling = Sampling(options.temperature, options.top_p)
    prompts = read_prompts(
        options.prompts, split=options.split, field=options.field, count=options.num_prompts, seed=options.seed
    )
    made = calibrate(
        load_pair(arguments),
        prompts,
        direction=options.direction,
        sampling=sampling,
        max_gen_toks=options.max_gen_toks,
        seed=options.seed,
        batch_size=arguments.rows,
    )
    made.write(options.out)
    print(table(made))
    print(f"\n{made.rollouts} rollouts, {made.tokens} tokens -> {options.out}")
    if made.tokens and 30 / made.tokens > 0.001:
        print(f"few tokens: below a spike ratio of {30 / made.tokens:.2g}, fewer than 30 of them lie above tau")
    return 0


def _check_writable(out: Path) -> None:
    """Find out before hours of work, not after, that the result cannot be written."""
    if out.is_dir():
        raise ArgumentError(f"--out '{out}' is a folder; expected a file, NAME.json")
    folder = next(parent for parent in out.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ArgumentError(f"--out '{out}' cannot be written: no permission in '{folder}', or it is no folder")


def main(arguments: Sequence[str] | None = None) -> int:
    install_error_hook()
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
