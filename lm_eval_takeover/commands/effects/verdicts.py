"""Whether continued texts are correct, by the tasks that the run was asked."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance

from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.runs.run_reader import RunReader
from lm_eval_takeover.tasks.benchmarks import Record
from lm_eval_takeover.tasks.loading import make_task_manager
from lm_eval_takeover.tasks.responses import Response

Problem = tuple[str, int]  # task, document


def load_tasks(run: RunReader, names: Sequence[str], include: Path | None) -> dict[str, Any]:
    """The run's tasks as they are installed, or in `include`. Raises ArgumentError for unknown names."""
    manager = make_task_manager(names, include)
    for name in names:
        if name not in manager.all_tasks:
            raise ArgumentError(
                f"task '{name}' of the run is not known; {nearest(name, run.tasks)}, or give --include_path"
            )
    return dict(manager.load(list(names))["tasks"])


def judge(
    run: RunReader, tasks: Mapping[str, Any], responses: Mapping[Problem, Sequence[Response]]
) -> dict[Problem, list[bool]]:
    """A verdict on each response. Raises ArgumentError for a problem that is another one than the run was asked."""
    verdicts: dict[Problem, list[bool]] = {}
    for name, task in tasks.items():
        problems = [problem for problem in responses if problem[0] == name]
        documents = list(task.eval_docs)
        instances = []
        for _, doc_id in problems:
            _check_document(run, name, doc_id, documents)
            instance = Instance("generate_until", documents[doc_id], ("", {}), 0, metadata=(name, doc_id, 1))
            instance.resps = list(responses[name, doc_id])
            instances.append(instance)
        for filtering in task._filters if instances else ():
            filtering.apply(instances)
        for problem, instance in zip(problems, instances, strict=True):
            record = next(iter(instance.filtered_resps.values()))
            if not isinstance(record, Record):
                raise ArgumentError(
                    f"task '{name}': effects need a verdict on each sample; give the task file class: SampledTask (docs/tasks.md)"
                )
            verdicts[problem] = [outcome == "correct" for _, outcome in record]
    return verdicts


def _check_document(run: RunReader, name: str, doc_id: int, documents: Sequence[Mapping[str, Any]]) -> None:
    gold = run.prompts[name, doc_id][0]["answer"]
    if doc_id >= len(documents) or (gold is not None and str(documents[doc_id].get("answer")) != gold):
        raise ArgumentError(
            f"task '{name}', doc {doc_id} is another problem than the one that the run in '{run.folder}' was asked; its data set "
            f"has changed"
        )
