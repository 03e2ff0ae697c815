"""Commands as processes that are forked off this one, which has imported what they need and read lm-eval's task
files, 14,000: that takes longer than most runs.

Reads one JSON object a line: `program` ("lm_eval" or "lm-eval-takeover"), its `arguments`, `cwd`, `environment`, and the files
`stdout` and `stderr` to write to. Answers with the child's exit status. What a command does at its own start (its options before
slow imports, finding our model type, signals) is for tests of the real command.
"""

import json
import os
import signal
import sys

import torch
from lm_eval import evaluator
from lm_eval.__main__ import cli_evaluate
from lm_eval.tasks import TaskManager
from task_index import read_own_tasks_once

from lm_eval_takeover import cli, model
from lm_eval_takeover.errors import install_error_hook

read_own_tasks_once()
TaskManager()
torch.set_num_threads(1)
assert evaluator
assert model.GuidedTakeover
print("ready", flush=True)
asked = None
for line in sys.stdin:
    asked = json.loads(line)
    pid = os.fork()
    if pid == 0:
        break
    asked = None
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
if asked is not None:
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.path.insert(0, "")
    sys.argv = [asked["program"], *asked["arguments"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    install_error_hook()
    if asked["program"] == "lm_eval":
        cli_evaluate()
    else:
        sys.exit(cli.main(asked["arguments"]))
