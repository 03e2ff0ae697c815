"""What vLLM's OpenAI-compatible server does beside its own for a guided pair: middleware on completions and chat completions.

A request becomes requests of one sample each, whose draws are ours (`client_request`). Answers gain a field `takeover`: tokens,
takeovers, realized rate, and with `takeover_trace` scores and takeovers by token. The key is checked before a body is read. What
changes anything goes through two routes; vLLM's others would generate without a gate, or with settings that nobody has checked.
"""

import asyncio
import json
import math
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import numpy as np

from lm_eval_takeover.vllm.client_request import MOST_BYTES, OneSample, Repeats, parse_body, split_request
from lm_eval_takeover.vllm.emission import COLUMNS, SCORE, TAKEN
from lm_eval_takeover.vllm.settings import EngineSettings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_PATHS = ("/v1/completions", "/v1/chat/completions")
_HELPERS = ("/tokenize", "/detokenize")  # nothing is generated
_READING = ("GET", "HEAD", "OPTIONS")
_WHOLE = 2**30  # more positions than any request has


class TakeoverMiddleware:
    """ASGI middleware, which `vllm serve --middleware` takes by its path."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self.app = app
        self._repeats = Repeats()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "this server has no such route"})
            return
        if scope["type"] != "http" or scope["method"] in _READING:
            await self.app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path not in (*_PATHS, *_HELPERS):
            await _refuse(send, 404, f"this server generates at {' and '.join(_PATHS)} only")
        elif not _has_key(scope):
            await _refuse(send, 401, "Unauthorized")
        elif path in _HELPERS:
            await self.app(scope, receive, send)
        else:
            await self._generate(scope, receive, send)

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            data = await _read(receive)
        except TooLong:
            await _refuse(send, 413, f"the body has more than {MOST_BYTES:,} bytes")
            return
        if data is None:  # the client has gone
            return
        client = scope["app"].state.engine_client
        try:
            asked = split_request(parse_body(data), EngineSettings.of(client.model_config.hf_config), self._repeats)
        except ValueError as error:
            await _refuse(send, 400, str(error))
            return
        gone = asyncio.Event()
        watcher = asyncio.create_task(_watch(receive, gone))
        try:
            if asked[0].body.get("stream"):
                await self._stream(scope, send, client, asked[0], gone)
            else:
                await self._answer_all(scope, send, client, asked, gone)
        finally:
            watcher.cancel()

    async def _answer_all(
        self, scope: Scope, send: Send, client: Any, asked: list[OneSample], gone: asyncio.Event
    ) -> None:
        answers = await asyncio.gather(*(self._ask(scope, one.body, gone) for one in asked))
        if gone.is_set():
            return
        broken = next(((status, answer) for status, answer in answers if status != 200), None)
        if broken is not None:
            await _answer(send, *broken)
            return
        found = await _count(client, asked, [answer for _, answer in answers])
        await _answer(send, 200, _merge([answer for _, answer in answers], found))

    async def _ask(self, scope: Scope, body: dict[str, Any], gone: asyncio.Event) -> tuple[int, dict[str, Any]]:
        """The server's answer to a request of one sample: its status and its JSON."""
        parts: list[bytes] = []
        status = 500

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        await self.app(*_request(scope, body, gone), send)
        return status, json.loads(b"".join(parts) or b"{}")

    async def _stream(self, scope: Scope, send: Send, client: Any, one: OneSample, gone: asyncio.Event) -> None:
        """As the server streams it, with one more event before its last, which has `takeover`."""
        body = one.body
        options = body.get("stream_options")
        shows_usage = bool(isinstance(options, dict) and options.get("include_usage"))
        if options is None or isinstance(options, dict):  # all else is refused behind this
            body = body | {"stream_options": {**(options or {}), "include_usage": True}}
        usage: dict[str, Any] = {}
        streams = True

        async def forward(message: MutableMapping[str, Any]) -> None:
            nonlocal streams
            if message["type"] == "http.response.start":
                streams = message["status"] == 200
            if message["type"] != "http.response.body" or not streams:
                await send(message)
                return
            events = []
            for event in filter(None, message.get("body", b"").decode().split("\n\n")):
                data = event.removeprefix("data: ")
                if data == "[DONE]":
                    found = await _count(client, [one], [{"usage": usage}])
                    events.append("data: " + json.dumps({"object": "takeover", "choices": [], "takeover": found[0]}))
                elif data.startswith("{") and (chunk := json.loads(data)).get("usage") and not chunk.get("choices"):
                    usage.update(chunk["usage"])
                    if not shows_usage:
                        continue
                events.append(event)
            data = "".join(f"{event}\n\n" for event in events).encode()
            if data or not message.get("more_body"):
                await send({**message, "body": data})

        await self.app(*_request(scope, body, gone), forward)


