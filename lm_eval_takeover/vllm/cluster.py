"""Several vLLM engines that share the work, each an actor of Ray: `data_parallel_size`.

Where they run, what must be the same on every node, what is waited for, and which of them still write.
"""

import contextlib
import logging
import os
import platform
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from lm_eval_takeover.arguments import ModelArguments, split_plugins
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.registry import load_plugins
from lm_eval_takeover.method.request import CountTokens
from lm_eval_takeover.pair.ids import locate
from lm_eval_takeover.pair.pair import Pair, load_pair
from lm_eval_takeover.runs.identity import collect_text_settings
from lm_eval_takeover.storage.code_reach import PACKAGE, find_version
from lm_eval_takeover.storage.digests import digest_of, digest_path
from lm_eval_takeover.vllm.engine import EngineFacts, Job, Text, VllmEngine
from lm_eval_takeover.vllm.launch import count_engines
from lm_eval_takeover.vllm.settings import build_policy, describe_policy

logger = logging.getLogger(__name__)

_TURN = 0.2  # seconds that an engine writes before it returns
_QUIET = 5  # seconds of waiting before a line says so: an engine that was just closed takes as long to go
_LIBRARIES = ("vllm", "torch", "triton", "transformers")
_ROOMS = ("kernels", "method", "pair", "vllm")  # our code that computes in an engine


class EngineActor:
    """One engine in its process. It writes all jobs that are there together."""

    def start(self, arguments: ModelArguments, policy: str, folder: str, expected: Mapping[str, Any]) -> EngineFacts:
        """Start the engine in the driver's folder. Raises ArgumentError if something is not as the driver has it."""
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # it is a process of its own already
        with contextlib.suppress(OSError):
            os.chdir(folder)
        load_plugins(arguments.plugins)
        pair, built = load_pair(arguments), build_policy(policy)
        for name, value in describe(arguments, pair, built).items():
            if value != expected.get(name):
                raise ArgumentError(f"{name} is {value} there and {expected.get(name)} here; make them the same on all nodes")
        self.engine = VllmEngine(arguments, pair, built)
        return self.engine.facts

    def work(self, jobs: Sequence[Job]) -> tuple[list[Text], int]:
        """Take these jobs, too, and write for `_TURN`, or until a place is free. Returns texts and the number of new tokens."""
        for job in jobs:
            self.engine.add(job)
        texts, tokens, until = list[Text](), 0, time.monotonic() + _TURN
        while self.engine.running and time.monotonic() < until:
            ended, new = self.engine.step()
            texts += ended
            tokens += new
            if ended and len(self.engine.running) < self.engine.facts.max_num_seqs:
                break
        return texts, tokens

    def abort(self) -> None:
        self.engine.abort()


def describe(arguments: ModelArguments, pair: Pair, policy: Policy) -> dict[str, Any]:
    """What must be the same on every node, by name: versions, our code, and all that a text depends on."""
    settings = collect_text_settings(pair, policy, arguments)
    code = digest_of([digest_path(Path(__file__).parents[1] / room) for room in _ROOMS])
    versions = {name: find_version(name) for name in _LIBRARIES} | {"Python": platform.python_version(), PACKAGE: code}
    parameters = {member.role: member.weights.parameters for member in pair.members}
    return dict(_flatten(versions | {"parameters": parameters} | settings))


