"""What a task asks with: its template and its decoding settings, so that a calibration meets what the run will meet."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval_takeover.errors import ArgumentError, TakeoverError, first_line, nearest
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.tasks.instances import read_generation_settings
from lm_eval_takeover.tasks.loading import make_task_manager
from lm_eval_takeover.tasks.sampled import SampledTask, drop_headers


@dataclass(frozen=True, slots=True)
class TaskForm:
    """A generation task as `calibrate` sees it; `render` makes the prompt of a document, before any chat template."""

    name: str
    render: Callable[[dict[str, Any]], str]
    template: str | None  # None where the task makes its prompts in Python
    sampling: Sampling
    until: tuple[str, ...]
    max_gen_toks: int
    documents: Sequence[dict[str, Any]]


def load_task_form(name: str, include: Path | None, default_max_gen_toks: int, *, chat: bool = False) -> TaskForm:
    """The form of this task, or of a group whose tasks share theirs; with `chat`, as it is under a chat template.

    Raises ArgumentError for a task that has no single form.
    """
    tasks = list(_load_tasks(name, include).values())
    task = tasks[0]
    forms = {json.dumps([str(t.config.doc_to_text), t.config.generation_kwargs], default=str) for t in tasks}
    if len(forms) > 1:
        raise ArgumentError(
            f"--task {name} holds tasks of {len(forms)} forms ({', '.join(str(t.config.task) for t in tasks)}); name one of them"
        )
    if task.OUTPUT_TYPE != "generate_until":
        raise ArgumentError(
            f"--task {name} is {task.OUTPUT_TYPE}; only what generate_until writes can be calibrated on"
        )
    for field in ("num_fewshot", "description", "gen_prefix"):
        if value := getattr(task.config, field, None):
            raise ArgumentError(
                f"--task {name} sets {field}={value!r}, which its template does not hold; write prompts as they are asked into a "
                f"JSONL file, or give --template"
            )
    sampling, until, max_gen_toks = read_generation_settings(task.config.generation_kwargs or {}, default_max_gen_toks)
    documents = list(task.eval_docs)
    if chat and documents and isinstance(task, SampledTask):
        until = tuple(drop_headers(until, task.doc_to_text(documents[0])))
    template = task.config.doc_to_text if isinstance(task.config.doc_to_text, str) else None
    return TaskForm(name, task.doc_to_text, template, sampling, until, max_gen_toks, documents)


def _load_tasks(name: str, include: Path | None) -> dict[str, Any]:
    manager = make_task_manager([name], include)
    if name not in manager.all_tasks:
        ours = [task for task in manager.all_tasks if task.startswith("takeover_")]  # lm-eval's own are thousands
        raise ArgumentError(f"--task '{name}' is not known; {nearest(name, ours)}, or give --include_path")
    try:
        return dict(manager.load([name])["tasks"])
    except TakeoverError:
        raise
    except Exception as error:  # the hub, the network and a task's own code each raise their own kinds
        raise ArgumentError(f"--task {name} cannot be loaded: {first_line(error)}") from error
