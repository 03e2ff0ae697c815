"""Judges responses in worker processes, with a time limit for each step and a memory limit.

A response is untrusted: it can make a regular expression hang, or sympy exhaust memory. A worker is this module as a process that
reads one step a line, as JSON, and writes its result. The kernel ends one whose step exceeds the limit of processor time, which
a busy machine does not stretch. The step of a worker that died of anything else is run again.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Timer
from typing import Any, TypeVar

from lm_eval_takeover.answers.samples import JudgedProblem, JudgeStep, Question, Ran, judge_samples, run_here

TIME_LIMIT = 5.0  # seconds of processor time for one step
MEMORY_LIMIT = 2 * 1024**3  # bytes of address space of one worker
LONGEST = 1_000_000  # characters at the end of a response that are read
_WALL = 4.0  # times the limit that a step may take on the wall clock, for a worker that sleeps or is stopped
_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
_TRIES = 3  # of a step: something outside may kill a process
_START = 120.0  # seconds for a worker to start, and to import sympy

Item = TypeVar("Item")
Result = TypeVar("Result")


class Judge(contextlib.AbstractContextManager["Judge"]):
    """Verdicts from worker processes, which start when first asked: `with Judge() as judge: judge.map(score, problems)`."""

    def __init__(self, workers: int | None = None, time_limit: float = TIME_LIMIT, memory_limit: int = MEMORY_LIMIT):
        self.workers = workers or count_cores()
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        self._all = [_Worker(time_limit, memory_limit) for _ in range(self.workers)]
        for worker in self._all:
            self._free.put(worker)

    def __call__(self, gold: str, answer: str, tolerance: float = 0.0) -> str:
        """The outcome of one answer; may be called from many threads."""
        return self.judge_samples(Question(gold, [answer], [False], "answer", tolerance)).samples[0].outcome

    def judge_samples(self, question: Question) -> JudgedProblem:
        """The verdicts on all samples of a problem; may be called from many threads."""
        question = question._replace(responses=[response[-LONGEST:] for response in question.responses])
        worker = self._free.get()
        try:
            return judge_samples(question, worker.run)
        finally:
            self._free.put(worker)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """`function` of each item, in order, with one call per worker at a time."""
        with ThreadPoolExecutor(self.workers) as pool:
            try:
                yield from pool.map(function, items)
            except BaseException:  # an interrupt must not wait for the answers in flight
                self.close()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def close(self) -> None:
        for worker in self._all:
            worker.closed = True
        for worker in self._all:
            worker.stop()

    def __exit__(self, *_: object) -> None:
        self.close()


def count_cores() -> int:
    """Those that this process may compute on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker:
    """One worker process, started on first use and again after it was ended."""

    def __init__(self, time_limit: float, memory_limit: int):
        self.time_limit, self.memory_limit = time_limit, memory_limit
        self.process: subprocess.Popen[bytes] | None = None
        self.started = self.loaded = self.closed = False

    def run(self, step: JudgeStep) -> Ran:
        """The result of a step; a reason if it exceeds the limits, raises, or ends the worker again and again."""
        why = ""
        for _ in range(_TRIES):
            if self.closed:
                raise RuntimeError("the judge is closed")
            try:
                process = self.process or self._start()
                loads = step.module == "verification" and not self.loaded
                ran = self._ask(process, step, self.time_limit * _WALL + _START * loads)
            except ChildProcessError as died:
                why = str(died)
                continue
            self.loaded |= loads
            return ran
        if not self.started:
            raise RuntimeError(f"a worker that judges answers did not start: {why}")
        return None, "unparsed", why

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", __name__, str(self.time_limit), str(self.memory_limit)]
        # Other variables may hold secrets. sympy orders work by hashes: with a fixed seed every worker works alike.
        kept = {name: value for name, value in os.environ.items() if name in _KEPT}
        kept["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
        kept |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.process = process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=kept, cwd="/")
        self.loaded = False
        if self._ask(process, None, _START)[1]:
            raise ChildProcessError(f"no start within {_START:.0f} s")
        self.started = True
        return process

    def _ask(self, process: subprocess.Popen[bytes], step: JudgeStep | None, seconds: float) -> Ran:
        """What a worker answers. One that does not answer within `seconds` on the wall clock is ended."""
        assert process.stdin is not None and process.stdout is not None

        def kill() -> None:
            time.sleep(seconds / 5)  # after Ctrl-Z and `fg` an answer is read first
            process.kill()

        timer, end, line = Timer(0.8 * seconds, kill), time.monotonic() + seconds, b""
        timer.daemon = True
        timer.start()
        with contextlib.suppress(OSError, ValueError):  # the worker is gone, or `close` closed the pipe
            if step is not None:  # a worker that starts says so unasked
                process.stdin.write(json.dumps(step).encode() + b"\n")
                process.stdin.flush()
            line = process.stdout.readline()
        timer.cancel()
        if line.endswith(b"\n"):
            value, reason, raised = json.loads(line)
            return value, reason, raised
        status = process.wait()
        self.stop()
        if time.monotonic() >= end or status in (-signal.SIGPROF, -signal.SIGXCPU):
            return None, "timed_out", None
        raise ChildProcessError(f"exit status {status}")

    def stop(self) -> None:
        """End the process and collect it, so that neither a zombie nor a pipe is left."""
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(OSError), process:  # which closes the pipes and waits; bytes may be unsent
                process.kill()


def serve(time_limit: float, memory_limit: int) -> None:
    """Say that the worker has started, and run steps until the input ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)  # is 2 where stderr was closed
    answers = os.fdopen(os.dup(1), "w")
    for stream in (1, 2):  # prints of libraries stay out of the protocol, and out of a file, which would be refused
        os.dup2(nowhere, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C and ends this process
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    limit_process(memory_limit)
    print(json.dumps([None, None, None]), file=answers, flush=True)
    loaded = False
    for line in sys.stdin:
        step = JudgeStep(*json.loads(line))
        if step.module == "verification" and not loaded:
            # Imports sympy and the grammar, which may take longer than a step.
            run_here(JudgeStep("verification", "verify", (r"\sqrt{8}", r"2\sqrt{2}")))
            refuse_events(tuple(map(os.path.abspath, sys.path)))  # after these imports, which load libraries
            loaded = True
        signal.setitimer(signal.ITIMER_PROF, time_limit)  # of processor time: the kernel ends this process
        ran = run_here(step)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(ran), file=answers, flush=True)


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
