"""The options of `serve`, and the command of vLLM that it becomes."""

import argparse
import os
import socket
import sys
from collections.abc import Sequence

from lm_eval_takeover.commands._options import add_shared, read_arguments
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.stopping import end_at_once

HELP = "serve a pair with an OpenAI-compatible API (vLLM)"
DESCRIPTION = """\
Start vLLM's server for a guided pair. OpenAI clients can use it; each answer reports its takeovers. --model_args sets the
gate; a request may change it with `takeover_…` in its `vllm_xargs`. Options after `--` go to `vllm serve`."""
EXAMPLE = """example:
  lm-eval-takeover serve --model_args base=Qwen/Qwen3-0.6B-Base,guide=Qwen/Qwen3-8B,calibration=my-pair.json \\
      --port 8000 -- --gpu-memory-utilization 0.8
  curl http://127.0.0.1:8000/v1/completions -d '{"model": "guided", "prompt": "2 + 2 =", "max_tokens": 20,
      "vllm_xargs": {"takeover_tau": 1.2}}' -H 'Content-Type: application/json'
"""
MIDDLEWARE = "lm_eval_takeover.serve.server.TakeoverMiddleware"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    more = {"default": "", "help": "model arguments, as in lm_eval (default: the demo pair)"}
    add_shared(parser, "model_args", model_args=more)
    add("--host", default="127.0.0.1", help="address (default: 127.0.0.1)")
    add("--port", type=int, default=8000, metavar="N", help="port (default: 8000)")
    add("--name", default="guided", help="the model's name for clients (default: guided)")
    add("rest", nargs="*", default=[], metavar="-- OPTION", help="options of `vllm serve`")


def run(options: argparse.Namespace) -> int:
    end_at_once()  # nothing is kept
    check_address(options.host, options.port)
    values = read_arguments(options.model_args)
    from lm_eval_takeover.pair.pair import load_pair
    from lm_eval_takeover.pair.policy_choice import load_policy, parse_arguments
    from lm_eval_takeover.vllm.launch import check_version, count_engines, list_engine_arguments, list_words, plan_drafts

    arguments = parse_arguments({**values, "backend": "vllm"})
    for name in ("add_bos_token", "guide_add_bos_token"):
        if getattr(arguments, name) is not None:
            problem = f"{name}={getattr(arguments, name)}: the server encodes prompts by its tokenizer's file"
            raise ArgumentError(f"{problem}; leave it out, and set add_special_tokens in requests")
    check_version()
    count_engines(arguments)
    pair = load_pair(arguments)
    policy, _ = load_policy(arguments, pair)
    engine = list_engine_arguments(arguments, pair, policy, plan_drafts(arguments, pair, policy))
    words = list_words({**engine, "host": options.host, "port": options.port, "served_model_name": options.name})
    check_rest(options.rest, words)
    words += ["--middleware", MIDDLEWARE, *options.rest]
    command = [sys.executable, "-m", "lm_eval_takeover.serve.server", *words]
    sys.stdout.flush()
    os.execv(command[0], command)


def check_address(host: str, port: int) -> None:
    """Raises ArgumentError for an address that no server can listen at: vLLM would find out after the models are loaded."""
    if not 0 < port < 2**16:
        raise ArgumentError(f"--port {port} is not a port; expected 1 to 65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server((host, port), family=family):
            pass
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error
        raise ArgumentError(
            f"--host {host} --port {port} cannot be used: {reason}; give an address of this machine and a free port"
        ) from error


def check_rest(rest: Sequence[str], words: Sequence[str]) -> None:
    """Raises ArgumentError for an option after `--` that stands in `words` already: vLLM would take the last, unchecked."""
    for option in (word.partition("=")[0] for word in rest if word.startswith("--")):
        if option.replace("_", "-") in words:
            raise ArgumentError(f"{option} after `--` is set by `serve` itself; give it before, or in --model_args")
