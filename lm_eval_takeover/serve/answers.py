"""What the server answers: records of samples, which the engines' workers have, and streams of several samples as one.

An answer's `takeover` has `tokens`, `takeovers` and `realized_rate`. A traced one has besides `positions`, from 0, of the tokens
that the donor wrote; `host_tokens`, what the host drew at them; and `trace`, by token its `score`, `takeover` and `text`.

vLLM writes a stream for each sample; its chunks are passed on as they come, with one id and the sample as `choices[0].index`.
Then come the usage, if it was asked for, an event with `takeover`, and `[DONE]`. A sample that vLLM refuses ends all of them, and
its refusal is the answer. When an engine ends, the stream ends with an event with `error`.
"""

import asyncio
import json
import math
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Counter
from pydantic import ValidationError
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lm_eval_takeover.decoding.emission import COLUMNS, REST, SCORE, TAKEN
from lm_eval_takeover.demo import DEMO, PROMPT, calibration_prompts
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import OBSERVED
from lm_eval_takeover.pair.vocabulary import Pieces
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


class ServedEngine:
    """One engine, or with `data_parallel_size` several. `client` is vLLM's `AsyncLLM`."""

    def __init__(self, client: Any) -> None:
        self.settings = EngineSettings.of(client.model_config)
        self.length: int = client.model_config.max_model_len
        self.dtype = str(client.model_config.dtype).removeprefix("torch.")
        self._client = client
        self._lock = asyncio.Lock()
        self._waiting: list[Wish] = []  # for the next call of the workers
        self._answer: asyncio.Future[Any]  # of the call that is made for them

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

    def read_class(self, body: dict[str, Any]) -> Any:
        """vLLM's class of a request, whose fields are those that it reads."""
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        return ChatCompletionRequest if "messages" in body else CompletionRequest

    def check(self, body: dict[str, Any]) -> None:
        """Raises ValueError for options that vLLM itself refuses only when it generates, when a stream has begun."""
        from vllm.exceptions import VLLMClientError

        short = {"messages": [{"role": "user", "content": ""}]} if "messages" in body else {"prompt": [0]}
        try:
            asked = self.read_class(body).model_validate(body | short)
            self._client.input_processor._validate_params(asked.to_sampling_params(self.length, {}), ("generate",))
        except ValidationError:  # vLLM's route says what is wrong
            return
        except VLLMClientError as error:
            raise ValueError(str(error)) from error

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
        """Records and passes, if a worker knows the request. Wishes that come while the workers are asked go together."""
        wishes = self._waiting
        place = len(wishes)
        wishes.append(wish)
        async with self._lock:
            if wishes is self._waiting:  # the first of them asks for all
                self._waiting = []
                self._answer = asyncio.ensure_future(self._ask_workers(wishes))
            parts = await asyncio.shield(self._answer)  # a client that goes does not end the others' call
        data, passes = next((part[place] for part in parts if part[place] is not None), (None, {}))
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


async def watch(receive: Receive, gone: asyncio.Event) -> None:
    """Set `gone` when the client disconnects. vLLM then ends its requests."""
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()


def wrap(scope: Scope, body: dict[str, Any] | bytes, gone: asyncio.Event) -> tuple[Scope, Receive]:
    """The scope and the body of a request of our own, which ends when `gone` is set."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = MutableHeaders(raw=list(scope["headers"]))
    headers["content-length"] = str(len(data))
    del headers["transfer-encoding"]
    messages: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    return {**scope, "headers": headers.raw}, receive


async def ask(app: ASGIApp, scope: Scope, body: dict[str, Any], gone: asyncio.Event) -> tuple[int, dict[str, Any]]:
    """The app's whole answer to a body: its status and its JSON."""
    parts: list[bytes] = []
    status = 500

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    await app(*wrap(scope, body, gone), send)
    return status, json.loads(b"".join(parts) or b"{}")


def answer(status: int, body: dict[str, Any]) -> Response:
    return Response(json.dumps(body), status, media_type="application/json")


def refuse(status: int, message: str) -> Response:
    kind = "BadRequestError" if status == 400 else "Refused"
    return answer(status, {"error": {"message": message, "type": kind, "code": status}})