def _flatten(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{before}{name}.")
        else:
            yield before + name, value


@dataclass(eq=False)
class _Engine:
    """An engine as the driver sees it. held: its jobs. calls: under way. last: when it wrote, or had no job before."""

    actor: Any
    node: str
    facts: EngineFacts
    held: dict[int, Job] = field(default_factory=dict)
    calls: list[Any] = field(default_factory=list)
    last: float = 0.0

    @property
    def places(self) -> int:
        """How many more jobs it may be given now: some wait in it for a place."""
        return 0 if len(self.calls) > 1 else self.facts.max_num_seqs * 5 // 4 - len(self.held)

    def ask(self, jobs: Sequence[Job]) -> None:
        """Hand over jobs. Two calls are under way while it holds any, so that it never waits for the driver."""
        if not self.held:
            self.last = time.monotonic()
        self.held |= {job.number: job for job in jobs}
        while self.held and len(self.calls) < 2:
            self.calls.append(self.actor.work.remote(jobs))
            jobs = []


class Engines:
    """Several engines behind the interface of one `VllmEngine`. Raises ArgumentError if one cannot be placed or started."""

    def __init__(self, arguments: ModelArguments, pair: Pair, policy: Policy, kind: type = EngineActor) -> None:
        self._ray, self._sharing = _connect(), count_engines(arguments)
        self._engines = list[_Engine]()
        self._error: Exception | None = None  # of the engine that ended last
        self._group = self._reserve()
        try:
            nodes = self._wait_for_room()
            remote, place = self._ray.remote(kind), self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
            ranks = {"num_gpus": 0, "num_cpus": 0} | {f"num_{self._kind.lower()}s": self._sharing.tensor_parallel_size}
            options = ranks | {"runtime_env": {"env_vars": _list_environment()}}
            strategies = [place(self._group, number) for number in range(len(nodes))]
            actors = [remote.options(**options, scheduling_strategy=strategy).remote() for strategy in strategies]
            given = _make_absolute(arguments), describe_policy(policy), os.getcwd(), describe(arguments, pair, policy)
            self._start(actors, nodes, *given)
        except BaseException:
            self.close()
            raise

    def _reserve(self) -> Any:
        """A placement group with a bundle for each engine. Raises ArgumentError if it can never have room in this cluster."""
        size, ranks, *_ = self._sharing
        room = sum(int(node["Resources"].get(self._kind, 0)) // ranks for node in self._list_nodes())
        if room < size:
            raise ArgumentError(f"{self._describe_room()}: room for {room} engines; give fewer, or fewer ranks")
        return self._ray.util.placement_group([{self._kind: ranks}] * size, strategy="SPREAD")

    def _list_nodes(self) -> list[dict[str, Any]]:
        return sorted((node for node in self._ray.nodes() if node["Alive"]), key=itemgetter("NodeName"))

    @property
    def _kind(self) -> str:
        """What engines are placed by."""
        return "GPU" if any("GPU" in node["Resources"] for node in self._list_nodes()) else "CPU"

    def _describe_room(self) -> str:
        size, ranks, *_ = self._sharing
        free, nodes = self._ray._private.state.available_resources_per_node(), []
        for node in self._list_nodes():
            has, unused = (of.get(self._kind, 0) for of in (node["Resources"], free.get(node["NodeID"], {})))
            nodes.append(f"{node['NodeName']} has {has:g} ({unused:g} free)")
        return f"data_parallel_size={size} needs {ranks} {self._kind}s on one node for each engine; {', '.join(nodes)}"

    def _wait_for_room(self) -> list[str]:
        """The node of each engine, once all have their GPUs. Raises ArgumentError after `data_parallel_wait` seconds."""
        started, told = time.monotonic(), False
        while not self._group.wait(1):  # nothing interrupts this call
            waited, limit = time.monotonic() - started, self._sharing.data_parallel_wait
            if waited > limit:
                raise ArgumentError(f"{self._describe_room()}: not free within data_parallel_wait={limit} seconds")
            if waited > _QUIET and not told:
                logger.warning("%s: waiting until others free them; Ctrl-C ends this", self._describe_room())
                told = True
        names = {node["NodeID"]: node["NodeName"] for node in self._list_nodes()}
        places = self._ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        return [names[places[number]] for number in range(self._sharing.data_parallel_size)]

    def _start(self, actors: Sequence[Any], nodes: Sequence[str], *given: Any) -> None:
        starts = {actor.start.remote(*given): (actor, node) for actor, node in zip(actors, nodes, strict=True)}
        left, limit = [*starts], self._sharing.data_parallel_wait
        until = time.monotonic() + limit
        while left:
            ready, left = self._ray.wait(left, timeout=max(until - time.monotonic(), 0))
            if not ready:
                _, node = starts[left[0]]
                late = f"the engine on node {node} did not start within data_parallel_wait={limit} seconds"
                raise ArgumentError(f"{late}; give more, or look at Ray's log there")
            actor, node = starts[ready[0]]
            try:
                self._engines.append(_Engine(actor, node, self._ray.get(ready[0])))
            except self._ray.exceptions.RayError as error:
                raise ArgumentError(f"the engine on node {node}: {_explain(error)}") from error
        self.facts = self._engines[0].facts  # what the backend reads is the same for all

    def run(self, jobs: Sequence[Job], count_tokens: CountTokens | None = None) -> Iterator[Text]:
        """Texts as they finish. Raises RuntimeError when the last engine has ended."""
        left, missing = deque(jobs), len(jobs)
        try:
            while missing:
                if not self._engines:
                    count = f"{missing:,} of {len(jobs):,} samples are missing"
                    again = "Give the command again: finished samples are kept"
                    raise RuntimeError(f"every vLLM engine has ended, and {count}. {again}") from self._error
                share = -(-len(left) // len(self._engines))
                for engine in self._engines:
                    engine.ask([left.popleft() for _ in range(min(share, engine.places, len(left)))])
                for texts, tokens in self._collect(left):
                    if count_tokens is not None:
                        count_tokens(tokens, None)
                    missing -= len(texts)
                    yield from texts
        finally:
            for engine in self._engines:
                if engine.held:
                    engine.actor.abort.remote()  # an actor does what it is asked in this order
                engine.held, engine.calls = {}, []

    def _collect(self, left: deque[Job]) -> Iterator[tuple[list[Text], int]]:
        """What engines return within a second. The jobs of one that ended, or wrote no token for too long, go back to `left`."""
        calls = {engine.calls[0]: engine for engine in self._engines if engine.calls}
        self._ray.wait([*calls], timeout=1)
        ready, _ = self._ray.wait([*calls], num_returns=len(calls), timeout=0)
        for call, engine in calls.items():
            if call in ready:
                engine.calls.remove(call)
                try:
                    texts, tokens = self._ray.get(call)
                except self._ray.exceptions.RayError as error:
                    self._drop(engine, left, f"has ended ({_explain(error)})", error)
                    continue
                if tokens:
                    engine.last = time.monotonic()
                for text in texts:
                    del engine.held[text.number]
                yield texts, tokens
            elif engine.held and time.monotonic() - engine.last > (limit := self._sharing.data_parallel_timeout):
                self._drop(engine, left, f"wrote no token for data_parallel_timeout={limit} seconds and was ended")

    def _drop(self, engine: _Engine, left: deque[Job], why: str, error: Exception | None = None) -> None:
        self._ray.kill(engine.actor)
        self._engines.remove(engine)
        self._error = error
        left.extendleft(engine.held.values())
        words = "a vLLM engine on node %s %s; the run goes on (engines left: %d)"
        logger.warning(words, engine.node, why, len(self._engines))

    def close(self) -> None:
        """End the engines and free their GPUs."""
        self._ray.util.remove_placement_group(self._group)


def _connect() -> Any:
    """Ray, connected to its cluster; it starts one here if it finds none. Raises ArgumentError if it cannot."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise ArgumentError("data_parallel_size needs Ray: pip install ray") from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # by default Ray reports its use
    try:
        ray.init(include_dashboard=False, logging_level=logging.WARNING, ignore_reinit_error=True)
    except (OSError, RuntimeError) as error:  # an address that does not answer, another version of Ray or Python
        raise ArgumentError(f"data_parallel_size: Ray cannot start or connect: {_explain(error)}") from error
    signal.signal(signal.SIGTERM, handler)  # Ray has set its own
    return ray


def _list_environment() -> dict[str, str]:
    """What engines need of this environment: a node's own was set when Ray was started there."""
    found = {name: value for name, value in os.environ.items() if name.startswith(("HF_", "VLLM_"))}
    found.pop("VLLM_HOST_IP", None)  # of this node
    if paths := os.environ.get("PYTHONPATH"):
        found["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths.split(os.pathsep)))
    return found


def _make_absolute(arguments: ModelArguments) -> ModelArguments:
    """For one engine, on any node, whatever folder Ray was started in."""
    own = {name: value for name, value in arguments.engine_arguments.items() if not name.startswith("data_parallel")}
    paths = dict[str, Any]()
    for role in ("base", "guide"):
        name = getattr(arguments, role)
        if name and os.path.isdir(path := locate(name)[0]):
            paths[role] = os.path.abspath(path)
    plugins = "+".join(str(file.absolute()) if file else name for name, file in split_plugins(arguments.plugins)) or None
    return replace(arguments, engine_arguments=own, plugins=plugins, **paths)


def _explain(error: Exception) -> str:
    """The last line of Ray's error, which is that of its cause."""
    return str(error).strip().splitlines()[-1].rpartition("Error: ")[2]
