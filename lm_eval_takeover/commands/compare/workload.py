"""The work that the tasks ask for: problems, samples, decoding. Reads task files and data sets, no models."""

import argparse
from dataclasses import dataclass
from typing import Any

from lm_eval._cli.utils import key_val_to_dict, try_parse_json
from lm_eval.evaluator_utils import get_sample_size

from lm_eval_takeover.commands.compare.contents import identify_task
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.results.problems import choose_accuracy
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
    form: str = ""  # digest of its configuration and code
    digest: str = ""  # the same with its documents


def read_workload(options: argparse.Namespace) -> list[TaskLoad]:
    """The single tasks, also of groups. Raises ArgumentError for a task that is unknown or cannot be loaded."""
    metadata = try_parse_json(options.metadata) if options.metadata else None
    metadata = key_val_to_dict(metadata) if isinstance(metadata, str) else metadata
    tasks = load_named_tasks(options.tasks, options.include_path, metadata=metadata)
    given = {k: v for pair in options.gen_kwargs.items() for k, v in key_val_to_dict("=".join(pair)).items()}
    loads = []
    for name, task in tasks.items():
        if task.OUTPUT_TYPE != "generate_until":
            raise ArgumentError(f"--tasks {name} is {task.OUTPUT_TYPE}; expected tasks that generate texts")
        _check_metric(name, task)
        settings = {**(task.config.generation_kwargs or {}), **given}
        sampling, _, tokens = read_generation_settings(settings, _DEFAULT_TOKENS)
        problems = min(len(task.eval_docs), get_sample_size(task, options.limit) or len(task.eval_docs))
        own = identify_task(task, problems)
        loads.append(TaskLoad(name, problems, task.config.repeats or 1, tokens, sampling, *own))
    return loads


def _check_metric(name: str, task: Any) -> None:
    """Raises ArgumentError if the task's accuracy is not a mean over problems, so no share of correct answers."""
    combined = task.aggregation()
    metric = choose_accuracy(combined)
    how = combined.get(metric)
    if metric is None or (how.__module__ == "lm_eval.api.metrics" and how.__name__ != "mean"):
        raise ArgumentError(
            f"--tasks {name} has {f'the metric {metric}' if metric else 'no metric'}; expected one that says of each sample "
            f"whether it is correct, such as acc or exact_match"
        )
