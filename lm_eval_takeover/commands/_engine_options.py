"""The options of commands that compute by either engine: `--backend`, and the arguments of vLLM's own."""

import argparse
from typing import Any

from lm_eval_takeover.errors import ArgumentError


def add_engine_options(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    parser.add_argument(
        "--backend", choices=("hf", "vllm"), default="hf", help="hf is transformers, vllm is vLLM (default: hf)"
    )
    parser.add_argument(
        "--engine_args", metavar="NAME=VALUE,…", help="with --backend vllm: arguments of the vLLM engine"
    )


def read_engine_options(options: argparse.Namespace) -> dict[str, Any]:
    """The model arguments that these options are; vLLM's engine is the fused pair. Raises ArgumentError."""
    if options.backend == "hf":
        if options.engine_args:
            raise ArgumentError(f"--engine_args {options.engine_args}: it is read by --backend vllm")
        return {}
    return {"backend": "vllm", "block_size": 1, **read_arguments(options.engine_args)}


def read_arguments(given: str | None) -> dict[str, Any]:
    """`NAME=VALUE,…` as lm-eval reads it."""
    if not given:
        return {}
    from lm_eval.utils import simple_parse_args_string

    return dict(simple_parse_args_string(given))
