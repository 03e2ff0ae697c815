"""What a comparison reads: the work of its tasks, and digests of all that can change the results of a row.

An argument that names files counts by what is in them: a file or folder by its bytes, a model of the hub by its commit, a task by
its configuration, its code and its documents, ours and other packages by their code or versions. What cannot be known is never
equal to itself: its row is made anew. No model is read.
"""

import argparse
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import itertools
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from os.path import expanduser
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, try_to_load_from_cache
from lm_eval._cli.utils import key_val_to_dict, try_parse_json
from lm_eval.evaluator_utils import get_sample_size

from lm_eval_takeover.calibration.files import packaged_calibrations
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.pair.ids import locate
from lm_eval_takeover.results.problems import choose_accuracy
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.tasks.instances import read_generation_settings
from lm_eval_takeover.tasks.loading import load_named_tasks

_PACKAGE = Path(__file__).parents[2]
_MODELS = ("base", "guide", "peft", "guide_peft", "pretrained", "tokenizer", "delta")  # hub ids, here or in lm-eval's `hf`
_ENGINES = ("bitsandbytes", "peft", "tokenizers", "vllm")  # that write texts and are not required
_SECONDS = 5.0  # to ask the hub
_DEFAULT_TOKENS = 256  # new tokens where a task says nothing, as guided-takeover


@dataclass(frozen=True)
class TaskLoad:
    """One task: `problems` under `--limit`, `samples` of each, at most `tokens` new tokens in a sample."""

    task: str
    problems: int
    samples: int
    tokens: int
    sampling: Sampling
    form: str = ""  # digest of its configuration and code
    digest: str = ""  # the same with its documents


def _read_metadata(text: str | None) -> dict[str, Any] | None:
    """As lm-eval reads `--metadata`: a JSON object, or `a=1,b=2`. Raises ArgumentError for anything else."""
    if not text:
        return None
    with contextlib.suppress(ValueError):
        parsed = try_parse_json(text)
        parsed = key_val_to_dict(parsed) if isinstance(parsed, str) else parsed
        if isinstance(parsed, dict):
            return parsed
    raise ArgumentError(f"--metadata '{text}' is neither a JSON object nor NAME=VALUE,…")


def read_workload(options: argparse.Namespace) -> list[TaskLoad]:
    """The single tasks, also of groups. Raises ArgumentError for a task that is unknown or cannot be compared."""
    tasks = load_named_tasks(options.tasks, options.include_path, metadata=_read_metadata(options.metadata))
    given = {k: v for pair in options.gen_kwargs.items() for k, v in key_val_to_dict("=".join(pair)).items()}
    loads = []
    for name, task in tasks.items():
        if task.OUTPUT_TYPE != "generate_until":
            raise ArgumentError(f"--tasks {name} is {task.OUTPUT_TYPE}; expected tasks that generate texts")
        combined = task.aggregation()
        metric = choose_accuracy(combined)
        how = combined.get(metric)
        if metric is None or (how.__module__ == "lm_eval.api.metrics" and how.__name__ != "mean"):
            raise ArgumentError(
                f"--tasks {name} has {f'the metric {metric}' if metric else 'no metric'}; expected one that says of each sample "
                f"whether it is correct, such as acc or exact_match"
            )
        settings = {**(task.config.generation_kwargs or {}), **given}
        sampling, _, tokens = read_generation_settings(settings, _DEFAULT_TOKENS)
        problems = min(len(task.eval_docs), get_sample_size(task, options.limit) or len(task.eval_docs))
        loads.append(TaskLoad(name, problems, task.config.repeats or 1, tokens, sampling, *_identify_task(task, problems)))
    return loads


def _identify_task(task: Any, limit: int) -> tuple[str, str]:
    """Of a task of lm-eval: its configuration and the code that it names; and these with so many documents and their answers."""
    config = task.config.to_dict(keep_callable=True)
    config["metadata"] = {name: value for name, value in (config.get("metadata") or {}).items() if name != "config_source"}
    functions = [type(task)]
    named = _name_functions(config, functions)
    sources = set(filter(None, map(inspect.getsourcefile, functions)))
    files = {file for source in sources for file in Path(source).parent.glob("*.py")}
    code = sorted((file.name, digest_path(file)) for file in files)
    shots = list(task.fewshot_docs()) if config.get("num_fewshot") else []
    form = digest_of([named, code])
    return form, digest_of([form, list(itertools.islice(task.eval_docs, limit)), shots])


