"""Tasks by name: this package's, those of a folder of the user's, and lm-eval's own."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from lm_eval.tasks import TaskManager

from lm_eval_takeover.errors import ArgumentError, TakeoverError, first_line, nearest
from lm_eval_takeover.storage.paths import TASK_CONFIGS


def find_tasks(
    names: Collection[str],
    include: Path | None,
    *,
    of_run: Collection[str] = (),
    option: str = "--tasks",
    metadata: dict[str, Any] | None = None,
) -> TaskManager:
    """A manager of these tasks: of this package's and those of `include` alone, where that is enough, which saves seconds.

    Raises ArgumentError for a name that is not known: one that `option` gave, or a task `of_run`.
    """
    own = [] if include is None else [str(include)]
    manager = TaskManager(include_path=[str(TASK_CONFIGS), *own], include_defaults=False, metadata=metadata)
    if not all(name in manager.all_tasks for name in names):
        manager = TaskManager(include_path=own, metadata=metadata)
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
