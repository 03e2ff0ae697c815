"""Commands as real processes: started, or forked off a server that has imported what they need."""

import contextlib
import json
import os
import select
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


def pointed_at(server, home):
    """The environment of a process that reads the stand-in for the hub, which is on the path where there is one."""
    from serve_hub import environment as at_hub

    return at_hub(server.url, str(home)) | {"OMP_NUM_THREADS": "1"}


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, **({"env": environment()} | options))


def wait_until(condition, process=None, seconds=240):
    """Wait until the condition holds, which it has to do before the process ends."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.stderr
        assert time.monotonic() < deadline
        time.sleep(0.02)


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


class ForkServer:
    """Runs `lm_eval`, `lm-eval-takeover` and scripts of Python where starting them is not what is tested: see `fork_server.py`.

    `shared` is a folder for what servers of several workers read. The environment is that of the server and of its processes:
    libraries read some of it when they are imported.
    """

    def __init__(self, folder, shared, env):
        self.folder, self.env = folder, env
        self._count, self._ended = 0, {}
        self._server = subprocess.Popen(
            [sys.executable, HELPERS / "fork_server.py", shared],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=env,
        )  # fmt: skip
        assert self._read() == ["ready"]

    def start(self, program, *arguments, cwd=None, mounts=None, **extra):
        """A `Forked` process of a program with these arguments; `extra` goes into its environment."""
        self._count += 1
        files = {name: str(self.folder / f"{self._count}.{name}") for name in ("stdout", "stderr")}
        for path in files.values():
            Path(path).touch()
        asked = {
            "program": str(program),
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd or Path.cwd()),
            "environment": self.env | extra,
            "mounts": mounts,
        }
        self._server.stdin.write(json.dumps(asked | files).encode() + b"\n")
        while (said := self._read())[0] != "started":
            self._note(said)
        return Forked(self, said[1], files)

    def run(self, program, *arguments, **options):
        """As `subprocess.run` of a program with these arguments; options as of `start`."""
        process = self.start(program, *arguments, **options)
        status = process.wait()
        return subprocess.CompletedProcess([program, *arguments], status, process.stdout, process.stderr)

    def status(self, pid, seconds=None):
        """The exit status of a process; None if it has not ended so many seconds from now."""
        end = None if seconds is None else time.monotonic() + seconds
        while pid not in self._ended:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._server.stdout], [], [], left)[0]:
                return None
            self._note(self._read())
        return self._ended[pid]

    def _read(self):
        return json.loads(self._server.stdout.readline())

    def _note(self, said):
        _, pid, status = said
        self._ended[pid] = status

    def close(self):
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


class Forked:
    """A process of a fork server's, with the texts that it has written so far."""

    def __init__(self, server, pid, files):
        self.pid, self._server, self._files = pid, server, files

    @property
    def stdout(self):
        return Path(self._files["stdout"]).read_text()

    @property
    def stderr(self):
        return Path(self._files["stderr"]).read_text()

    def poll(self):
        """The exit status, negative for a signal; None while it runs."""
        return self._server.status(self.pid, 0)

    def wait(self, seconds=600):
        status = self._server.status(self.pid, seconds)
        assert status is not None, f"process {self.pid} has not ended: {self.stderr}"
        return status

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ends at this moment
                os.kill(self.pid, number)

    def kill(self):
        """End it, and wait for that."""
        self.send_signal(signal.SIGKILL)
        return self.wait()
