"""Verdicts on many responses, in worker processes with a time limit per answer and a memory limit.

A response is untrusted text: sympy can be made to hang, to exhaust memory or to crash the interpreter. A worker is a plain
`python -m lm_eval_takeover.answers.judging` that reads one question a line and writes one verdict a line, so it needs neither a
fork of a process with threads nor the caller's `__main__`. One thread per worker hands it an answer when it is free: no answer
waits inside a worker. The limit is processor time, which a busy machine does not stretch; the kernel ends a worker that exceeds
it, even inside one long C call. A worker that died of anything else is started anew and asked once more.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar

from lm_eval_takeover.answers.verification import Verdict, verdict_by_text, verify

TIME_LIMIT = 5.0  # seconds of processor time for one answer
MEMORY_LIMIT = 2 * 1024**3  # bytes of address space of one worker
_WALL = 4.0  # times the limit that an answer may take on the wall clock, for a worker that sleeps or is stopped
_START = 120.0  # seconds for a worker to import sympy

Item = TypeVar("Item")
Result = TypeVar("Result")


class Judge:
    """Verdicts from a pool of workers, each answer judged once.

    A context manager: `with Judge() as judge: judge.map(score, problems)`. Workers start when text and rational values do not
    decide, and none is left at the end.
    """

    def __init__(self, workers: int | None = None, time_limit: float = TIME_LIMIT, memory_limit: int = MEMORY_LIMIT):
        self.workers = workers or count_cores()
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        self._all = [_Worker(time_limit, memory_limit) for _ in range(self.workers)]
        for worker in self._all:
            self._free.put(worker)
        self._verdicts: dict[tuple[str, str, float], Future[Verdict]] = {}
        self._lock = threading.Lock()

    def __call__(self, gold: str, answer: str, tolerance: float = 0.0) -> Verdict:
        """The verdict on one answer; may be called from many threads."""
        key = (gold, answer, tolerance)
        with self._lock:
            future = self._verdicts.get(key)
            mine = future is None
            if future is None:
                future = self._verdicts[key] = Future()
        if mine:
            try:
                future.set_result(verdict_by_text(*key) or self._ask(key))
            except BaseException as error:
                future.set_exception(error)
                raise
        return future.result()

    def _ask(self, key: tuple[str, str, float]) -> Verdict:
        worker = self._free.get()
        try:
            return worker.verdict(*key)
        finally:
            self._free.put(worker)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """`function` over `items` in their order, as many at a time as there are workers."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def count_cores() -> int:
    """Those that this process may compute on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Died(Exception):
    """A worker ended without an answer."""


class _Worker:
    """One worker process, started on first use and again after it was ended."""

    def __init__(self, time_limit: float, memory_limit: int):
        self.time_limit, self.memory_limit = time_limit, memory_limit
        self.process: subprocess.Popen[bytes] | None = None
        self.closed = False
        self._unread = b""

    def verdict(self, gold: str, answer: str, tolerance: float) -> Verdict:
        for _ in range(2):
            try:
                return self._send([gold, answer, tolerance])
            except _Died as died:
                if str(died) == "timed_out":
                    return Verdict(False, "timed_out")
        return Verdict(False, "unparsed")

    def _send(self, question: Sequence[str | float]) -> Verdict:
        if self.closed:
            raise RuntimeError("the judge is closed")
        process = self.process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
        except (OSError, ValueError):  # the worker is gone, or `close` closed the pipe
            raise self._reap(process) from None
        correct, reason = self._read_line(process, self.time_limit * _WALL)
        return Verdict(correct, reason)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-P",
            "-m",
            "lm_eval_takeover.answers.judging",
            str(self.time_limit),
            str(self.memory_limit),
        ]
        self._unread = b""
        # sympy orders some of its work by hashes; with a fixed seed every worker works alike.
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        if self._read_line(self.process, _START) != "ready":
            raise RuntimeError("a verification worker did not start")
        return self.process

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


def serve(time_limit: float, memory_limit: int) -> None:
    """A worker: one JSON question a line on standard input, one verdict a line on standard output, until the input ends."""
    import resource

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of libraries stay out of the protocol
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C and ends this process
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with contextlib.suppress(ValueError, OSError):  # some systems do not limit address space
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    verify(r"\sqrt{8}", r"2\sqrt{2}")  # imports sympy and the grammar before any clock runs
    print('"ready"', file=answers, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, time_limit)  # default action: the kernel ends the process
        try:
            verdict = verify(*json.loads(line))
        except BaseException:  # math_verify's time-out is no Exception in some versions
            verdict = Verdict(False, "unparsed")
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), file=answers, flush=True)


if __name__ == "__main__":
    serve(float(sys.argv[1]), int(sys.argv[2]))
