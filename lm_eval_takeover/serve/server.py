"""Middleware of vLLM's OpenAI-compatible server for a guided pair, on completions and chat completions.

A request is split into requests of one sample each, and the gate draws (`client_request`). Answers gain a field `takeover`, and
streams are joined (`answers`). `/` is a page to try it. The key is checked before a body is read. Only two routes generate:
vLLM's others would do it without a gate, or with unchecked settings. `connection` bounds what comes before a body.
"""

import asyncio
import os
import re
import sys
from contextlib import suppress
from html import escape
from ipaddress import ip_address
from pathlib import Path
from string import Template
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lm_eval_takeover import stopping
from lm_eval_takeover.escaping import make_page_policy
from lm_eval_takeover.method.policy import DIRECTIONS
from lm_eval_takeover.serve.answers import REQUESTS, EngineEnded, ServedEngine, Stream, answer, answer_all, refuse, watch, wrap
from lm_eval_takeover.serve.client_request import MOST_BYTES, OneSample, Repeats, check_fields, parse_body, split_request
from lm_eval_takeover.serve.connection import MOST_HEADERS, TOO_LONG, BoundedProtocol

_PATHS = ("/v1/completions", "/v1/chat/completions")
_HELPERS = ("/tokenize", "/detokenize")  # nothing is generated
_READING = ("GET", "HEAD", "OPTIONS")  # methods
_OPEN = ("/", "/health", "/metrics")  # read without a key
_BODY_WITHIN = 60.0  # seconds
_GONE = 499  # status in the metrics of a client that has disconnected
_FOLDER = Path(__file__).parent / "page"  # the page loads nothing, and talks to this server only
_TOKENS = 200  # the page's first setting


class TakeoverMiddleware:
    """ASGI middleware for `vllm serve --middleware`."""

    def __init__(self, app: ASGIApp) -> None:
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
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size + len(scope["path"]) + len(scope["query_string"]) > MOST_HEADERS:
            await refuse(431, TOO_LONG)(scope, receive, send)
        elif path != "/health" and not _list_keys(scope) and not _is_own_name(scope):
            text = "without --api-key this server answers to addresses and localhost only, not to the name in Host"
            await refuse(403, text)(scope, receive, send)
        elif scope["method"] in ("GET", "HEAD") and path == "/":
            page, headers = render(self._open_engine(scope), keyed=bool(_list_keys(scope)))
            await Response(page, headers=headers)(scope, receive, send)
        elif scope["method"] not in _READING and path not in (*_PATHS, *_HELPERS):
            await refuse(404, f"this server generates at {' and '.join(_PATHS)} only")(scope, receive, send)
        elif scope["method"] != "OPTIONS" and path not in _OPEN and not _has_key(scope):
            await refuse(401, "Unauthorized")(scope, receive, send)
        elif scope["method"] in _READING:
            await self.app(scope, receive, send)
        else:
            status = 500
            try:
                status = await self._answer(path, scope, receive, send)
            finally:
                REQUESTS.labels(str(status)).inc(path in _PATHS)

    def _open_engine(self, scope: Scope) -> ServedEngine:
        """The app's engine. An app has one engine."""
        if self._engine is None:
            self._engine = ServedEngine(scope["app"].state.engine_client)
        return self._engine

    async def _answer(self, path: str, scope: Scope, receive: Receive, send: Send) -> int:
        engine = self._open_engine(scope)
        try:
            most = 2**16 + 16 * engine.length if path in _HELPERS else MOST_BYTES  # vLLM's helpers read a text of any length
            data = await _read_body(Request(scope, receive), min(most, MOST_BYTES))
            if path in _HELPERS:
                await self.app(*wrap(scope, data, asyncio.Event()), send)
                return 200
            body = parse_body(data)
            check_fields(body, engine.read_class(body).model_fields)
            samples = split_request(body, engine.settings, self._repeats, engine.length)
            engine.check(samples[0].body)
        except ClientDisconnect:
            return _GONE
        except HTTPException as error:
            response = refuse(error.status_code, error.detail)
        except ValueError as error:
            response = refuse(400, str(error))
        else:
            return await self._write(engine, samples, scope, receive, send)
        await response(scope, receive, send)
        return int(response.status_code)

    async def _write(self, engine: ServedEngine, samples: list[OneSample], scope: Scope, receive: Receive, send: Send) -> int:
        """Answer with the samples. Returns the status."""
        gone = asyncio.Event()
        watcher = asyncio.create_task(watch(receive, gone))
        try:
            if samples[0].body.get("stream"):
                status = await Stream(engine, samples, send).run(self.app, scope, gone)
            else:
                status, body = await answer_all(self.app, engine, samples, scope, gone)
                if not gone.is_set():
                    await answer(status, body)(scope, receive, send)
        except EngineEnded as error:
            status = 503
            await refuse(status, str(error))(scope, receive, send)
        finally:
            watcher.cancel()
        return _GONE if gone.is_set() and status == 200 else status


