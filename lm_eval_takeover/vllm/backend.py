"""The vLLM engines as a backend: requests go in at once, vLLM batches them, samples come out as they finish."""

import gc
import json
import logging
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.decoding.engine import write_after_donor
from lm_eval_takeover.decoding.failures import Failures
from lm_eval_takeover.decoding.stop_strings import StopStrings
from lm_eval_takeover.decoding.teacher_forcing import Forced
from lm_eval_takeover.errors import ArgumentError, ModelOutputError
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.observations import COMPARED, COUNTED, OBSERVED
from lm_eval_takeover.method.policies import ALONE
from lm_eval_takeover.method.policy import DIRECTIONS, Policy
from lm_eval_takeover.method.registry import Score
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.method.request import GREEDY, Request
from lm_eval_takeover.pair.pair import Pair
from lm_eval_takeover.vllm.emission import REST, SCORE, TAKEN
from lm_eval_takeover.vllm.launch import (
    choose_runner,
    count_parameters,
    list_engine_arguments,
    plan_block,
    start_engine,
)
from lm_eval_takeover.vllm.settings import RequestSettings, describe_policy
from lm_eval_takeover.vllm.versions import check_hooks, check_version

logger = logging.getLogger(__name__)

_AT_ONCE = 4096  # samples that are handed to vLLM together: its queue is long, and what it holds of each is small
_TESTED_PROMPTS, _TESTED_TOKENS = 4, 16
_NUMERIC = ("quantization", "kv_cache_dtype", "load_format", "rope_scaling", "tensor_parallel_size")  # change texts


@dataclass(frozen=True, slots=True)
class Weights:
    """What is known here of a model whose weights lie in vLLM; stands in the place of transformers' model."""

    dtype: torch.dtype
    parameters: int

    def num_parameters(self) -> int:
        return self.parameters


@dataclass(slots=True)
class Written:
    """A sample in flight."""

    index: int
    request: Request
    stop: StopStrings
    tokens: list[int] = field(default_factory=list)

    def append(self, tokens: Sequence[int], ends: frozenset[int]) -> bool:
        """Tokens up to the one that ends the text; whether there is one."""
        stops = self.stop.may_end_in(self.tokens, tokens)
        for token in tokens:
            self.tokens.append(token)
            full = len(self.tokens) == self.request.max_new_tokens
            if full or token in ends or (stops and self.stop.found(self.tokens)):
                return True
        return False


