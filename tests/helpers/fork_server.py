"""Processes that are forked off this one, which has imported what they need: that takes longer than most of what they do.

It reads one JSON object a line: the `program` ("lm_eval", "lm-eval-takeover" or the path of a script), its `arguments`, `cwd`,
`environment`, the files `stdout`, `stderr` and `status` to write to, and perhaps `mounts`, a process in whose mount namespace it
is to run. Answers with the pid. What a command does at its own start (its options before slow imports, finding our model type,
signals) is for tests of the real command.
"""

import gc
import json
import os
import runpy
import signal
import sys
import threading
from pathlib import Path

import torch
from lm_eval import evaluator, simple_evaluate
from lm_eval.__main__ import cli_evaluate
from lm_eval.tasks import TaskManager
from tqdm import tqdm

from helpers.processes import enter_mounts
from helpers.read_once import lighten_harness

sys.path.insert(0, str(Path(__file__).parent.parent))
from lm_eval_takeover import cli, model


def serve():
    """Fork until the input ends, which ends all children, too. Returns in each child, with what it was asked.

    Between this process and a child stands one that waits for it: it prints the child's pid, and writes its exit status.
    """
    print("ready", flush=True)
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asked, pid = json.loads(line), os.fork()
            if pid == 0:
                return asked
            print(pid, flush=True)
            Path(asked["status"]).write_text(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
            os._exit(0)
    os.killpg(0, signal.SIGKILL)


def become(program, arguments, cwd, environment, stdout, stderr, mounts, status):
    """Do what the program does with these arguments."""
    for descriptor, name in ((1, stdout), (2, stderr)):
        os.dup2(os.open(name, os.O_WRONLY), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if mounts is not None:
        enter_mounts(mounts)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = ["", *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [program, *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if program == "lm_eval":
        cli_evaluate()
    elif program == "lm-eval-takeover":
        sys.exit(cli.main(arguments))
    else:
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    lighten_harness()
    TaskManager()
    torch.set_num_threads(1)
    assert evaluator and simple_evaluate  # which are imported when they are asked for
    # A bar's own lock is one of all forks, and a child that is killed while it holds it would stop all others.
    tqdm.set_lock(threading.RLock())
    tqdm.monitor_interval = 0
    model.GuidedTakeover()  # for what libraries import and build when they load a first model
    assert threading.active_count() == 1  # what others hold is never given back in a child
    gc.freeze()  # so that no child looks through what it shares with this process, and so copies it
    become(**serve())
