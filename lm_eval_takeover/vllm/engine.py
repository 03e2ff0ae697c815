"""A vLLM engine, and several that share the work as actors of Ray: `data_parallel_size`.

Jobs go in at any time, vLLM batches them, and texts come out as they finish.
"""

import asyncio
import gc
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.decoding.rows import StopStrings
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.registry import load_plugins
from lm_eval_takeover.method.request import GREEDY, CountTokens, Request
from lm_eval_takeover.pair.loading import load_pair
from lm_eval_takeover.pair.pair import Pair
from lm_eval_takeover.vllm.block_rule import Choice
from lm_eval_takeover.vllm.launch import count_engines, list_engine_arguments, plan_drafts, start_engine
from lm_eval_takeover.vllm.settings import RequestSettings, build_policy, describe_policy

logger = logging.getLogger(__name__)

TESTED_PROMPTS, _TESTED_TOKENS = 4, 16


@dataclass(frozen=True, slots=True)
class Job:
    """A text to write. number: the caller's. settings: for vLLM's workers."""

    number: int
    request: Request
    settings: RequestSettings


@dataclass(frozen=True, slots=True)
class Text:
    """A finished job. records: float32 `[tokens, columns]` of `emission`. passes: by role, 0 in a fused engine."""

    number: int
    tokens: list[int]
    records: NDArray[np.float32]
    passes: dict[str, int]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts of a running engine."""

    dtype: torch.dtype
    max_model_len: int
    max_num_seqs: int
    block: int


@dataclass(slots=True)
class _Written:
    """A text in flight."""

    job: Job
    stop: StopStrings
    ends: frozenset[int]
    tokens: list[int]


class VllmEngine:
    """One engine in this process, which steps vLLM. Raises ArgumentError for what vLLM refuses."""

    def __init__(self, arguments: ModelArguments, pair: Pair, policy: Policy) -> None:
        self.pair, self.policy = pair, policy
        self._own_policy = describe_policy(policy)
        self._numbers, self._running = count(), dict[str, _Written]()
        self._start(arguments, plan_drafts(arguments, pair, policy))
        if self.facts.block > 1 and not self._agrees_with_lockstep():
            logger.warning(
                "block_size=%d: drafts do not give the tokens of one pass a token here; continuing with the fused path",
                self.facts.block,
            )
            self.close()
            self._start(arguments, Choice([], "drafts do not agree with lockstep"))

    def _start(self, arguments: ModelArguments, drafts: Choice) -> None:
        self.llm = start_engine(list_engine_arguments(arguments, self.pair, self.policy, drafts), self.pair)
        self._engine = self.llm.llm_engine
        config = self._engine.vllm_config
        model, places = config.model_config, config.scheduler_config.max_num_seqs
        self.facts = EngineFacts(model.dtype, model.max_model_len, places, drafts.longest)

    def _agrees_with_lockstep(self) -> bool:
        """Whether a few texts are the same with drafts and without. Below float32, half of them may differ by roundings."""
        ids = tuple(self.pair.encode("1 2 3 4 5 6 7 8"))  # ordinary tokens
        prompts = [ids[: 2 + length] for length in range(TESTED_PROMPTS)]
        requests = [Request(prompt, sampling=GREEDY, max_new_tokens=_TESTED_TOKENS) for prompt in prompts]
        texts = []
        for lockstep in (False, True):
            jobs = [Job(i, request, RequestSettings(lockstep=lockstep)) for i, request in enumerate(requests)]
            texts.append([text.tokens for text in sorted(self.run(jobs), key=lambda text: text.number)])
        differing = sum(text != other for text, other in zip(*texts, strict=True))
        return bool(differing <= (0 if self.facts.dtype == torch.float32 else len(requests) // 2))

    def close(self) -> None:
        """End vLLM's processes and give its memory back."""
        self._engine.engine_core.shutdown()
        del self.llm, self._engine
        gc.collect()

    def run(self, jobs: Sequence[Job], count_tokens: CountTokens | None = None) -> Iterator[Text]:
        """Texts as they finish. `count_tokens` gets the number of tokens of each step."""
        for job in jobs:
            self.add(job)
        try:
            while self._running:
                texts, tokens = self.step()
                if count_tokens is not None:
                    count_tokens(tokens, None)
                yield from texts
        finally:
            self.abort()

    # The same, a step at a time

    def add(self, job: Job) -> None:
        """Hand a job to vLLM."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        request, name = job.request, f"takeover-{next(self._numbers)}"
        named = "" if job.settings.policy == self._own_policy else job.settings.policy
        settings = replace(job.settings, id=name, policy=named)
        ends: frozenset[int] = frozenset() if settings.forced else self.pair.eos_ids
        params = SamplingParams(
            temperature=0,  # greedy sampling takes the one token that the gate leaves
            max_tokens=request.max_new_tokens - len(request.begun),
            stop_token_ids=sorted(ends),
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args=settings.to_extra_args(),
        )
        stop = StopStrings(self.pair.tokenizer, request.until)
        self._engine.add_request(name, {"prompt_token_ids": list(request.text)}, params)
        self._running[name] = _Written(job, stop, ends, list(request.begun))

    def step(self) -> tuple[list[Text], int]:
        """Run one step of vLLM. Returns the texts that ended, and the number of tokens written."""
        ended, cut, tokens = [], [], 0
        for output in self._engine.step():
            written = self._running.get(output.request_id)
            if written is None:
                continue  # cut off in an earlier step
            new, limit = output.outputs[0].token_ids, written.job.request.max_new_tokens
            count, ends = written.stop.extend(written.tokens, new, limit, written.ends)
            tokens += count
            if ends or output.finished:
                ended.append(output.request_id)
                if not output.finished:
                    cut.append(output.request_id)
        if cut:
            self._engine.abort_request(cut)
        texts = []
        if ended:
            records = self._take_records({name: len(self._running[name].tokens) for name in ended})
            for name in ended:
                written = self._running.pop(name)
                texts.append(Text(written.job.number, written.tokens, *records[name]))
        return texts, tokens

    def abort(self) -> None:
        """Drop all unfinished jobs."""
        if self._running:
            self._engine.abort_request(list(self._running))
            self._running.clear()

    def _take_records(self, counts: dict[str, int]) -> dict[str, tuple[NDArray[np.float32], dict[str, int]]]:
        """Each text's records `[tokens, columns]` and passes. Raises RuntimeError if a worker's gate was never asked."""
        records, wishes = {}, [(name, 0, count, True) for name, count in counts.items()]
        for worker in self.llm.collective_rpc("read_takeover_records", args=(wishes,)):
            for name, record in zip(counts, worker, strict=True):
                if record is None or not record[0]:
                    raise RuntimeError(f"vLLM wrote {name} and the gate was never asked; no result can be trusted")
                records[name] = np.frombuffer(record[0], np.float32).reshape(counts[name], -1), record[1]
        return records


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
        left, asked = {job.number: job for job in jobs}, dict[int, Any]()

        def ask(name: str, job: Job) -> Any:
            """Have this engine write a job, or another one if it has ended: every engine writes the same texts."""
            engine = self.actors.get(name) or [*self.actors.values()][job.number % len(self.actors)]
            asked[job.number] = engine.write.remote(job)
            return asked[job.number]

        try:
            while left:  # again for the jobs of engines that have ended
                if not self.actors:
                    raise RuntimeError("every vLLM engine has ended. Give the command again: finished samples are kept")
                pool = self._ray.util.ActorPool([*self.actors] * (self.facts.max_num_seqs * 5 // 4))  # some jobs wait
                for job in left.values():
                    pool.submit(ask, job)
                while self.actors and pool.has_next():
                    try:
                        text = pool.get_next_unordered()
                    except self._ray.exceptions.RayActorError as error:
                        if self.actors.pop(error.actor_id, None):
                            logger.warning("a vLLM engine has ended; the run goes on (engines left: %d)", len(self.actors))
                        continue
                    del left[text.number], asked[text.number]
                    if count_tokens is not None:
                        count_tokens(len(text.tokens), None)
                    yield text
        finally:
            while asked:  # actors take tasks in any order: a late abort would end jobs of the next run, a late job join them
                aborts = [actor.abort.remote() for actor in self.actors.values()]
                self._ray.wait(aborts, num_returns=len(aborts))
                running = self._ray.wait([*asked.values()], num_returns=len(asked), timeout=0.1)[1]
                asked = {number: task for number, task in asked.items() if task in running}

    def close(self) -> None:
        for actor in self.actors.values():
            self._ray.kill(actor)
