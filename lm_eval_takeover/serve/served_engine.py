"""Engines behind a server: reads the records of a sample from the workers, and describes them in the answer.

An answer's `takeover` has `tokens`, `takeovers` and `realized_rate`. A traced one has besides `positions`, from 0, of the tokens
that the donor wrote; `host_tokens`, what the host drew at them; and `trace`, by token its `score`, `takeover` and `text`.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Counter

from lm_eval_takeover.decoding.gate_step import COLUMNS, REST, SCORE, TAKEN
from lm_eval_takeover.demo import DEMO, PROMPT, calibration_prompts
from lm_eval_takeover.method.generation import OBSERVED
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.pair.pieces import Pieces
from lm_eval_takeover.serve.client_request import OneSample
from lm_eval_takeover.vllm.settings import EngineSettings, build_policy

_HOST_TOKEN = REST + OBSERVED.index("host_token")
_WHOLE = 2**30  # more positions than any request has
_LOOKS_EVERY = 0.5  # seconds; a killed engine answers no call

# What vLLM's `/metrics` shows beside its own.
_COUNTERS = {
    name: Counter(f"takeover:{name}", meaning)
    for name, meaning in {
        "tokens": "Tokens written.",
        "takeovers": "Tokens that the donor wrote: takeovers.",
        "base_passes": "Forward passes of the base. With drafts, each drafts a token.",
        "guide_passes": "Forward passes of the guide. With drafts, each verifies several tokens.",
    }.items()
}
REQUESTS = Counter("takeover:requests", "Requests to generate, by status; 499: the client has gone.", ["status"])

Wish = tuple[str, int, int, bool]  # records of this request, from one position to another, and whether to forget them
Found = tuple[bytes, dict[str, int]] | None  # as `Slots.read` gives it


class EngineEnded(Exception):
    """An engine has ended. Its workers' records are lost."""


class RecordReader:
    """Batches reads of records. call: takes a list of wishes, returns what each worker has."""

    def __init__(self, call: Callable[[list[Any]], Awaitable[Sequence[Sequence[Found]]]]) -> None:
        self._call, self._lock = call, asyncio.Lock()
        self._waiting: list[Wish] = []  # for the next call
        self._answer: asyncio.Future[Any]  # of the call that is made for them

    async def read(self, wish: Wish) -> Found:
        """None where no worker knows the request."""
        wishes = self._waiting
        place = len(wishes)
        wishes.append(wish)
        async with self._lock:
            if wishes is self._waiting:  # the first of them asks for all
                self._waiting = []
                self._answer = asyncio.ensure_future(self._call(wishes))
            parts = await asyncio.shield(self._answer)  # a client that goes does not end the others' call
        return next((part[place] for part in parts if part[place] is not None), None)


class ServedEngine:
    """One engine, or with `data_parallel_size` several. `client` is vLLM's `AsyncLLM`."""

    def __init__(self, client: Any) -> None:
        self.settings = EngineSettings.of(client.model_config)
        self.length: int = client.model_config.max_model_len
        self._client = client
        self._records = RecordReader(self._ask_workers)

    async def _ask_workers(self, wishes: list[Any]) -> list[Sequence[Found]]:
        """What each worker of each engine knows. Raises EngineEnded."""
        # `collective_rpc` of the client gives what the first engine's workers returned.
        ask = self._client.engine_core.call_utility_all_async
        reply = asyncio.ensure_future(ask("collective_rpc", "read_takeover_records", None, (wishes,), None))
        while not reply.done() and not self._client.errored:
            await asyncio.wait([reply], timeout=_LOOKS_EVERY)
        if not reply.done() or (reply.exception() is not None and self._client.errored):
            reply.cancel()
            raise EngineEnded("an engine has ended, and this server ends with it; start it again")
        return [worker for engine in reply.result() for worker in engine]

    @cached_property
    def policy(self) -> Policy:
        return build_policy(self.settings.policy)

    @cached_property
    def _pieces(self) -> Pieces:
        return Pieces(self._client.tokenizer)

    @property
    def example(self) -> str:
        """A prompt to try the models with: of the bundled pair, one that it was trained on."""
        if Path(self._client.model_config.model) in DEMO.values():
            return calibration_prompts()[0]
        return PROMPT.format(problem="What is the sum of the first 20 odd numbers?")

    async def tell_part(self, sample: OneSample, start: int, count: int) -> dict[str, Any]:
        """`takeover` of a streamed chunk: its `count` tokens from position `start`."""
        records = None
        if count:
            records, _ = await self._read((sample.id, start, start + count, False))
        takeovers = {"positions": [], "host_tokens": []} if records is None else self._list_takeovers(records, start)
        return {"start": start, "tokens": count, **takeovers}

    async def tell_whole(self, sample: OneSample, usage: dict[str, Any], tokens: list[int] | None) -> dict[str, Any]:
        """`takeover` of a sample that is done; tokens: its ids, if known. Counts it and forgets its records."""
        count = int(usage.get("completion_tokens") or _WHOLE)
        records, passes = await self._read((sample.id, 0, count, True))
        if records is None and usage.get("completion_tokens"):
            raise RuntimeError(f"no worker has records of {sample.id}, a sample of {count} tokens")
        if records is None or not len(records):
            return sum_up([])
        if not any(passes.values()):  # a fused engine's models read every token but the last
            passes = dict.fromkeys(self.policy.roles, len(records) - 1)
        summary = sum_up([{"tokens": len(records), "takeovers": int(records[:, TAKEN].sum())}])
        counts = {"tokens": summary["tokens"], "takeovers": summary["takeovers"]}
        for name, number in (counts | {f"{role}_passes": count for role, count in passes.items()}).items():
            _COUNTERS[name].inc(number)
        if sample.traced:
            scores = [float(score) if math.isfinite(score) else None for score in records[:, SCORE]]
            trace: dict[str, Any] = {"score": scores, "takeover": [bool(taken) for taken in records[:, TAKEN]]}
            if tokens is not None:
                special = frozenset(self._client.tokenizer.all_special_ids)  # vLLM leaves them out of a text
                pieces = zip(tokens, self._pieces.split(tokens), strict=True)
                trace["text"] = ["" if token in special else piece for token, piece in pieces]
            summary |= self._list_takeovers(records, 0) | {"trace": trace}
        return summary

    async def _read(self, wish: Wish) -> tuple[NDArray[np.float32] | None, dict[str, int]]:
        data, passes = await self._records.read(wish) or (None, {})
        return None if data is None else np.frombuffer(data, np.float32).reshape(-1, COLUMNS), passes

    def _list_takeovers(self, records: NDArray[np.float32], start: int) -> dict[str, Any]:
        places = np.flatnonzero(records[:, TAKEN])
        ids = [None if math.isnan(number) else int(number) for number in records[places, _HOST_TOKEN].tolist()]
        named = [None if id_ is None else {"id": id_, "text": self._pieces.name(id_)} for id_ in ids]  # None: not asked
        return {"positions": (places + start).tolist(), "host_tokens": named}


def sum_up(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Tokens and takeovers of several samples."""
    tokens, takeovers = (sum(counts[name] for counts in parts) for name in ("tokens", "takeovers"))
    return {"tokens": tokens, "takeovers": takeovers, "realized_rate": takeovers / max(tokens, 1)}


def sum_usages(usages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """vLLM's `usage` of several samples."""
    totals = {name: sum(usage[name] for usage in usages) for name, value in usages[0].items() if isinstance(value, int)}
    return usages[0] | totals
