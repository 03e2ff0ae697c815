"""What one process makes for all that run beside it; and lm-eval without what costs it seconds in every process."""

import fcntl
from pathlib import Path

from lm_eval import tasks
from lm_eval.tasks._index import TaskIndex
from torch.utils import collect_env


def made_once(path, make):
    """`path`, where `make(path)` has put a file or a folder in the first process that asked for it."""
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            new = path.with_name(f"{path.name}.new")
            make(new)
            new.rename(path)
    return path


def lighten_harness():
    """Of lm-eval's own tasks, 14,000 files, one folder is read. It asks pip and a dozen other programs nothing of the machine."""
    own, build = Path(tasks.__file__).parent, TaskIndex.build

    def build_index(paths, **options):
        return build([path / "gsm8k" if path == own else path for path in paths], **options)

    TaskIndex.build = staticmethod(build_index)
    collect_env.get_pretty_env_info = lambda: "a machine"
