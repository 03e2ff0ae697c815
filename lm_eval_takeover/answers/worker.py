"""A worker process: one JSON question a line on standard input, a line for each step and for the result on standard output.

Each step has its own clock of processor time; the kernel ends a worker that exceeds it, even inside one long C call. The question
comes with what the steps before gave, so that a worker that is started anew goes on where the last one ended.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import IO, Any

from lm_eval_takeover.answers.samples import Question, Ran, judge_answer, judge_samples
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
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of libraries stay out of the protocol
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C and ends this process
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    limit_process(memory_limit)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        kind, question, done = json.loads(line)
        steps = Steps(time_limit, answers, done)
        if kind == "answer":
            gold, answer, tolerance = question
            result: tuple[Any, ...] = judge_answer(gold, answer, tolerance, steps)
        else:
            result = judge_samples(Question(*question), steps)
        print(json.dumps({"result": result}), file=answers, flush=True)


def limit_process(memory_limit: int) -> None:
    """Limits that the kernel keeps on this process: memory, and no core dumps."""
    import resource

    with contextlib.suppress(ValueError, OSError):  # some systems do not limit address space
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    serve(float(sys.argv[1]), int(sys.argv[2]))
