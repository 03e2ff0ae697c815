"""Several vLLM engines that share the work: `data_parallel_size`. Each is an actor of Ray, on this machine or in a cluster."""

import asyncio
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.registry import load_plugins
from lm_eval_takeover.method.request import CountTokens
from lm_eval_takeover.pair.loading import load_pair
from lm_eval_takeover.vllm.engine import EngineFacts, Job, Text, VllmEngine
from lm_eval_takeover.vllm.launch import count_engines
from lm_eval_takeover.vllm.settings import build_policy, describe_policy

logger = logging.getLogger(__name__)


class EngineActor:
    """One engine in its process. It writes all jobs that are there together."""

    async def start(self, arguments: ModelArguments, policy: str) -> EngineFacts:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # it is a process of its own already
        load_plugins(arguments.plugins)
        self.engine = VllmEngine(arguments, load_pair(arguments), build_policy(policy))
        self._texts = dict[int, asyncio.Future[Text]]()
        return self.engine.facts

    async def write(self, job: Job) -> Text:
        self.engine.add(job)
        self._texts[job.number] = asyncio.get_running_loop().create_future()
        if len(self._texts) == 1:
            self._steps = asyncio.create_task(self._step())
        return await self._texts[job.number]

    async def _step(self) -> None:
        try:
            while self._texts:
                for text in self.engine.step()[0]:
                    self._texts.pop(text.number).set_result(text)
                await asyncio.sleep(0)  # new jobs come in
        except Exception:
            logger.exception("a vLLM engine failed")
            os._exit(1)

    async def abort(self) -> None:
        self.engine.abort()
        while self._texts:
            self._texts.popitem()[1].cancel()


class Engines:
    """Several engines behind the interface of one `VllmEngine`. Raises ArgumentError if one cannot start."""

    def __init__(self, arguments: ModelArguments, policy: Policy, kind: type = EngineActor) -> None:
        try:
            import ray
        except ImportError as error:
            raise ArgumentError("data_parallel_size needs Ray: pip install ray") from error
        self._ray, (size, ranks) = ray, count_engines(arguments)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # by default Ray reports its use
        ray.init(include_dashboard=False, logging_level=logging.WARNING, ignore_reinit_error=True)
        if 0 < (gpus := int(ray.cluster_resources().get("GPU", 0))) < size * ranks:
            raise ArgumentError(f"data_parallel_size={size} needs {size * ranks} GPUs, and Ray has {gpus}; give fewer engines")
        actor = ray.remote(kind).options(num_gpus=ranks * bool(gpus), scheduling_strategy="SPREAD", max_concurrency=2**14)
        self.actors = {one._actor_id.hex(): one for one in (actor.remote() for _ in range(size))}
        own = {name: value for name, value in arguments.engine_arguments.items() if not name.startswith("data_parallel")}
        given = replace(arguments, engine_arguments=own), describe_policy(policy)
        try:
            self.facts: EngineFacts = ray.get([actor.start.remote(*given) for actor in self.actors.values()])[0]
        except ray.exceptions.RayError as error:
            self.close()
            raise ArgumentError(str(error).strip().splitlines()[-1].rpartition("Error: ")[2]) from error

    def run(self, jobs: Sequence[Job], count_tokens: CountTokens | None = None) -> Iterator[Text]:
        """Texts as they finish. Raises RuntimeError when the last engine has ended."""
        left = {job.number: job for job in jobs}
        try:
            while left:  # again for the jobs of engines that have ended
                if not self.actors:
                    raise RuntimeError("every vLLM engine has ended. Give the command again: finished samples are kept")
                pool = self._ray.util.ActorPool([*self.actors] * (self.facts.max_num_seqs * 5 // 4))  # some jobs wait
                for job in left.values():
                    pool.submit(self._ask, job)
                while self.actors and pool.has_next():
                    try:
                        text = pool.get_next_unordered()
                    except self._ray.exceptions.RayActorError as error:
                        if self.actors.pop(error.actor_id, None):
                            logger.warning("a vLLM engine has ended; the run goes on (engines left: %d)", len(self.actors))
                        continue
                    del left[text.number]
                    if count_tokens is not None:
                        count_tokens(len(text.tokens), None)
                    yield text
        finally:
            for actor in self.actors.values():
                actor.abort.remote()

    def _ask(self, name: str, job: Job) -> Any:
        """Have this engine write a job, or another one if it has ended: every engine writes the same texts."""
        return (self.actors.get(name) or [*self.actors.values()][job.number % len(self.actors)]).write.remote(job)

    def close(self) -> None:
        for actor in self.actors.values():
            self._ray.kill(actor)