def _name_functions(value: Any, found: list[Any]) -> Any:
    """JSON values in which functions are their names; `found` collects them, as their code is digested apart."""
    if isinstance(value, functools.partial):
        return [_name_functions(each, found) for each in (value.func, value.args, value.keywords)]
    if isinstance(value, Mapping):
        return {str(name): _name_functions(each, found) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_name_functions(each, found) for each in value]
    if (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ != "builtins":
        found.append(value)
    return getattr(value, "__qualname__", value)


def identify_arguments(arguments: Mapping[str, str]) -> dict[str, Any]:
    """Model arguments by content."""
    return {name: _identify_argument(name, value, arguments) for name, value in arguments.items()}


def _identify_argument(name: str, value: str, others: Mapping[str, str]) -> Any:
    if name == "plugins":
        return [_identify_plugin(each) for each in value.split("+")]
    if name == "calibration":
        return _identify_calibration(value, others.get("target_rate"))
    if name in _MODELS:
        value, revision = locate(value)
        if not Path(value).exists():
            own = f"{'guide_' if name.startswith('guide') else ''}revision"
            return find_commit(value, revision or others.get(own))
    path = Path(expanduser(value))
    is_path = name in _MODELS or "/" in value  # not the name of a policy, of which a folder may stand there
    return digest_path(path) if is_path and (path.is_file() or path.is_dir()) else value


def _identify_calibration(name: str, rate: str | None) -> Any:
    """By what a row of this rate reads: rates that are added later, for other rows, change nothing."""
    path = packaged_calibrations().get(name, Path(name))
    if not path.is_file():
        stem, _, column = name.rpartition(":")
        return [_identify_calibration(stem, rate), column] if stem else name
    content = json.loads(path.read_text())
    targets = [target for target in content.get("targets", []) if str(target["target_rate"]) == rate]
    return digest_of(content | {"targets": targets, "checksum": None})


def _identify_plugin(name: str) -> str:
    path = Path(expanduser(name))
    if path.exists():
        return digest_path(path)
    spec = importlib.util.find_spec(name)
    origin = Path(str(spec.origin if spec else name))
    return digest_path(origin.parent if origin.name == "__init__.py" else origin)


@functools.cache
def find_commit(name: str, revision: str | None) -> str:
    """The commit of a hub repository: as the hub says, else as the cache has it."""
    try:
        return f"{name}@{HfApi().repo_info(name, revision=revision, timeout=_SECONDS).sha}"
    except Exception:  # no network, no such repository: each has errors of its own
        for file in ("config.json", "adapter_config.json"):
            found = try_to_load_from_cache(name, file, revision=revision or "main")
            if isinstance(found, str):
                return f"{name}@{Path(found).parent.name}"
    return uuid.uuid4().hex


def digest_path(path: Path) -> str:
    """Of a file, or of all files in a folder, but for hidden ones and Python's caches."""
    files = [path]
    if path.is_dir():
        files = [each for each in sorted(path.rglob("*")) if each.is_file()]
        files = [
            each for each in files if not any(part[0] == "." or part == "__pycache__" for part in each.relative_to(path).parts)
        ]
    return _digest_files(path, tuple((file, (at := file.stat()).st_size, at.st_mtime_ns, at.st_ino) for file in files))


@functools.cache
def _digest_files(path: Path, files: Sequence[tuple[Any, ...]]) -> str:
    """Each file is read once in this process, unless it changes."""
    digest = hashlib.blake2b(digest_size=16)
    for file, *_ in files:
        with file.open("rb") as stream:
            digest.update(f"{file.relative_to(path)}\0".encode() + hashlib.file_digest(stream, "blake2b").digest())
    return digest.hexdigest()


@functools.cache
def identify_code(*folders: str) -> list[Any]:
    """This package's code, or that of these folders of it, and the versions of what it needs."""
    required = (requirement for requirement in metadata.requires("lm-eval-takeover") or [] if "extra ==" not in requirement)
    names = {*_ENGINES, *(re.split(r"[^\w.-]", requirement)[0] for requirement in required)}
    versions = {name: _find_version(name) for name in sorted(names)}
    return [[digest_path(_PACKAGE / folder) for folder in folders or ("",)], versions]


def _find_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
