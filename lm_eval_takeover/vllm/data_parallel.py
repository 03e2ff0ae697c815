"""Several vLLM engines that share the work, each in a process of its own: `data_parallel_size`.

Jobs go to the engine with the fewest. Texts come back as they finish. If an engine ends, the others take its jobs: every engine
writes the same texts. The processes run on this machine or in a Ray cluster (`data_parallel_backend=ray`). Each call runs a few
steps and returns the texts that ended.

    python -m lm_eval_takeover.vllm.data_parallel FD      one engine, which is called through this file descriptor
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.errors import ArgumentError, TakeoverError
from lm_eval_takeover.method.generation import CountTokens
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.registry import load_plugins
from lm_eval_takeover.pair.loading import load_pair
from lm_eval_takeover.vllm.engine import EngineFacts, Job, Text, VllmEngine
from lm_eval_takeover.vllm.settings import build_policy, describe_policy

logger = logging.getLogger(__name__)

_SIZE, _RANKS, _BACKEND = "data_parallel_size", "tensor_parallel_size", "data_parallel_backend"
_ANSWERS_AFTER = 0.5  # seconds, if no text ends sooner
_WAITING = 2  # batches of jobs that an engine holds, so that its batch stays full


def open_engines(arguments: ModelArguments, policy: Policy) -> "Engines | None":
    """The engines that `data_parallel_size` asks for; None for a single one. Raises ArgumentError."""
    size, ranks = count_engines(arguments)
    engine_arguments = dict(arguments.engine_arguments)
    backend = engine_arguments.pop(_BACKEND, "mp")
    engine_arguments.pop(_SIZE, None)
    if backend not in ("mp", "ray"):
        raise ArgumentError(f"{_BACKEND}={backend} is not known; give mp (this machine) or ray (a cluster)")
    if size == 1:
        return None
    task = (replace(arguments, engine_arguments=engine_arguments), describe_policy(policy))
    return Engines(RayGroup(size, ranks, task) if backend == "ray" else LocalGroup(size, ranks, task), size)


def count_engines(arguments: ModelArguments) -> tuple[int, int]:
    """The number of engines, and the ranks of each. Raises ArgumentError unless both are whole and 1 or more."""
    size, ranks = (arguments.engine_arguments.get(name, 1) for name in (_SIZE, _RANKS))
    for name, value in ((_SIZE, size), (_RANKS, ranks)):
        if type(value) is not int or value < 1:
            raise ArgumentError(f"{name}={value} is not a whole number of 1 or more")
    return size, ranks


class Ended(Exception):
    """An engine's process is gone."""


class Worker(VllmEngine):
    """One engine in its process, a few steps at a time."""

    def __init__(self, arguments: ModelArguments, policy: dict[str, Any]) -> None:
        load_plugins(arguments.plugins)
        super().__init__(arguments, load_pair(arguments), build_policy(policy))

    def describe(self) -> EngineFacts:
        return self.facts

    def write(self, jobs: Sequence[Job]) -> tuple[list[Text], int]:
        """Add these jobs and run a few steps. Returns the texts that ended, and the number of tokens written."""
        for job in jobs:
            self.add(job)
        texts, tokens, until = list[Text](), 0, time.monotonic() + _ANSWERS_AFTER
        while self._running and not texts and time.monotonic() < until:
            texts, written = self.step()
            tokens += written
        return texts, tokens


