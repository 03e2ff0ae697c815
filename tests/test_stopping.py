"""A signal ends a process wherever it arrives."""

import signal

import psutil
from helpers.processes import run_code


def run(name):
    """SIGTERM comes within a finaliser, where Python drops exceptions; then the process goes on for a minute."""
    done = run_code(f"""
import os, signal, subprocess, sys, time
from lm_eval_takeover import stopping

class Finalised:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

stopping.{name}()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
Finalised()
print("goes on", flush=True)
child.kill()
""")
    child, *more = done.stdout.split(maxsplit=1)
    return done.returncode, more, int(child)


def test_what_is_raised_may_be_lost_and_an_end_is_not():
    assert run("catch_sigterm")[:2] == (0, ["goes on\n"])
    status, said, child = run("end_with_children")
    assert (status, said, psutil.pid_exists(child)) == (128 + signal.SIGTERM, [], False)
