"""Commands as real processes."""

import os
import subprocess
import sys

TAKEOVER = [sys.executable, "-m", "lm_eval_takeover.cli"]


def environment(**extra):
    return os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | extra


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, **({"env": environment()} | options))
