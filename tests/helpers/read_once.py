"""What costs lm-eval seconds in every process and is the same in all of them: the index of its own tasks, 14,000 files, and what
it says of the machine, for which it runs pip and a dozen other programs at every evaluation.
"""

import fcntl
import functools
import pickle
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


def value_once(path, make):
    """The value of `make()`, kept in a file for others."""
    return pickle.loads(made_once(path, lambda new: new.write_bytes(pickle.dumps(make()))).read_bytes())


def read_harness_once(folder):
    """Have processes that share this folder read lm-eval's tasks once, and describe the machine once."""
    own, build, describe = Path(tasks.__file__).parent, TaskIndex.build, collect_env.get_pretty_env_info

    @functools.cache
    def index_own():
        return value_once(folder / "lm-eval-tasks.pickle", lambda: build([own]))

    def build_index(paths, **options):
        index = {}
        for path in paths:
            index |= index_own() if path == own and not options else build([path], **options)
        return index

    TaskIndex.build = staticmethod(build_index)
    collect_env.get_pretty_env_info = functools.cache(lambda: value_once(folder / "machine.pickle", describe))
