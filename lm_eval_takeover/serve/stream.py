"""Requests of the server's own to vLLM's app, and their answers; streams of several samples as one.

vLLM writes a stream for each sample; its chunks are passed on as they come, with one id and the sample as `choices[0].index`.
Then come the usage, if it was asked for, an event with `takeover`, and `[DONE]`. A sample that vLLM refuses ends all of them, and
its refusal is the answer. When an engine ends, the stream ends with an event with `error`.
"""

import asyncio
import json
from functools import partial
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lm_eval_takeover.serve.client_request import OneSample
from lm_eval_takeover.serve.served_engine import EngineEnded, ServedEngine, sum_up, sum_usages


async def watch(receive: Receive, gone: asyncio.Event) -> None:
    """Set `gone` when the client disconnects. vLLM then ends its requests."""
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()


def make_request(scope: Scope, body: dict[str, Any], gone: asyncio.Event) -> tuple[Scope, Receive]:
    """The scope and the body of a request of our own, which ends when `gone` is set."""
    data = json.dumps(body).encode()
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

    await app(*make_request(scope, body, gone), send)
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
                    forward = partial(self._forward, index, gone)
                    group.create_task(app(*make_request(scope, sample.body, gone), forward))
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
