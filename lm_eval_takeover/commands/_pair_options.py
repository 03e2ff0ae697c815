"""Options of commands that read a stored run's texts again with its models."""

import argparse
from typing import TYPE_CHECKING

from lm_eval_takeover.commands._engine_options import add_engine_options, read_arguments, read_engine_options
from lm_eval_takeover.errors import ArgumentError

if TYPE_CHECKING:
    from lm_eval_takeover.commands._stored_pair import Choice


def add_pair_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("models, by default the run's").add_argument
    add("--base", help="hub id (id@revision) or local folder (default: the run's)")
    add("--guide", help="hub id (id@revision) or local folder (default: the run's)")
    add(
        "--batch_size",
        default="auto",
        help="samples at a time, a number or auto (default: auto); not read by vLLM",
    )
    add_engine_options(parser)
    add("--device", help="as in lm-eval's hf")
    add("--guide_device", help="default: --device")
    add("--dtype", help="as in lm-eval's hf (default: the run's)")
    add("--guide_dtype", help="default: the run's, or --dtype")
    add("--trust_remote_code", action="store_true", help="as in lm-eval's hf; never taken from the run")
    add("--model_args", metavar="NAME=VALUE,…", help="how the run's models were loaded: peft, load_in_4bit, …")
    add("--plugins", metavar="FILE+MODULE", help="files or modules with your own scores; each adds a column")


def read_choice(options: argparse.Namespace) -> "Choice":
    """What the options say of the models. Raises ArgumentError."""
    size = str(options.batch_size)
    if size != "auto" and not (size.isdigit() and int(size) > 0):
        raise ArgumentError(f"--batch_size {size} is neither auto nor a number of at least 1")
    engine = read_engine_options(options)
    from lm_eval_takeover.commands._stored_pair import Choice

    return Choice(
        base=options.base,
        guide=options.guide,
        device=options.device,
        guide_device=options.guide_device,
        dtype=options.dtype,
        guide_dtype=options.guide_dtype or options.dtype,
        trust_remote_code=options.trust_remote_code or None,
        batch_size=size,
        plugins=options.plugins,
        loading=read_arguments(options.model_args),
        engine=engine,
    )