def _is_own_name(scope: Scope) -> bool:
    """Whether `Host` is an address, localhost or the server's --host. A page can point any other name at this machine."""
    host = next((value.decode("latin-1") for key, value in scope["headers"] if key == b"host"), "localhost")
    name = parts[1].strip("[]") if (parts := re.fullmatch(r"(\[.*\]|[^:]*)(:\d*)?", host)) else ""
    arguments = getattr(scope["app"].state, "args", None)
    if name.lower() in ("localhost", getattr(arguments, "host", None)):
        return True
    with suppress(ValueError):
        return bool(ip_address(name))
    return False


async def _read_body(request: Request, most: int) -> bytes:
    """Raises HTTPException for more than `most` bytes or a body that does not arrive, or ClientDisconnect."""
    data, size = bytearray(), 0
    try:
        async with asyncio.timeout(_BODY_WITHIN):
            async for part in request.stream():
                size += len(part)
                if size <= most:
                    data += part
                elif size > MOST_BYTES:  # until then the rest is dropped: a client that still sends sees no answer
                    break
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {_BODY_WITHIN:g} seconds") from None
    if size > most:
        raise HTTPException(413, f"the body has more than {most:,} bytes")
    return bytes(data)


def _has_key(scope: Scope) -> bool:
    """Whether a request has one of the server's keys, by vLLM's own check. True if the server has none."""
    if not (tokens := _list_keys(scope)):
        return True
    from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

    return bool(AuthenticationMiddleware(None, tokens=tokens).verify_token(Headers(scope=scope)))


def _list_keys(scope: Scope) -> list[str]:
    """The keys that the server was started with."""
    arguments = getattr(scope["app"].state, "args", None)
    keys = getattr(arguments, "api_key", None) or [os.environ.get("VLLM_API_KEY")]
    return [key for key in keys if key]


def render(engine: ServedEngine, *, keyed: bool) -> tuple[bytes, dict[str, str]]:
    """The page and its headers. keyed: whether it asks for a key."""
    policy = engine.policy
    html, style, script = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js"))
    host, donor = DIRECTIONS[policy.direction]
    gate = policy.gate
    gated = f", tau={gate.tau:g}, kappa={gate.kappa:g}, window={gate.window}" if gate is not None else ""
    values = {
        "host": host,
        "donor": donor,
        "summary": f"policy={policy.name}{gated}, {engine.dtype}. Prompt and answer have up to {engine.length} tokens.",
        "length": engine.length,
        "tokens": min(_TOKENS, engine.length),
        "tau": f"{gate.tau:g}" if gate is not None else "",
        "gated": "" if gate is not None else "hidden",
        "keyed": "" if keyed else "hidden",
        "example": engine.example,
    }
    texts = {name: escape(str(value)) for name, value in values.items()}
    page = Template(html).substitute(texts, style=style, script=script)
    own = ("connect-src 'self'", "frame-ancestors 'none'")
    return page.encode(), {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": make_page_policy([script], style, *own),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
    }


async def _serve(arguments: Any) -> None:
    """vLLM's `run_server` with our connections, and without its handler of SIGTERM: what that raises may be lost."""
    from vllm.entrypoints.launchers.api_server import entry

    entry.decorate_logs("APIServer", skip_if_decorated=True)
    address, sock = entry.setup_server(arguments, reuse_port=False)
    await entry.run_server_worker(address, sock, arguments, http=BoundedProtocol)


def main() -> int:
    """`lm-eval-takeover serve`: vLLM's server with options of `vllm serve`. An error is one line. Returns the exit status."""
    stopping.end_with_children()  # until the server is up, which then ends by itself
    try:
        from vllm.entrypoints.launchers.api_server import entry

        entry.run_server = _serve
        entry.main()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except Exception as error:
        from lm_eval_takeover.vllm.launch import explain

        print(f"error: vLLM's server cannot go on: {explain(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
