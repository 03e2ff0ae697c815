"""Options that several commands have, each declared once; and checks of options that several commands make.

A command adds those that it has by name and says what is different there: `add_shared(parser, "device", "seed",
dtype={"default": None})`. Start reading at `add_shared`.
"""

import argparse
import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lm_eval_takeover.arguments import KINDS, TRUTHS, check_folder, split_plugins
from lm_eval_takeover.errors import ArgumentError, nearest

_PROMPTS = (".jsonl", ".json", ".txt", ".csv", ".parquet")  # endings of files


def read_truth(text: str) -> bool:
    """`True` or `False`, as lm-eval reads them. For `type=` of an option."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"'{text}' is neither True nor False")
    return text.lower() == "true"


def number(kind: Callable[[str], Any], expected: str, fits: Callable[[Any], bool]) -> Callable[[str], Any]:
    """For `type=` of an option: reads a number of this kind, and refuses with what is `expected` one that does not fit."""

    def read(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if fits(value := kind(text)):
                return value
        raise argparse.ArgumentTypeError(f"'{text}' is not {expected}")

    return read


COUNT = number(int, "a whole number of at least 1", lambda count: count >= 1)
SHARE = number(float, "a share from 0 to below 1, such as 0.02", lambda share: 0 <= share < 1)
RATE = number(float, "a share between 0 and 1; for 5 % give 0.05", lambda rate: 0 < rate < 1)


_SHARED: Mapping[str, dict[str, Any]] = {
    "base": {"help": "hub id (id@revision) or local folder (default: the bundled demo pair)"},
    "guide": {"help": "hub id (id@revision) or local folder (default: the bundled demo pair)"},
    "direction": {
        "choices": ("forward", "reverse"),
        "default": "forward",
        "help": "forward: the base writes by default; reverse: the guide does (default: forward)",
    },
    "backend": {"choices": ("hf", "vllm"), "default": "hf", "help": "hf is transformers, vllm is vLLM (default: hf)"},
    "batch_size": {"default": "auto", "metavar": "N", "help": "samples at a time, or auto (default: auto); not in vLLM"},
    "device": {"help": "cpu, cuda, cuda:1, … (default: the GPU if there is one)"},
    "guide_device": {"metavar": "DEVICE", "help": "device of the guide (default: --device)"},
    "dtype": {"default": "auto", "help": "of the weights: auto, bfloat16, float32, … (default: auto)"},
    "guide_dtype": {"metavar": "DTYPE", "help": "dtype of the guide (default: --dtype)"},
    "trust_remote_code": {"action": "store_true", "help": "run Python code that a checkpoint brings"},
    "model_args": {"metavar": "NAME=VALUE,…", "help": "more model arguments, as in lm_eval; with vllm its engine's too"},
    "plugins": {"metavar": "FILE+MODULE", "help": "files or modules with your own scores and policies"},
    "tasks": {"nargs": "+", "metavar": "TASK", "help": "tasks and groups, as in lm_eval"},
    "include_path": {"type": Path, "metavar": "DIR", "help": "a folder of task files, as in lm_eval"},
    "apply_chat_template": {"action": "store_true", "help": "use the guide's chat template, as lm_eval does"},
    "enable_thinking": {"type": read_truth, "metavar": "BOOL", "help": "passed to the chat template: True or False"},
    "seed": {"type": int, "default": 0, "metavar": "N", "help": "seed of all random numbers (default: 0)"},
    "format": {"choices": ("table", "md", "csv", "latex", "json"), "default": "table", "help": "format (default: table)"},
    "filter": {"metavar": "NAME", "help": "of a task with several filters read this one (default: the first)"},
    "group": {"metavar": "FIELD", "help": "documents with one value of this field count as one; equal prompts always do"},
    "max_missing": {
        "type": SHARE,
        "default": 0.02,
        "metavar": "X",
        "help": "share of problems that may have no response, since they crashed or are missing (default: 0.02)",
    },
    "overwrite": {"action": "store_true", "help": "replace files that exist"},
}


def add_shared(parser: argparse._ActionsContainer, *names: str, **changes: Mapping[str, Any]) -> None:
    """Add the shared options of these names, in this order. `changes`: by name, what one has otherwise here."""
    for name in names:
        parser.add_argument(f"--{name}", **{**_SHARED[name], **changes.get(name, {})})


PAIR = ("base", "guide")
# Arguments that load models and have an option of their own; `--model_args` takes all of them.
LOADING = tuple(name for name in _SHARED if name in KINDS and KINDS[name].loads and name not in PAIR)


def add_stored_pair(parser: argparse.ArgumentParser) -> None:
    """Options of commands that read a stored run's texts again with its models."""
    models = {role: {"help": "hub id (id@revision) or local folder (default: the run's)"} for role in ("base", "guide")}
    add_shared(
        parser.add_argument_group("models, by default the run's"),
        *(*PAIR, "batch_size", "backend", *LOADING, "model_args", "plugins"),
        **models,
        dtype={"default": None, "help": "of the weights: auto, bfloat16, float32, … (default: the run's)"},
        guide_dtype={"help": "dtype of the guide (default: the run's, or --dtype)"},
        trust_remote_code={"help": "run Python code that a checkpoint brings; never taken from the run"},
        model_args={"help": "how the run's models were loaded: peft, load_in_4bit, …; arguments of the vLLM engine"},
        plugins={"help": "files or modules with your own scores; each adds a column"},
    )
    parser.add_argument("--allow", choices=["weights"], help="read texts of models whose files have changed since")


