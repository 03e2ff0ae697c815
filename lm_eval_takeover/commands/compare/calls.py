"""The command of each row: the words behind `lm_eval`, and where its results lie.

RUN_DIR/calibration-DIGEST.json    where none fitted
RUN_DIR/ROW/samples                the row's run_dir: its journal and traces
RUN_DIR/ROW/lm_eval.log            all that the row's processes printed
RUN_DIR/ROW/results-DIGEST         its --output_path, by a digest of all that can change a result
RUN_DIR/ROW/results-DIGEST/call.json   there once the call has ended well
RUN_DIR/leaderboard.json           the table
"""

import argparse
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.whole_files import write_text

_POLICIES = {"base": "base", "random": "random", "early": "early", "guide": "guide", "guided": "disagreement"}
_SPEED = ("batch_size", "device", "guide_device")  # change no text, so they are no part of the digest
_DIGITS = 8
ASSUMED_RATE = 0.05  # of random takeovers before a run whose gate is set by hand


@dataclass(frozen=True)
class Call:
    """One `lm_eval` process: `words` behind the program's name; `key` stands for what can change its results."""

    row: str
    words: tuple[str, ...]
    folder: Path  # RUN_DIR/ROW
    key: str

    @property
    def results(self) -> Path:
        return self.folder / f"results-{self.key}"

    @property
    def command(self) -> str:
        return shlex.join(["lm_eval", *self.words])

    def is_done(self) -> bool:
        return (self.results / "call.json").exists()

    def set_done(self) -> None:
        write_text(self.results / "call.json", json.dumps({"words": self.words}) + "\n")


def plan_calls(
    options: argparse.Namespace, row: str, gate: Mapping[str, Any], rate: float | None, tasks: Iterable[str]
) -> list[Call]:
    """The calls of one row. `gate` are the model arguments of the guided one, `rate` is what that realized.

    A thinking model has no journal, so it has a call for each of `tasks`, each of which is kept once it is done.
    """
    if row == "thinking":
        return [_make_call(options, row, options.thinking_backend, _thinking_arguments(options), [t]) for t in tasks]
    arguments: dict[str, Any] = {"base": options.base, "guide": options.guide, "policy": _POLICIES[row]}
    arguments |= gate if row == "guided" else {"rate": rate} if row in ("random", "early") else {}
    arguments |= {name: getattr(options, name) for name in ("guide_device", "guide_dtype", "enable_thinking")}
    arguments |= _shared_arguments(options) | options.model_args
    arguments["run_dir"] = options.run_dir / row / "samples"
    return [_make_call(options, row, "guided-takeover", arguments, options.tasks)]


def _shared_arguments(options: argparse.Namespace) -> dict[str, Any]:
    dtype = None if options.dtype == "auto" else options.dtype
    return {"dtype": dtype, "trust_remote_code": options.trust_remote_code or None}


def _thinking_arguments(options: argparse.Namespace) -> dict[str, Any]:
    arguments: dict[str, Any] = {"pretrained": options.thinking, "enable_thinking": options.enable_thinking}
    arguments |= _shared_arguments(options) | options.thinking_args
    return arguments


def _make_call(
    options: argparse.Namespace, row: str, model: str, arguments: Mapping[str, Any], tasks: Iterable[str]
) -> Call:
    given = {name: str(value) for name, value in arguments.items() if value is not None}
    words = ["--model", model, "--model_args", _join(given), "--tasks", ",".join(tasks)]
    batch_size = options.thinking_batch_size if row == "thinking" else None
    speed = [
        "--batch_size",
        batch_size or options.batch_size,
        *(["--device", options.device] if options.device else []),
    ]
    if options.apply_chat_template:
        words += ["--apply_chat_template"]
    if options.gen_kwargs:
        words += ["--gen_kwargs", _join(options.gen_kwargs)]
    for name in ("limit", "seed", "include_path", "metadata"):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name}", f"{value:.17g}" if isinstance(value, float) else str(value)]
    lasting = {name: value for name, value in given.items() if name not in _SPEED}
    key = digest_of([model, lasting, *words[4:]])[:_DIGITS]
    folder = options.run_dir / row
    words += [*speed, "--output_path", str(folder / f"results-{key}"), "--log_samples"]
    return Call(row, tuple(words), folder, key)


def _join(values: Mapping[str, str]) -> str:
    """As lm_eval reads it: `name=value,…`, or JSON where a value holds a comma."""
    if any("," in value for value in values.values()):
        return json.dumps(values)
    return ",".join(f"{name}={value}" for name, value in values.items())