class Engines:
    """Several engines behind the interface of one `VllmEngine`. Raises ArgumentError if one cannot start."""

    def __init__(self, group: "LocalGroup | RayGroup", size: int) -> None:
        self.group, self._alive = group, list(range(size))
        try:
            for number, answer in self._await(self._alive, "describe"):  # when all have started
                if isinstance(answer, Ended):
                    raise ArgumentError(f"engine {number + 1} of {size} ended as it started; its error is above")
                self.facts: EngineFacts = _check(answer)  # they are alike
        except BaseException:
            group.close()
            raise

    def _await(self, numbers: Sequence[int], method: str = "") -> Iterator[tuple[int, Any]]:
        """The answers of these engines as they come. method: called first; without one, the call was made before."""
        left = list(numbers)
        for number in left if method else ():
            self.group.ask(number, method)
        while left:
            number, answer = self.group.wait(left)
            left.remove(number)
            yield number, answer

    def run(self, jobs: Sequence[Job], count_tokens: CountTokens | None = None) -> Iterator[Text]:
        """Raises RuntimeError when the last engine has ended."""
        self._check_alive()
        waiting = deque(jobs)
        held: dict[int, dict[int, Job]] = {number: {} for number in self._alive}
        busy = set[int]()  # engines that were asked and have not answered
        try:
            while waiting or any(held.values()):
                self._hand_out(waiting, held, busy)
                number, answer = self.group.wait(sorted(busy))
                busy.remove(number)
                if isinstance(answer, Ended):
                    waiting.extendleft(reversed(held.pop(number).values()))
                    self._alive.remove(number)
                    self._check_alive()
                    left = f"(engines left: {len(self._alive)})"
                    logger.warning("vLLM engine %d has ended; the run goes on without it %s", number + 1, left)
                    continue
                texts, tokens = _check(answer)
                if count_tokens is not None:
                    count_tokens(tokens, None)
                for text in texts:
                    del held[number][text.number]
                    yield text
        finally:
            self._abort([number for number, jobs_left in held.items() if jobs_left], busy)

    def _hand_out(self, waiting: deque[Job], jobs: dict[int, dict[int, Job]], busy: set[int]) -> None:
        """Give new jobs to every engine that has answered."""
        room = _WAITING * self.facts.max_num_seqs
        for number in sorted(jobs.keys() - busy, key=lambda number: len(jobs[number])):
            # An even share, so that the last jobs are shared, too.
            even = -(-(len(waiting) + sum(map(len, jobs.values()))) // len(jobs))
            count = max(min(room, even) - len(jobs[number]), 0)
            new = [waiting.popleft() for _ in range(min(count, len(waiting)))]
            jobs[number] |= {job.number: job for job in new}
            if jobs[number]:
                self.group.ask(number, "write", new)
                busy.add(number)

    def _check_alive(self) -> None:
        if not self._alive:
            raise RuntimeError(
                "every vLLM engine has ended; their errors are above. Give the command again: finished samples are kept"
            )

    def _abort(self, numbers: Sequence[int], busy: set[int]) -> None:
        """Drop the jobs that these engines still have. Those in `busy` answer first."""
        for method in ("", "abort"):
            receivers = [number for number in numbers if number in (self._alive if method else busy)]
            for number, answer in self._await(receivers, method):
                if isinstance(answer, Ended):
                    self._alive.remove(number)

    def close(self) -> None:
        self.group.close()


def _check(answer: Any) -> Any:
    """The result of an engine. Raises its error."""
    if isinstance(answer, Exception):
        raise answer
    return answer


class LocalGroup:
    """Processes of this machine, each with its own GPUs, if there are any."""

    def __init__(self, size: int, ranks: int, task: tuple[ModelArguments, dict[str, Any]]) -> None:
        self._lines, self.processes = list[Connection](), list[subprocess.Popen[bytes]]()
        for devices in share_devices(size, ranks):
            ours, theirs = Pipe()
            environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} | os.environ  # it is a process of its own already
            if devices is not None:
                environment["CUDA_VISIBLE_DEVICES"] = devices
            words = [sys.executable, "-m", __name__, str(theirs.fileno())]
            # A session of its own: Ctrl-C reaches this process only, which saves finished texts and then ends them.
            process = subprocess.Popen(
                words, env=environment, pass_fds=[theirs.fileno()], stdout=sys.stderr, start_new_session=True
            )
            theirs.close()
            self._lines.append(ours)
            self.processes.append(process)
            ours.send(task)

    def ask(self, number: int, method: str, *arguments: Any) -> None:
        """Have engine `number` do this."""
        with suppress(OSError):  # `wait` reports an engine that has ended
            self._lines[number].send((method, arguments))

    def wait(self, numbers: Sequence[int]) -> tuple[int, Any]:
        """The engine that answers first, and its result or exception; `Ended` if its process is gone."""
        ready = wait([self._lines[number] for number in numbers])[0]
        number = next(number for number in numbers if self._lines[number] is ready)
        try:
            return number, self._lines[number].recv()
        except (EOFError, OSError):
            return number, Ended()

    def close(self) -> None:
        for line in self._lines:
            line.close()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def share_devices(size: int, ranks: int) -> list[str | None]:
    """`CUDA_VISIBLE_DEVICES` of each of `size` engines of `ranks` GPUs; None where there is no GPU. Raises ArgumentError."""
    import torch

    if not torch.cuda.is_available():
        return [None] * size
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    names = visible.split(",")
    if len(names) < size * ranks:
        raise ArgumentError(
            f"{_SIZE}={size} with tensor_parallel_size={ranks} needs {size * ranks} GPUs, and {len(names)} are visible; give "
            f"{_SIZE}={max(len(names) // ranks, 1)} or fewer"
        )
    return [",".join(names[rank * ranks : (rank + 1) * ranks]) for rank in range(size)]


class RayGroup:
    """Actors of a Ray cluster: the one that is running, else one of this machine."""

    def __init__(self, size: int, ranks: int, task: tuple[ModelArguments, dict[str, Any]]) -> None:
        try:
            import ray
        except ImportError as error:
            raise ArgumentError(f"{_BACKEND}=ray needs Ray: pip install ray") from error
        self._ray = ray
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # by default Ray reports its use
        if not ray.is_initialized():
            ray.init(log_to_driver=True)
        gpus = ranks if ray.cluster_resources().get("GPU") else 0
        actor = ray.remote(Worker).options(num_gpus=gpus, num_cpus=1, scheduling_strategy="SPREAD")
        self.actors = [actor.remote(*task) for _ in range(size)]
        self._asked: dict[Any, int] = {}

    def ask(self, number: int, method: str, *arguments: Any) -> None:
        self._asked[getattr(self.actors[number], method).remote(*arguments)] = number

    def wait(self, numbers: Sequence[int]) -> tuple[int, Any]:
        answer = self._ray.wait([reference for reference, number in self._asked.items() if number in numbers])[0][0]
        number = self._asked.pop(answer)
        try:
            return number, self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            return number, error.cause if isinstance(error.cause, TakeoverError) else error
        except self._ray.exceptions.RayError as error:
            logger.warning("Ray: %s", str(error).strip().splitlines()[0])
            return number, Ended()

    def close(self) -> None:
        for actor in self.actors:
            self._ray.kill(actor)


def main(fd: int) -> None:
    """One engine: answers until the line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = Connection(fd)
    try:
        worker: Worker | None = None
        task = line.recv()
        while True:
            method, arguments = line.recv()
            try:
                worker = worker or Worker(*task)
                answer = getattr(worker, method)(*arguments)
            except TakeoverError as error:
                answer = error
            line.send(answer)
    except (EOFError, OSError):  # the other side has closed the line
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]))
