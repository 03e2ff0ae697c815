"""Commands as real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

TAKEOVER = [sys.executable, "-m", "lm_eval_takeover.cli"]


def environment(**extra):
    return os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | extra


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, **({"env": environment()} | options))


class CommandServer:
    """`run` for `lm_eval` and `lm-eval-takeover` where starting them is not what is tested: see `command_server.py`."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0
        self._server = subprocess.Popen(
            [sys.executable, Path(__file__).parent / "command_server.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert self._server.stdout.readline() == "ready\n"

    def run(self, program, *arguments, cwd=None, **extra):
        """As `subprocess.run` of `program` with these arguments; `extra` goes into its environment."""
        self.count += 1
        files = {name: self.folder / f"{self.count}.{name}" for name in ("stdout", "stderr")}
        asked = {
            "program": program,
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd or Path.cwd()),
            "environment": environment(**extra),
        }
        self._server.stdin.write(json.dumps(asked | {name: str(path) for name, path in files.items()}) + "\n")
        self._server.stdin.flush()
        status = int(self._server.stdout.readline())
        return subprocess.CompletedProcess(
            [program, *arguments], status, *(path.read_text() for path in files.values())
        )

    def close(self):
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()