class VllmBackend:
    """Implements `backends.Backend`."""

    def __init__(self, arguments: ModelArguments, pair: Pair, policy: Policy) -> None:
        check_version()
        self.pair, self.policy, self._started_for = pair, policy, policy
        self._numbers = count()
        self._arguments = {
            name: arguments.engine_arguments[name] for name in _NUMERIC if name in arguments.engine_arguments
        }
        self.block = plan_block(arguments, pair, policy)
        self._start(arguments)
        if self.block > 1 and not self._agrees_with_lockstep():
            logger.warning(
                "block_size=%d: drafts do not give the tokens of one pass a token here; continuing with the fused path",
                self.block,
            )
            self.close()
            self.block = 1
            self._start(arguments)
        for member in pair.members:
            member.model = Weights(self.engine.model_config.dtype, count_parameters(member))

    def _start(self, arguments: ModelArguments) -> None:
        check_hooks(blockwise=self.block > 1, runner_v2=choose_runner())
        self.llm = start_engine(list_engine_arguments(arguments, self.pair, self.policy, block=self.block), self.pair)
        self.engine = self.llm.llm_engine

    def close(self) -> None:
        """End vLLM's processes and give its memory back."""
        self.engine.engine_core.shutdown()
        del self.llm, self.engine
        gc.collect()

    def _agrees_with_lockstep(self) -> bool:
        """Whether a few texts are the same by whole drafts and by one token a pass; below float32 roundings may differ in one."""
        requests = [Request(prompt, sampling=GREEDY, max_new_tokens=_TESTED_TOKENS) for prompt in self._test_prompts()]
        failures = Failures(len(requests))
        texts = []
        for lockstep in (False, True):
            options = {"seed": 0, "lockstep": lockstep}
            written = dict(self._write(self.policy, requests, failures, options))
            texts.append([written[i].tokens for i in range(len(requests))])
        differing = sum(one != other for one, other in zip(*texts, strict=True))
        allowed = 0 if self.engine.model_config.dtype == torch.float32 else len(requests) // 2
        return bool(differing <= allowed)

    def _test_prompts(self) -> list[tuple[int, ...]]:
        """A few prompts of ordinary tokens, of different lengths."""
        return [tuple(self.pair.encode("1 2 3 4 5 6 7 8"))[: 2 + length] for length in range(_TESTED_PROMPTS)]

    @property
    def identity(self) -> str:
        """The backend, and what of its own arguments can change a text."""
        return f"vllm {json.dumps(self._arguments, sort_keys=True, default=str)}" if self._arguments else "vllm"

    def fit_rows(self, tokens: int) -> int:
        return _AT_ONCE

    # Generation

    def generate(
        self,
        requests: Sequence[Request],
        *,
        seed: int,
        rows: int = _AT_ONCE,
        traced: bool = False,
        count_tokens: Callable[[int], None] | None = None,
        policy: Policy | None = None,
    ) -> Iterator[tuple[int, Generation]]:
        """As `decoding.engine.generate`; by another policy of the models that the engine holds where one is given."""
        policy, failures = policy or self.policy, Failures(len(requests))

        def write(by: Policy, asked: Sequence[Request], traced: bool) -> Iterator[tuple[int, Generation]]:
            return self._write(by, asked, failures, {"seed": seed, "traced": traced}, count_tokens)

        if policy.needs_donor_length:
            yield from write_after_donor(write, policy, requests, traced, at_once=rows)
        else:
            yield from write(policy, requests, traced)
        self._check_gated(len(requests))
        failures.check()

    def roll_out(
        self, requests: Sequence[Request], *, seed: int
    ) -> Iterator[tuple[int, list[int], dict[str, NDArray[np.float32]]]]:
        """`(index into requests, tokens, by name each registered score of its tokens)` of texts that the host writes alone.

        Both models read every token, so the scores of the engine's direction come with the pass that writes.
        """
        host = DIRECTIONS[self.policy.direction][0]
        names, failures = registered.names(), Failures(len(requests))
        for index, generation in self._write(ALONE[host](), requests, failures, {"seed": seed, "scored": True}):
            table = np.frombuffer(generation.observed or b"", np.float32).reshape(-1, len(names))
            yield index, generation.tokens, {name: table[:, column].copy() for column, name in enumerate(names)}
        failures.check()

    def _write(
        self,
        policy: Policy,
        requests: Sequence[Request],
        failures: Failures,
        options: Mapping[str, Any],
        count_tokens: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[int, Generation]]:
        """Every request to its end, in the order in which they end; `options` are further `RequestSettings`."""
        running: dict[str, Written] = {}
        for index, request in enumerate(requests):
            settings = RequestSettings(
                id=f"takeover-{next(self._numbers)}",
                sample=request.sample,
                temperature=request.sampling.temperature,
                top_p=request.sampling.top_p,
                top_k=request.sampling.top_k,
                policy=self._name_policy(policy),
                donor_length=request.donor_length,
                begun=len(request.begun),
                begun_scores=request.begun_scores,
                **options,
            )
            stop = StopStrings(self.pair.tokenizer, request.until)
            running[settings.id] = Written(index, request, stop, list(request.begun))
            self._add(request.text, request.max_new_tokens - len(request.begun), settings)
        try:
            for finished in self._run(running, count_tokens):
                records = self._take({name: len(running[name].tokens) for name in finished})
                for name in finished:
                    one = running.pop(name)
                    generation = _make_generation(one, *records[name], policy, _count_recorded(options))
                    try:
                        _refuse_broken(one.request, generation, policy)
                    except ModelOutputError as error:
                        failures.add(one.request, error)
                        continue
                    failures.succeeded()
                    yield one.index, generation
        finally:
            if running:  # stopped halfway
                self.engine.abort_request(list(running), internal=False)

    def _name_policy(self, policy: Policy) -> str:
        """A policy for `RequestSettings`: empty where it is the engine's."""
        return "" if policy == self._started_for else json.dumps(describe_policy(policy))

    def _run(self, running: Mapping[str, Written], count_tokens: Callable[[int], None] | None) -> Iterator[list[str]]:
        """Step the engine; yield the names of requests whose text has ended, which the caller takes out of `running`."""
        ends = self.pair.eos_ids
        while running:
            ended, cut = [], []
            for output in self.engine.step():
                one = running.get(output.request_id)
                if one is None:
                    continue  # cut off in an earlier step
                tokens = output.outputs[0].token_ids
                before = len(one.tokens)
                if one.append(tokens, ends) or output.finished:
                    ended.append(output.request_id)
                    if not output.finished:
                        cut.append(output.request_id)
                if count_tokens is not None:
                    count_tokens(len(one.tokens) - before)
            if cut:
                self.engine.abort_request(cut, internal=False)
            if ended:
                yield ended

    def _add(self, prompt: Sequence[int], max_tokens: int, settings: RequestSettings) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0,  # the gate leaves one token, which greedy sampling takes
            max_tokens=max_tokens,
            stop_token_ids=[] if settings.forced else sorted(self.pair.eos_ids),
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args=settings.to_extra_args(),
        )
        self.engine.add_request(settings.id, {"prompt_token_ids": list(prompt)}, params)

    def _take(self, counts: dict[str, int]) -> dict[str, tuple[NDArray[np.float32], dict[str, int]]]:
        """Of each request its records `[tokens, columns]`, and its passes."""
        found: dict[str, tuple[bytes, dict[str, int]]] = {}
        for part in self.llm.collective_rpc("take_takeover_records", args=(counts,)):
            found |= {name: one for name, one in part.items() if one is not None}
        missing = [name for name in counts if name not in found]
        if missing:
            raise RuntimeError(f"vLLM's worker has no records of {missing[0]}")
        return {
            name: (np.frombuffer(data, np.float32).reshape(counts[name], -1), passes)
            for name, (data, passes) in found.items()
        }

    def _check_gated(self, samples: int) -> None:
        """No score without proof that the gate ran."""
        if samples and not all(self.llm.collective_rpc("takeover_calls")):
            raise RuntimeError("vLLM wrote texts and the gate was never asked; no result can be trusted")

    # Texts that stand already

    def force(
        self,
        prompts: Sequence[Sequence[int]],
        continuations: Sequence[Sequence[int]],
        *,
        seed: int,
        labels: Sequence[str],
    ) -> list[Forced]:
        """As `teacher_forcing.force`, token by token: the gate emits the continuation whatever is drawn."""
        options = {"seed": seed, "policy": self._name_policy(self.policy)}
        forced = []
        for table, label in zip(self._replay(prompts, continuations, options), labels, strict=True):
            if self.policy.scorer is not None:
                _refuse_nan(table[:, SCORE], label)
            score, taken, log_probs, greedy = torch.from_numpy(table[:, : REST + 2].copy()).unbind(1)
            forced.append(Forced(score, taken.bool(), log_probs, greedy.bool()))
        return forced

    def compare(
        self,
        scores: Sequence[Score],
        prompts: Sequence[Sequence[int]],
        continuations: Sequence[Sequence[int]],
        labels: Sequence[str],
    ) -> list[dict[str, NDArray[Any]]]:
        """As `teacher_forcing.compare`, token by token, as `force`: vLLM hands a gate the logits of next tokens alone.

        Raises ArgumentError where the engine's context is shorter than a text.
        """
        longest = max(len(prompt) + len(one) for prompt, one in zip(prompts, continuations, strict=True))
        if longest > (limit := self.engine.model_config.max_model_len):
            raise ArgumentError(
                f"max_model_len={limit} is less than the {longest} tokens of a text; give at least {longest}"
            )
        columns = [*registered.names(), *COMPARED]
        compared = []
        for table, label in zip(self._replay(prompts, continuations, {"compared": True}), labels, strict=True):
            values = dict(zip(columns, np.ascontiguousarray(table[:, REST:].T), strict=True))
            for name in ("base_entropy", "guide_entropy"):
                _refuse_nan(values[name], label)
            found = {name: values[name] for name in (*(score.name for score in scores), *COMPARED)}
            compared.append(found | {name: values[name].astype(np.int32) for name in COUNTED})
        return compared

    def _replay(
        self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], options: Mapping[str, Any]
    ) -> list[NDArray[np.float32]]:
        """The records `[tokens, columns]` of each continuation, every token of which is emitted whatever is drawn."""
        lengths: dict[str, int] = {}
        for prompt, continuation in zip(prompts, continuations, strict=True):
            name = f"takeover-{next(self._numbers)}"
            forced = RequestSettings(id=name, donor_length=len(continuation), forced=tuple(continuation), **options)
            self._add(prompt, len(continuation), forced)
            lengths[name] = len(continuation)
        left = set(lengths)
        try:
            while left:
                left -= {output.request_id for output in self.engine.step() if output.finished}
        finally:
            if left:  # stopped halfway
                self.engine.abort_request(list(left), internal=False)
        records = self._take(lengths)
        return [records[name][0] for name in lengths]


