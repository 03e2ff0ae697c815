"""The work of each row: its tasks, and how many texts of which length they ask for."""

from dataclasses import dataclass
from typing import Any

from lm_eval.evaluator_utils import get_sample_size

from lm_eval_takeover.commands.compare.comparison import Comparison
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.results.problems import ReadOptions, choose_accuracy
from lm_eval_takeover.tasks.instances import read_generation_settings
from lm_eval_takeover.tasks.sampled import load_named_tasks

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


def read_workload(asked: Comparison) -> list[TaskLoad]:
    """The single tasks, also of groups. Raises ArgumentError, or ResultsError for one without the field of `--group`."""
    tasks = load_named_tasks(asked.tasks, asked.harness.get("include_path"), metadata=asked.harness.get("metadata"))
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
        settings = {**(task.config.generation_kwargs or {}), **asked.harness.get("gen_kwargs", {})}
        sampling, _, tokens = read_generation_settings(settings, _DEFAULT_TOKENS)
        problems = min(len(task.eval_docs), get_sample_size(task, asked.harness.get("limit")) or len(task.eval_docs))
        loads.append(TaskLoad(name, problems, task.config.repeats or 1, tokens, sampling, task))
    return loads