def read_stored_pair(options: argparse.Namespace) -> dict[str, Any]:
    """The model arguments that the options of `add_stored_pair` give. Raises ArgumentError."""
    size = str(options.batch_size)
    if size != "auto" and not (size.isdigit() and int(size) > 0):
        raise ArgumentError(f"--batch_size {size} is neither auto nor a number of at least 1")
    values = {**read_given(options, "batch_size", "plugins", *PAIR, *LOADING), **read_arguments(options.model_args)}
    for role in PAIR:
        check_folder(role, str(values.get(role, "")))
    split_plugins(values.get("plugins"))
    if "dtype" in values:
        values.setdefault("guide_dtype", values["dtype"])
    return {**read_engine(options.backend), **values}


def read_loading(options: argparse.Namespace) -> dict[str, Any]:
    """The model arguments that name and load the pair. Raises ArgumentError for others in `--model_args`, but vLLM's own."""
    arguments = read_arguments(options.model_args)
    for name in arguments:
        if not (KINDS[name].loads if name in KINDS else options.backend == "vllm"):
            loading = [name for name, kind in KINDS.items() if kind.loads]
            raise ArgumentError(f"--model_args {name}=… loads no model; {nearest(name, loading)}")
    return {**read_engine(options.backend), **read_given(options, *PAIR, *LOADING), **arguments}


def read_given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Those of these options that are given."""
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value is not None and (value is not False or name in TRUTHS)}


def read_engine(backend: str) -> dict[str, Any]:
    """The model arguments that `--backend` stands for; vLLM's engine is the fused pair."""
    return {"backend": "vllm", "block_size": 1} if backend == "vllm" else {}


def read_arguments(text: str | None, option: str = "model_args") -> dict[str, Any]:
    """`NAME=VALUE,…`, or a map in JSON, as lm-eval reads it. Raises ArgumentError."""
    if not text:
        return {}
    from lm_eval._cli.utils import key_val_to_dict

    try:
        return dict(json.loads(text)) if text.lstrip().startswith("{") else dict(key_val_to_dict(text))
    except ValueError as error:
        raise ArgumentError(f"--{option} '{text}' is neither NAME=VALUE,… nor a map in JSON: {error}") from error


def list_fields(field: str | None, has_task: bool) -> tuple[str, ...]:
    """The fields of which a file of prompts has one: `--field`; else a task's problems, or whole prompts."""
    return (field,) if field else ("problem", "question") if has_task else ("prompt",)


def check_prompts(source: str | None, field: str | None, *, has_task: bool) -> None:
    """Raise ArgumentError where `--prompts` can only be a file and there is none, or its first line has no field of a prompt."""
    from lm_eval_takeover.results.documents import read_lines

    path, names = Path(source or ""), list_fields(field, has_task)
    if source and path.exists():
        first = next(read_lines(path, "one JSON object per line"), None)
        if first is None:
            raise ArgumentError(f"--prompts '{source}' holds no prompt; expected one JSON object with '{names[0]}' per line")
        if not any(name in first for name in names):
            told = f"no text in field '{names[0]}' (its fields: {', '.join(first) or 'none'})"
            raise ArgumentError(f"--prompts '{source}': {told}; name the field with --field")
    elif source and (source.endswith(_PROMPTS) or source.startswith(("/", ".", "~"))):
        raise ArgumentError(f"--prompts '{source}' does not exist; expected a JSONL file, or a data set of the hub")


def check_include_path(options: argparse.Namespace) -> None:
    """Raise ArgumentError where `--include_path` is not a folder."""
    if options.include_path is not None and not options.include_path.is_dir():
        raise ArgumentError(f"--include_path '{options.include_path}' is not a folder of task files")