class Stream:
    """One client's stream of the samples `asked`."""

    def __init__(self, engine: ServedEngine, samples: list[OneSample], send: Send) -> None:
        self._engine, self._asked, self._send = engine, samples, send
        self._opened = asyncio.Event()
        self._unopened = len(samples)
        self._refused: int | None = None  # the sample
        self._status = 500
        self._id: str | None = None
        self._usage: dict[str, Any] = {}  # the last event with one
        self._rests = [b""] * len(samples)
        self._tokens: list[list[int]] = [[] for _ in samples]
        self._usages: list[dict[str, Any]] = [{} for _ in samples]
        self._told = [sum_up([]) for _ in samples]

    async def run(self, app: ASGIApp, scope: Scope, gone: asyncio.Event) -> int:
        """Until all is sent, or the client has gone. Returns the status."""
        try:
            async with asyncio.TaskGroup() as group:
                for index, sample in enumerate(self._asked):
                    group.create_task(app(*wrap(scope, sample.body, gone), partial(self._forward, index, gone)))
        except* EngineEnded as ended:  # its chunks were read, so the answer has begun
            self._status = 503
            error = {"message": str(ended.exceptions[0]), "type": EngineEnded.__name__, "code": self._status}
            await self._finish([json.dumps({"error": error})])
        else:
            if self._refused is None and not gone.is_set():
                await self._close()
        return self._status

    async def _forward(self, index: int, gone: asyncio.Event, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._open(index, gone, message)
            return
        await self._opened.wait()
        if self._refused == index:
            await self._send(message)
        elif self._refused is None and not gone.is_set():
            *events, self._rests[index] = (self._rests[index] + message.get("body", b"")).split(b"\n\n")
            shown = [chunk + b"\n\n" for event in events if (chunk := await self._translate(index, event)) is not None]
            if shown:
                await self._send({"type": "http.response.body", "body": b"".join(shown), "more_body": True})

    async def _open(self, index: int, gone: asyncio.Event, message: Message) -> None:
        """Begin the answer when every sample has begun, or one is refused."""
        self._unopened -= 1
        if self._refused is not None or (message["status"] == 200 and self._unopened):
            return
        self._status = message["status"]
        if self._status != 200:
            self._refused = index
            gone.set()
        await self._send(message)
        self._opened.set()

    async def _translate(self, index: int, event: bytes) -> bytes | None:
        """An event of one sample as the client gets it. None if the client gets none."""
        data = event.removeprefix(b"data: ")
        if data == b"[DONE]":
            ids, usage = self._tokens[index], self._usages[index]
            token_ids = ids if len(ids) == usage.get("completion_tokens") else None
            self._told[index] = await self._engine.tell_whole(self._asked[index], usage, token_ids)
            return None
        if not data.startswith(b"{"):  # a comment
            return event
        chunk = json.loads(data)
        choices = chunk.get("choices")
        if not choices:
            if not chunk.get("usage"):  # an error
                return event
            self._usages[index], self._usage = chunk["usage"], chunk
            return None
        self._id = self._id or chunk["id"]
        chunk["id"], choices[0]["index"] = self._id, index
        sample = self._asked[index]
        if sample.traced:
            ids = choices[0].get("token_ids") or []
            chunk["takeover"] = await self._engine.tell_part(sample, len(self._tokens[index]), len(ids))
            self._tokens[index] += ids
            hide_ids(sample, chunk)
        return b"data: " + json.dumps(chunk).encode()

    async def _close(self) -> None:
        events = []
        usages = [usage for usage in self._usages if usage]
        if self._asked[0].shows_usage and usages:
            events.append(json.dumps(self._usage | {"id": self._id, "usage": sum_usages(usages)}))
        takeover = self._told[0] if len(self._told) == 1 else sum_up(self._told) | {"choices": self._told}
        await self._finish([*events, json.dumps({"object": "takeover", "choices": [], "takeover": takeover})])

    async def _finish(self, events: list[str]) -> None:
        body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


def hide_ids(sample: OneSample, answer: dict[str, Any]) -> None:
    """Remove the token ids that the client did not ask for from an answer or a chunk."""
    if not sample.shows_ids:
        for part in (answer, *answer["choices"]):
            part.update({name: None for name in ("token_ids", "prompt_token_ids") if name in part})


async def answer_all(
    app: ASGIApp, engine: ServedEngine, samples: list[OneSample], scope: Scope, gone: asyncio.Event
) -> tuple[int, dict[str, Any]]:
    """Status and answer of all samples, or of the first one that vLLM refuses; empty if the client has gone.

    An answer has all choices, in order. Each choice has its takeovers; the answer has their sum.
    """

    async def answer_one(sample: OneSample) -> tuple[int, dict[str, Any]]:
        status, body = await ask(app, scope, sample.body, gone)
        if status == 200 and not gone.is_set():
            (choice,) = body["choices"]
            # Fetched at once, before newer records replace them.
            body["takeover"] = await engine.tell_whole(sample, body["usage"], choice.get("token_ids"))
            hide_ids(sample, body)
        return status, body

    done = await asyncio.gather(*map(answer_one, samples))
    if gone.is_set():
        return 200, {}
    if refused := next(((status, body) for status, body in done if status != 200), None):
        return refused
    answers = [body for _, body in done]
    parts, choices = [body["takeover"] for body in answers], [body["choices"][0] for body in answers]
    for index, choice in enumerate(choices):
        choice["index"], choice["takeover"] = index, parts[index]
    usage = sum_usages([body["usage"] for body in answers])
    return 200, answers[0] | {"usage": usage, "choices": choices, "takeover": parts[0] if len(parts) == 1 else sum_up(parts)}
