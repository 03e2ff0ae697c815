"""An attempt at a run on the demo task: `attempt.py SPEC`, which ends as the lm_eval command would.

The spec is a JSON object: `arguments` of the model, `limit`, `out` for results and samples, `log` for what is printed, and
perhaps `fault`, the name of one below, its `number`, and `part`, the size of a part in tokens.
"""

import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

from lm_eval.utils import handle_non_serializable

from helpers.demo_runs import evaluate
from lm_eval_takeover.runs import journal, parquet
from lm_eval_takeover.storage import files
from lm_eval_takeover.tasks import benchmarks


def die():
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def at_call(number, owner, name, action=lambda *_: die()):
    """Do something with the arguments of the so-many-th call of a function, before it."""
    plain, calls = getattr(owner, name), itertools.count(1)

    def counted(*arguments, **options):
        if next(calls) == number:
            action(*arguments)
        return plain(*arguments, **options)

    setattr(owner, name, counted)


def die_inside(number, method):
    """Die inside the transaction of the so-many-th call of a method of the journal, after its rows are in."""
    at_call(number, journal.Journal, method, lambda written, *_: setattr(written, "update_attempt", die))


FAULTS = {
    "in a commit": lambda n: die_inside(n, "add"),
    "as a part is written": lambda n: at_call(n, files.os, "fsync"),
    "after a part is renamed": lambda n: at_call(n, files, "sync_folder"),
    "in the commit of verdicts": lambda n: die_inside(n, "add_verdicts"),
    "an exception while scoring": lambda n: at_call(n, benchmarks, "score_samples", lambda *_: 1 / 0),
}


def attempt(spec):
    log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv[0] = "lm_eval"  # errors and signals are told as under the command
    parquet.PART_TOKENS = spec.get("part", 1000)  # tokens: so that the drills see many parts
    if "fault" in spec:
        FAULTS[spec["fault"]](spec.get("number", 1))
    found = evaluate("guided-takeover", ["takeover_demo"], spec["arguments"], spec["limit"])
    outcome = {"takeover": found["config"]["takeover"]} | {name: found[name] for name in ("results", "samples")}
    files.write_text(Path(spec["out"]), json.dumps(outcome, default=handle_non_serializable, sort_keys=True))


if __name__ == "__main__":
    attempt(json.loads(sys.argv[1]))
