"""Commands as real processes: started, or forked off a server that has imported what they need."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HELPERS = Path(__file__).parent
TAKEOVER = [sys.executable, "-m", "lm_eval_takeover.cli"]


def environment(**extra):
    return os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | extra


def run(command, status=None, **options):
    """A process that has ended, with this status where one is given."""
    done = subprocess.run(command, capture_output=True, text=True, **({"env": environment()} | options))
    assert status in (None, done.returncode), done.stderr
    return done


def run_code(code, **options):
    return run([sys.executable, "-c", code], **options)


def wait_until(condition, process=None, seconds=240):
    """Wait until the condition holds, which it has to do before the process ends."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.stderr
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def mounted(command):
    """The id of a process in a mount namespace of its own in which this command has mounted something."""
    keeper = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", f"{command} && echo mounted && exec cat"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        if keeper.stdout.readline() != "mounted\n":
            pytest.skip(f"cannot mount here: {keeper.stderr.read().strip()}")
        yield keeper.pid
    finally:
        keeper.communicate()


def enter_mounts(pid):
    """This process sees the files that the other one sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/mnt") as namespace:
        if libc.setns(namespace.fileno(), 0x00020000):  # CLONE_NEWNS of sched.h
            raise OSError(ctypes.get_errno(), "setns")


class ForkServer:
    """Runs `lm_eval`, `lm-eval-takeover` and scripts of Python where starting them is not what is tested: see `fork_server.py`.

    The environment is that of the server and of its processes: libraries read some of it when they are imported.
    """

    def __init__(self, folder, env):
        self.folder, self.env, self._count = folder, env, 0
        command, pipes = [sys.executable, "-m", "helpers.fork_server"], dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        self._server = subprocess.Popen(command, text=True, env=env, cwd=HELPERS.parent, start_new_session=True, **pipes)
        assert self._server.stdout.readline() == "ready\n"

    def start(self, program, *arguments, cwd=None, mounts=None, **extra):
        """A `Forked` process of a program with these arguments; `extra` goes into its environment."""
        self._count += 1
        files = {name: str(self.folder / f"{self._count}.{name}") for name in ("stdout", "stderr", "status")}
        for path in files.values():
            Path(path).touch()
        asked = {
            "program": str(program),
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd or Path.cwd()),
            "environment": self.env | extra,
            "mounts": mounts,
        }
        print(json.dumps(asked | files), file=self._server.stdin, flush=True)
        return Forked(int(self._server.stdout.readline()), files)

    def run(self, program, *arguments, status=0, **options):
        """As `run` of a program with these arguments; options as of `start`."""
        process = self.start(program, *arguments, **options)
        assert process.wait() == status, process.stderr
        return subprocess.CompletedProcess([program, *arguments], status, process.stdout, process.stderr)

    def close(self):
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


class Forked:
    """A process of a fork server's, with the texts that it has written so far."""

    def __init__(self, pid, files):
        self.pid, self._files = pid, files

    @property
    def stdout(self):
        return Path(self._files["stdout"]).read_text()

    @property
    def stderr(self):
        return Path(self._files["stderr"]).read_text()

    def poll(self):
        """The exit status, negative for a signal; None while it runs."""
        status = Path(self._files["status"]).read_text()
        return int(status) if status else None

    def wait(self, seconds=600):
        wait_until(lambda: self.poll() is not None, seconds=seconds)
        return self.poll()

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ends at this moment
                os.kill(self.pid, number)

    def kill(self):
        """End it, and wait for that."""
        self.send_signal(signal.SIGKILL)
        return self.wait()