class TooLong(Exception):
    """A body of more than MOST_BYTES."""


def _has_key(scope: Scope) -> bool:
    """Whether a request has a key that the server was started with, by vLLM's own check; no key is asked for without one."""
    given = getattr(scope["app"].state, "args", None)
    keys = getattr(given, "api_key", None) or [os.environ.get("VLLM_API_KEY")]
    tokens = [key for key in keys if key]
    if not tokens:
        return True
    from starlette.datastructures import Headers
    from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

    return bool(AuthenticationMiddleware(None, tokens=tokens).verify_token(Headers(scope=scope)))


def _request(scope: Scope, body: dict[str, Any], gone: asyncio.Event) -> tuple[Scope, Receive]:
    """The scope and the body of a request of our own."""
    data = json.dumps(body).encode()
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name.lower() not in (b"content-length", b"transfer-encoding")
    ]
    sent = False

    async def receive() -> MutableMapping[str, Any]:
        nonlocal sent
        if sent:
            await gone.wait()
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": data, "more_body": False}

    return {**scope, "headers": [*headers, (b"content-length", str(len(data)).encode())]}, receive


async def _watch(receive: Receive, gone: asyncio.Event) -> None:
    """Say so when the client goes: vLLM then ends what it was asked."""
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()


async def _read(receive: Receive) -> bytes | None:
    """The body; None where the client went before it was whole. Raises TooLong."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BYTES:
            raise TooLong
        if not message.get("more_body"):
            return b"".join(parts)


async def _refuse(send: Send, status: int, message: str) -> None:
    kind = "BadRequestError" if status == 400 else "Refused"
    await _answer(send, status, {"error": {"message": message, "type": kind, "code": status}})


async def _answer(send: Send, status: int, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})


async def _count(client: Any, asked: list[OneSample], answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`takeover` of each answer: what its records, which the workers hand over, say."""
    counts = {
        one.id: int((answer.get("usage") or {}).get("completion_tokens") or _WHOLE)
        for one, answer in zip(asked, answers, strict=True)
    }
    found: dict[str, Any] = {}
    for part in await client.collective_rpc("take_takeover_records", args=(counts,)):
        found |= {name: one for name, one in part.items() if one is not None}
    rows = (
        np.frombuffer(found[one.id][0], np.float32).reshape(-1, COLUMNS) if one.id in found else None for one in asked
    )
    return [_summarize(records, one.traced) for records, one in zip(rows, asked, strict=True)]


def _summarize(records: Any, traced: bool) -> dict[str, Any]:
    if records is None or not len(records):
        return {"tokens": 0, "takeovers": 0, "realized_rate": 0.0}
    takeovers = int(records[:, TAKEN].sum())
    found: dict[str, Any] = {"tokens": len(records), "takeovers": takeovers, "realized_rate": takeovers / len(records)}
    if traced:
        scores = [float(score) if math.isfinite(score) else None for score in records[:, SCORE]]
        found["trace"] = {"score": scores, "takeover": [bool(taken) for taken in records[:, TAKEN]]}
    return found


def _merge(answers: list[dict[str, Any]], found: list[dict[str, Any]]) -> dict[str, Any]:
    """One answer with the choices of all, in their order; each says its takeovers, the answer those of all."""
    merged = answers[0]
    choices = [choice for answer in answers for choice in answer["choices"]]
    for index, (choice, takeover) in enumerate(zip(choices, found, strict=True)):
        choice["index"], choice["takeover"] = index, takeover
    usages = [answer["usage"] for answer in answers]
    totals = {name: sum(one[name] for one in usages) for name, value in usages[0].items() if isinstance(value, int)}
    tokens, takeovers = (sum(one[name] for one in found) for name in ("tokens", "takeovers"))
    return merged | {
        "choices": choices,
        "usage": usages[0] | totals,
        "takeover": {"tokens": tokens, "takeovers": takeovers, "realized_rate": takeovers / max(tokens, 1)},
    }
