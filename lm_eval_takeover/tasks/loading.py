"""Tasks by name: this package's, those of a folder of the user's, and lm-eval's own."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from lm_eval.tasks import TaskManager

from lm_eval_takeover.errors import ArgumentError, TakeoverError, first_line, nearest
from lm_eval_takeover.storage.paths import TASK_CONFIGS


def make_task_manager(
    names: Collection[str], include: Path | None = None, metadata: dict[str, Any] | None = None
) -> TaskManager:
    """One that knows these tasks: only this package's and those of `include`, where that is enough, which saves seconds."""
    paths = [str(TASK_CONFIGS), *([str(include)] if include else [])]
    small = TaskManager(include_path=paths, include_defaults=False, metadata=metadata)
    if all(name in small.all_tasks for name in names):
        return small
    return TaskManager(include_path=None if include is None else str(include), metadata=metadata)


def find_tasks(
    names: Collection[str],
    include: Path | None,
    *,
    of_run: Collection[str] = (),
    option: str = "--tasks",
    metadata: dict[str, Any] | None = None,
) -> TaskManager:
    """The same. Raises ArgumentError for a name that is not known: one that `option` gave, or a task `of_run`."""
    manager = make_task_manager(names, include, metadata)
    for name in names:
        if name in of_run and name not in manager.all_tasks:
            place = "is not installed" if include is None else f"is not in '{include}'"
            raise ArgumentError(f"task '{name}' of the run {place}; give --include_path, the folder of its task file")
        if name not in manager.all_tasks:
            near = of_run or [task for task in manager.all_tasks if task.startswith("takeover_")]  # lm-eval's are thousands
            raise ArgumentError(f"{option} '{name}' is not known; {nearest(name, near)}, or give --include_path")
    return manager


def load_named_tasks(
    names: Sequence[str],
    include: Path | None = None,
    option: str = "--tasks",
    metadata: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The tasks and groups that an option of a command names. Raises ArgumentError for what is unknown or cannot be loaded."""
    try:
        return dict(find_tasks(names, include, option=option, metadata=metadata).load(list(names))["tasks"])
    except TakeoverError:
        raise
    except Exception as error:  # the hub, the network and a task's own code each raise their own kinds
        raise ArgumentError(f"{option} {','.join(names)} cannot be loaded: {first_line(error)}") from error
