"""A worker process: reads a JSON question a line, writes a line for each step and for the result.

Each step has its own limit of processor time; the kernel ends a worker that exceeds it. A question holds the results of the steps
before, so a worker that is started anew goes on there.
"""

import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import IO, Any

from lm_eval_takeover.answers.samples import Question, Ran, judge_samples
from lm_eval_takeover.answers.verification import verify


class Steps:
    """The steps of one question, each under its clock; writes what each gave. Those that are `done` are not run again."""

    loaded = False  # sympy and the grammar

    def __init__(self, time_limit: float, answers: IO[str], done: list[list[Any]]):
        self.time_limit, self.answers, self.done = time_limit, answers, done[::-1]

    def __call__(self, step: Callable[[], Any], mathematics: bool) -> Ran:
        if self.done:
            return Ran(*self.done.pop())
        if mathematics and not Steps.loaded:
            self._write({"loading": True})
            verify(r"\sqrt{8}", r"2\sqrt{2}")  # before the clock runs
            refuse_events(tuple(map(os.path.abspath, sys.path)))  # after the import of sympy, which loads libraries
            self._write({"ready": True})
            Steps.loaded = True
        name = None
        signal.setitimer(signal.ITIMER_PROF, self.time_limit)  # default action: the kernel ends the process
        try:
            ran = Ran(step())
        except BaseException as error:  # math_verify's time-out is no Exception in some versions
            ran, name = Ran(None, "unparsed"), type(error).__name__
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._write({"step": ran, "raised": name})
        return ran

    def _write(self, line: dict[str, Any]) -> None:
        print(json.dumps(line), file=self.answers, flush=True)


def serve(time_limit: float, memory_limit: int) -> None:
    """Answer questions until the input ends."""
    answers = os.fdopen(fcntl.fcntl(1, fcntl.F_DUPFD, 3), "w")  # not 2, which is free where stderr was closed
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # prints of libraries stay out of the protocol, and out of a file, which would be refused
        os.dup2(nowhere, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C and ends this process
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    limit_process(memory_limit)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        question, done = json.loads(line)
        result = judge_samples(Question(*question), Steps(time_limit, answers, done))
        print(json.dumps({"result": result}), file=answers, flush=True)


def limit_process(memory_limit: int) -> None:
    """Limits that the kernel keeps on this process: memory, no core dumps, no process, no file written."""
    import resource

    with contextlib.suppress(ValueError, OSError):  # some systems do not limit address space
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in ("RLIMIT_NPROC", "RLIMIT_FSIZE"):
        if hasattr(resource, name):
            resource.setrlimit(getattr(resource, name), (0, 0))


_REFUSED = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.kill", "ctypes.",
            "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown", "os.truncate",
            "os.listxattr", "shutil.", "pty.", "signal.pthread_kill")  # fmt: skip


def refuse_events(folders: tuple[str, ...]) -> None:
    """From here on Python code opens no socket, starts no process, and reads only files of these folders."""

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_REFUSED):
            raise PermissionError(f"{event} is refused")
        if event == "open":
            path, _, flags = arguments
            within = isinstance(path, str) and os.path.abspath(path).startswith(folders)
            if not within or flags & (os.O_WRONLY | os.O_RDWR):
                raise PermissionError("open is refused")

    sys.addaudithook(refuse)


if __name__ == "__main__":
    serve(float(sys.argv[1]), int(sys.argv[2]))
