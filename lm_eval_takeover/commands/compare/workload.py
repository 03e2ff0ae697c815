"""The work of the tasks of a comparison. No model is read."""

import contextlib
from dataclasses import dataclass
from typing import Any

from lm_eval._cli.utils import key_val_to_dict, try_parse_json
from lm_eval.evaluator_utils import get_sample_size

from lm_eval_takeover.commands.compare.comparison import Comparison
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.results.problems import ReadOptions, choose_accuracy
from lm_eval_takeover.tasks.instances import read_generation_settings
from lm_eval_takeover.tasks.loading import load_named_tasks

_DEFAULT_TOKENS = 256  # new tokens where a task says nothing, as guided-takeover


@dataclass(frozen=True)
class TaskLoad:
    """One task: `problems` under `--limit`, `samples` of each, at most `tokens` new tokens in a sample."""

    task: str
    problems: int
    samples: int
    tokens: int
    sampling: Sampling
    loaded: Any = None  # lm-eval's object


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


def read_workload(asked: Comparison) -> list[TaskLoad]:
    """The single tasks, also of groups. Raises ArgumentError for a task that is unknown or cannot be compared, ResultsError
    for one without the field of `--group`."""
    tasks = load_named_tasks(asked.tasks, asked.include_path, metadata=_read_metadata(asked.metadata))
    given = {k: v for pair in asked.gen_kwargs.items() for k, v in key_val_to_dict("=".join(pair)).items()}
    loads = []
    for name, task in tasks.items():
        if task.OUTPUT_TYPE != "generate_until":
            raise ArgumentError(f"--tasks {name} is {task.OUTPUT_TYPE}; expected tasks that generate texts")
        ReadOptions(group=asked.group).find_group(name, task.eval_docs[0])
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
        problems = min(len(task.eval_docs), get_sample_size(task, asked.limit) or len(task.eval_docs))
        loads.append(TaskLoad(name, problems, task.config.repeats or 1, tokens, sampling, task))
    return loads
