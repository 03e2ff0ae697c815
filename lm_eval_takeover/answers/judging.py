"""Judges responses in worker processes, with a time limit for each step and a memory limit.

A response is untrusted: it can make a regular expression hang, or sympy exhaust memory. A worker (`worker`) is a plain Python
process that reads one JSON question a line. The limit is processor time, which a busy machine does not stretch. A worker that
exceeds it is started anew and goes on after that step; one that died of anything else gets the same step once more.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from lm_eval_takeover.answers.samples import JudgedProblem, JudgedSample, Question, warn_of
from lm_eval_takeover.answers.verification import Verdict

TIME_LIMIT = 5.0  # seconds of processor time for one step
MEMORY_LIMIT = 2 * 1024**3  # bytes of address space of one worker
LONGEST = 1_000_000  # characters at the end of a response that are read
_WALL = 4.0  # times the limit that a step may take on the wall clock, for a worker that sleeps or is stopped
_WORKER = ["-m", "lm_eval_takeover.answers.worker"]
_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
_STARTS = 3  # tries: something outside may kill a process that starts
_START = 120.0  # seconds for a worker to start, and to import sympy

Item = TypeVar("Item")
Result = TypeVar("Result")


class Judge:
    """Verdicts from worker processes, which start when first asked: `with Judge() as judge: judge.map(score, problems)`."""

    def __init__(self, workers: int | None = None, time_limit: float = TIME_LIMIT, memory_limit: int = MEMORY_LIMIT):
        self.workers = workers or count_cores()
        self._free: SimpleQueue[_JudgeProcess] = SimpleQueue()
        self._all = [_JudgeProcess(time_limit, memory_limit) for _ in range(self.workers)]
        for worker in self._all:
            self._free.put(worker)

    def __call__(self, gold: str, answer: str, tolerance: float = 0.0) -> Verdict:
        """The verdict on one answer; may be called from many threads."""
        ((_, outcome, *_),), _ = self.judge_samples(Question(gold, [answer], [False], "answer", tolerance))
        reason: Any = outcome if outcome in ("unparsed", "timed_out") else None
        return Verdict(outcome == "correct", reason)

    def judge_samples(self, question: Question) -> JudgedProblem:
        """The verdicts on all samples of a problem; may be called from many threads."""
        question = question._replace(responses=[response[-LONGEST:] for response in question.responses])
        count = len(question.responses)
        worker = self._free.get()
        try:
            result = worker.ask(question, 8 * count)
        finally:
            self._free.put(worker)
        if result is None:  # it killed the worker over and over
            return JudgedProblem([JudgedSample(None, "unparsed")] * count, None)
        samples, majority = result
        return JudgedProblem([JudgedSample(*sample) for sample in samples], majority)

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
        """End all workers."""
        for worker in self._all:
            worker.closed = True
        for worker in self._all:
            worker.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def count_cores() -> int:
    """Those that this process may compute on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Died(Exception):
    """A worker ended without an answer: `timed_out`, or its exit status."""


class _JudgeProcess:
    """One worker process, started on first use and again after it was ended."""

    def __init__(self, time_limit: float, memory_limit: int):
        self.time_limit, self.memory_limit = time_limit, memory_limit
        self.process: subprocess.Popen[bytes] | None = None
        self.closed = False
        self._unread = b""

    def ask(self, question: Question, deaths: int) -> Any:
        """The result on a question; None where it ends the worker more often than `deaths`."""
        done: list[Any] = []
        asked_again = -1  # the step at which a worker died last
        for _ in range(deaths):
            try:
                return self._go_on(question, done)
            except _Died as died:
                if str(died) == "timed_out":
                    done.append([None, "timed_out"])
                elif asked_again == len(done):
                    warn_of(str(died))
                    done.append([None, "unparsed"])
                else:
                    asked_again = len(done)
        return None

    def _go_on(self, question: Question, done: list[Any]) -> Any:
        if self.closed:
            raise RuntimeError("the judge is closed")
        process = self.process or self._start()
        self._write_line(process, json.dumps([question, done]).encode())
        seconds = self.time_limit * _WALL
        while "result" not in (line := self._read_line(process, seconds)):
            seconds = _START if "loading" in line else self.time_limit * _WALL
            if "step" in line:
                done.append(line["step"])
            if line.get("raised"):
                warn_of(line["raised"])
        return line["result"]

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", *_WORKER, str(self.time_limit), str(self.memory_limit)]
        self._unread = b""
        # Variables may hold secrets, so only those that Python needs for imports are passed on. sympy orders some of its
        # work by hashes; with a fixed seed every worker works alike.
        environment = {name: value for name, value in os.environ.items() if name in _KEPT}
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
        environment |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        for left in reversed(range(_STARTS)):
            self.process = process = subprocess.Popen(
                command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd="/"
            )
            assert process.stdin is not None
            os.set_blocking(process.stdin.fileno(), False)
            try:
                self._read_line(process, _START)
                return process
            except _Died as died:
                if not left:
                    raise RuntimeError(f"a worker that judges answers did not start: {died}") from None
        raise AssertionError("no try was made")

    def _write_line(self, process: subprocess.Popen[bytes], line: bytes) -> None:
        assert process.stdin is not None
        left = memoryview(line + b"\n")
        end = time.monotonic() + self.time_limit * _WALL
        try:
            while left:
                if not select.select([], [process.stdin], [], max(0.0, end - time.monotonic()))[1]:
                    self.stop()
                    raise _Died("timed_out")
                left = left[process.stdin.write(left) or 0 :]
        except (OSError, ValueError):  # the worker is gone, or `close` closed the pipe
            raise self._reap(process) from None

    def _read_line(self, process: subprocess.Popen[bytes], seconds: float) -> Any:
        assert process.stdout is not None
        end = time.monotonic() + seconds
        while b"\n" not in self._unread:
            if not select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                self.stop()
                raise _Died("timed_out")
            read = os.read(process.stdout.fileno(), 1 << 16)
            if not read:
                raise self._reap(process)
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def _reap(self, process: subprocess.Popen[bytes]) -> _Died:
        status = process.wait()
        self.stop()
        return _Died("timed_out" if status in (-signal.SIGPROF, -signal.SIGXCPU) else f"exit status {status}")

    def stop(self) -> None:
        """End the process and collect it, so that neither a zombie nor a pipe is left."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # unsent bytes of a killed worker
                        pipe.close()
