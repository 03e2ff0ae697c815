"""What vLLM's OpenAI-compatible server does beside its own for a guided pair: middleware on completions and chat completions.

A request becomes requests of one sample each, whose draws are ours (`client_request`). Answers gain a field `takeover`
(`served_engine`), streams are joined (`stream`), and `/` is a page to try it. The key is checked before a body is read. What
changes anything goes through two routes; vLLM's others would generate without a gate, or with settings that nobody has checked.
"""

import asyncio
import os
from typing import Any

from lm_eval_takeover.vllm.asgi import (
    App,
    Receive,
    Scope,
    Send,
    TooLong,
    answer,
    ask,
    read_body,
    refuse,
    send_whole,
    watch,
)  # fmt: skip
from lm_eval_takeover.vllm.client_page import render
from lm_eval_takeover.vllm.client_request import MOST_BYTES, OneSample, Repeats, parse_body, split_request
from lm_eval_takeover.vllm.metrics import count_request, count_sample
from lm_eval_takeover.vllm.served_engine import EngineEnded, ServedEngine, sum_up, sum_usages
from lm_eval_takeover.vllm.stream import Stream, hide_ids

_PATHS = ("/v1/completions", "/v1/chat/completions")
_HELPERS = ("/tokenize", "/detokenize")  # nothing is generated
_READING = ("GET", "HEAD", "OPTIONS")
_GONE = 499  # in the metrics: the client went


class TakeoverMiddleware:
    """ASGI middleware, which `vllm serve --middleware` takes by its path."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._repeats = Repeats()
        self._engine: ServedEngine | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "this server has no such route"})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["method"] in ("GET", "HEAD") and path == "/":
            await send_whole(send, 200, *render(self._open_engine(scope), keyed=bool(_list_keys(scope))))
        elif scope["method"] in _READING:
            await self.app(scope, receive, send)
        elif path not in (*_PATHS, *_HELPERS):
            await refuse(send, 404, f"this server generates at {' and '.join(_PATHS)} only")
        elif not _has_key(scope):
            await refuse(send, 401, "Unauthorized")
        elif path in _HELPERS:
            await self.app(scope, receive, send)
        else:
            status = 500
            try:
                status = await self._generate(scope, receive, send)
            finally:
                count_request(status)

    def _open_engine(self, scope: Scope) -> ServedEngine:
        """Of the app, which has one from its start to its end."""
        if self._engine is None:
            self._engine = ServedEngine(scope["app"].state.engine_client)
        return self._engine

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Answer a request. Returns the status."""
        try:
            data = await read_body(receive, MOST_BYTES)
        except TooLong:
            await refuse(send, 413, f"the body has more than {MOST_BYTES:,} bytes")
            return 413
        if data is None:
            return _GONE
        engine = self._open_engine(scope)
        try:
            asked = split_request(parse_body(data), engine.settings, self._repeats, engine.length)
        except ValueError as error:
            await refuse(send, 400, str(error))
            return 400
        gone = asyncio.Event()
        watcher = asyncio.create_task(watch(receive, gone))
        try:
            if asked[0].body.get("stream"):
                status = await Stream(engine, asked, send).run(self.app, scope, gone)
            else:
                status = await self._answer_all(engine, asked, scope, send, gone)
        except EngineEnded as error:
            status = 503
            await refuse(send, status, str(error))
        finally:
            watcher.cancel()
        return _GONE if gone.is_set() and status == 200 else status

    async def _answer_all(
        self, engine: ServedEngine, asked: list[OneSample], scope: Scope, send: Send, gone: asyncio.Event
    ) -> int:
        done = await asyncio.gather(*(self._answer_one(engine, one, scope, gone) for one in asked))
        if gone.is_set():
            return _GONE
        broken = next(((status, body) for status, body in done if status != 200), None)
        status, body = broken or (200, _merge([body for _, body in done]))
        await answer(send, status, body)
        return status

    async def _answer_one(
        self, engine: ServedEngine, one: OneSample, scope: Scope, gone: asyncio.Event
    ) -> tuple[int, dict[str, Any]]:
        """vLLM's status and answer to one sample, with its `takeover`: its records are fetched before others push them out."""
        status, body = await ask(self.app, scope, one.body, gone)
        if status == 200 and not gone.is_set():
            (choice,) = body["choices"]
            body["takeover"], passes = await engine.tell_whole(one, body["usage"], choice.get("token_ids"))
            count_sample(body["takeover"], passes)
            hide_ids(one, body)
        return status, body


def _has_key(scope: Scope) -> bool:
    """Whether a request has a key that the server was started with, by vLLM's own check; no key is asked for without one."""
    tokens = _list_keys(scope)
    if not tokens:
        return True
    from starlette.datastructures import Headers
    from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

    return bool(AuthenticationMiddleware(None, tokens=tokens).verify_token(Headers(scope=scope)))


def _list_keys(scope: Scope) -> list[str]:
    """The keys that the server was started with."""
    given = getattr(scope["app"].state, "args", None)
    keys = getattr(given, "api_key", None) or [os.environ.get("VLLM_API_KEY")]
    return [key for key in keys if key]


def _merge(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """One answer with the choices of all, in their order. Each says its takeovers; the answer those of its only one, or sums."""
    told = [one["takeover"] for one in answers]
    choices = [one["choices"][0] for one in answers]
    for index, choice in enumerate(choices):
        choice["index"], choice["takeover"] = index, told[index]
    sums = {"usage": sum_usages([one["usage"] for one in answers])}
    return answers[0] | sums | {"choices": choices, "takeover": told[0] if len(told) == 1 else sum_up(told)}