def _count_recorded(options: Mapping[str, Any]) -> int:
    """Columns that a request has recorded beside score and takeover."""
    return len(registered.names()) if options.get("scored") else len(OBSERVED) if options.get("traced") else 0


def _make_generation(
    one: Written, records: NDArray[np.float32], passes: Mapping[str, int], policy: Policy, recorded: int
) -> Generation:
    """A finished sample from the gate's records, so many columns of which are `observed`.

    In a fused engine every model reads every token but the last.
    """
    begun = len(one.request.begun)
    fused = len(one.tokens) - 1 - begun
    counted = passes if any(passes.values()) else dict.fromkeys(policy.roles, fused)
    observed = None
    if recorded:
        observed = array("f", np.ascontiguousarray(records[begun:, REST : REST + recorded]).tobytes())
    return Generation(
        tokens=one.tokens,
        taken_over=[bool(taken) for taken in records[:, TAKEN]],
        scores=records[:, SCORE].tolist(),
        base_passes=counted.get("base", 0),
        guide_passes=counted.get("guide", 0),
        observed=observed,
    )


def _refuse_nan(values: NDArray[np.float32], label: str) -> None:
    if bool(np.isnan(values).any()):
        raise ModelOutputError(f"a model returned NaN or infinite logits for {label}")


def _refuse_broken(request: Request, generation: Generation, policy: Policy) -> None:
    """Raise ModelOutputError where a score is no number."""
    if policy.scorer is None:
        return
    place = next((place for place, score in enumerate(generation.scores) if np.isnan(score)), None)
    if place is not None:
        raise ModelOutputError(
            f"a model returned NaN or infinite logits for token {place} of {request.label}; try dtype=float32"
        )
