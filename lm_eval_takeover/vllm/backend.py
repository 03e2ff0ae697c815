"""vLLM as a backend: the interface of `decoding.engine.TransformersBackend`, by one engine or several."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.decoding.emission import REST, SCORE, TAKEN
from lm_eval_takeover.decoding.engine import Failures, write_by
from lm_eval_takeover.decoding.teacher_forcing import Forced, Texts
from lm_eval_takeover.errors import ArgumentError, ModelOutputError
from lm_eval_takeover.method.policies import ALONE
from lm_eval_takeover.method.policy import DIRECTIONS, Policy
from lm_eval_takeover.method.registry import Score
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.method.request import COMPARED, COUNTED, OBSERVED, CountTokens, Generation, Request
from lm_eval_takeover.pair.pair import Pair
from lm_eval_takeover.vllm.cluster import Engines
from lm_eval_takeover.vllm.engine import Job, Text, VllmEngine
from lm_eval_takeover.vllm.launch import check_architectures, check_names, check_version, count_engines
from lm_eval_takeover.vllm.settings import RequestSettings, describe_policy

_AT_ONCE = 4096  # samples that vLLM gets together; its queue is long, and a waiting sample is small


class VllmBackend:
    """Both models of a pair in vLLM, and a policy that decides who writes."""

    def __init__(self, arguments: ModelArguments, pair: Pair, policy: Policy) -> None:
        check_version()
        check_names(arguments.engine_arguments)
        check_architectures(pair, policy)
        self.pair, self.policy = pair, policy
        for member in pair.members:
            _ = member.outline  # made first: vLLM may wrap classes of transformers in this process
        kind = Engines if count_engines(arguments).data_parallel_size > 1 else VllmEngine
        self.engine: Engines | VllmEngine = kind(arguments, pair, policy)
        for member in pair.members:
            member.loaded_dtype = self.engine.facts.dtype

    def close(self) -> None:
        """End vLLM's processes and give its memory back."""
        self.engine.close()

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
        count_tokens: CountTokens | None = None,
        policy: Policy | None = None,
    ) -> Iterator[tuple[int, Generation]]:
        """As `decoding.engine.generate`. policy: another one, of models that the engine holds."""
        policy, failures = policy or self.policy, Failures(len(requests))

        def write(by: Policy, asked: Sequence[Request], traced: bool) -> Iterator[tuple[int, Generation]]:
            return self._write(by, asked, failures, {"seed": seed, "traced": traced}, count_tokens)

        yield from write_by(policy, write, requests, traced, at_once=rows)
        failures.check()

    def roll_out(
        self, requests: Sequence[Request], *, seed: int, count_tokens: CountTokens | None = None
    ) -> Iterator[tuple[int, list[int], dict[str, NDArray[np.float32]]]]:
        """Texts that the host writes alone: `(index into requests, tokens, registered scores of its tokens by name)`."""
        host = DIRECTIONS[self.policy.direction][0]  # both models read each token, so the pass that writes it scores it
        names, failures = registered.names(), Failures(len(requests))
        for index, generation in self._write(ALONE[host](), requests, failures, {"seed": seed, "scored": True}, count_tokens):
            table = np.frombuffer(generation.observed or b"", np.float32).reshape(-1, len(names))
            yield index, generation.tokens, {name: table[:, column].copy() for column, name in enumerate(names)}
        failures.check()

    def _write(
        self,
        policy: Policy,
        requests: Sequence[Request],
        failures: Failures,
        options: Mapping[str, Any],
        count_tokens: CountTokens | None = None,
    ) -> Iterator[tuple[int, Generation]]:
        """Generations as they finish. options: further `RequestSettings`."""
        jobs, named = [], describe_policy(policy)
        recorded = len(registered.names()) if options.get("scored") else len(OBSERVED) if options.get("traced") else 0
        for index, request in enumerate(requests):
            settings = RequestSettings(
                sample=request.sample,
                **asdict(request.sampling),
                policy=named,
                donor_length=request.donor_length,
                begun=len(request.begun),
                begun_scores=request.begun_scores,
                **options,
            )
            jobs.append(Job(index, request, settings))
        for text in self.engine.run(jobs, count_tokens):
            request = requests[text.number]
            generation = _make_generation(request, text, policy, recorded)
            broken = np.flatnonzero(np.isnan(generation.scores))
            if policy.scorer is not None and len(broken):
                token = f"token {broken[0]} of {request.label}; try dtype=float32"
                failures.add(request, ModelOutputError(f"a model returned NaN or infinite logits for {token}"))
                continue
            failures.succeeded()
            yield text.number, generation

    # Texts that stand already

    def force(self, prompts: Texts, continuations: Texts, *, seed: int, labels: Sequence[str]) -> list[Forced]:
        """As `teacher_forcing.force`, token by token. The gate emits the continuation, whatever is drawn."""
        options = {"seed": seed, "policy": describe_policy(self.policy)}
        forced = []
        for table, label in zip(self._replay(prompts, continuations, options), labels, strict=True):
            if self.policy.scorer is not None:
                _refuse_nan(table[:, SCORE], label)
            score, taken, log_probs, greedy = torch.from_numpy(table[:, : REST + 2].copy()).unbind(1)
            forced.append(Forced(score, taken.bool(), log_probs, greedy.bool()))
        return forced

    def compare(
        self, scores: Sequence[Score], prompts: Texts, continuations: Texts, labels: Sequence[str]
    ) -> list[dict[str, NDArray[Any]]]:
        """As `teacher_forcing.compare`, token by token. Raises ArgumentError if a text is longer than the engine's context."""
        longest = max(len(prompt) + len(text) for prompt, text in zip(prompts, continuations, strict=True))
        if longest > (limit := self.engine.facts.max_model_len):
            raise ArgumentError(f"max_model_len={limit} is less than the {longest} tokens of a text; give at least {longest}")
        columns = [*registered.names(), *COMPARED]
        compared = []
        for table, label in zip(self._replay(prompts, continuations, {"compared": True}), labels, strict=True):
            values = dict(zip(columns, np.ascontiguousarray(table[:, REST:].T), strict=True))
            for name in ("base_entropy", "guide_entropy"):
                _refuse_nan(values[name], label)
            arrays = {name: values[name] for name in (*(score.name for score in scores), *COMPARED)}
            compared.append(arrays | {name: values[name].astype(np.int32) for name in COUNTED})
        return compared

    def _replay(self, prompts: Texts, continuations: Texts, options: Mapping[str, Any]) -> list[NDArray[np.float32]]:
        """The records `[tokens, columns]` of each continuation, which is emitted whatever is drawn."""
        jobs = []
        for number, (prompt, continuation) in enumerate(zip(prompts, continuations, strict=True)):
            request = Request(tuple(prompt), max_new_tokens=len(continuation))
            forced = RequestSettings(donor_length=len(continuation), forced=tuple(continuation), **options)
            jobs.append(Job(number, request, forced))
        return [text.records for text in sorted(self.engine.run(jobs), key=lambda text: text.number)]


def _make_generation(request: Request, text: Text, policy: Policy, recorded: int) -> Generation:
    """A finished sample; `recorded` columns are observed. A fused engine's models read every token but the last."""
    begun, records = len(request.begun), text.records
    fused = len(text.tokens) - 1 - begun
    counted = text.passes if any(text.passes.values()) else dict.fromkeys(policy.roles, fused)
    observed = None
    if recorded:
        observed = array("f", np.ascontiguousarray(records[begun:, REST : REST + recorded]).tobytes())
    return Generation(
        tokens=text.tokens,
        taken_over=[bool(taken) for taken in records[:, TAKEN]],
        scores=records[:, SCORE].tolist(),
        base_passes=counted.get("base", 0),
        guide_passes=counted.get("guide", 0),
        observed=observed,
    )


def _refuse_nan(values: NDArray[np.float32], label: str) -> None:
    if bool(np.isnan(values).any()):
        raise ModelOutputError(f"a model returned NaN or infinite logits for {label}")
