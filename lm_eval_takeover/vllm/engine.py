"""One vLLM engine: jobs go in at any time, vLLM batches them, and texts come out as they finish."""

import gc
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.decoding.rows import StopStrings
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import GREEDY, CountTokens, Request
from lm_eval_takeover.pair.pair import Pair
from lm_eval_takeover.vllm.block_rule import Choice
from lm_eval_takeover.vllm.launch import list_engine_arguments, plan_drafts, start_engine
from lm_eval_takeover.vllm.settings import RequestSettings, describe_policy

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
        self._numbers, self.running = count(), dict[str, _Written]()
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
            while self.running:
                texts, tokens = self.step()
                if count_tokens is not None:
                    count_tokens(tokens, None)
                yield from texts
        finally:
            self.abort()

    # The same, a step at a time

    def add(self, job: Job) -> None:
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
        self.running[name] = _Written(job, stop, ends, list(request.begun))

    def step(self) -> tuple[list[Text], int]:
        """Run one step of vLLM. Returns the texts that ended, and the number of tokens written."""
        ended, cut, tokens = [], [], 0
        for output in self._engine.step():
            written = self.running.get(output.request_id)
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
            records = self._take_records({name: len(self.running[name].tokens) for name in ended})
            for name in ended:
                written = self.running.pop(name)
                texts.append(Text(written.job.number, written.tokens, *records[name]))
        return texts, tokens

    def abort(self) -> None:
        if self.running:
            self._engine.abort_request(list(self.running))
            self.running.clear()

    def _take_records(self, counts: dict[str, int]) -> dict[str, tuple[NDArray[np.float32], dict[str, int]]]:
        """Each text's records `[tokens, columns]` and passes. Raises RuntimeError if a worker's gate was never asked."""
        records, wishes = {}, [(name, 0, count, True) for name, count in counts.items()]
        for worker in self.llm.collective_rpc("read_takeover_records", args=(wishes,)):
            for name, record in zip(counts, worker, strict=True):
                if record is None or not record[0]:
                    raise RuntimeError(f"vLLM wrote {name} and the gate was never asked; no result can be trusted")
                records[name] = np.frombuffer(record[0], np.float32).reshape(counts[name], -1), record[1]
        return records
