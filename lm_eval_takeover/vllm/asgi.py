"""The little of ASGI that the server's middleware needs: read a body, ask the app behind it, answer, see that a client goes."""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class TooLong(Exception):
    """A body of more bytes than are read."""


async def read_body(receive: Receive, most: int) -> bytes | None:
    """The body; None where the client went before it was whole. Raises TooLong."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise TooLong
        if not message.get("more_body"):
            return b"".join(parts)


async def watch(receive: Receive, gone: asyncio.Event) -> None:
    """Say so when the client goes: vLLM then ends what it was asked."""
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()


def make_request(scope: Scope, body: dict[str, Any], gone: asyncio.Event) -> tuple[Scope, Receive]:
    """The scope and the body of a request of our own, which ends when `gone` is set."""
    data = json.dumps(body).encode()
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name.lower() not in (b"content-length", b"transfer-encoding")
    ]
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            await gone.wait()
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": data, "more_body": False}

    return {**scope, "headers": [*headers, (b"content-length", str(len(data)).encode())]}, receive


async def ask(app: App, scope: Scope, body: dict[str, Any], gone: asyncio.Event) -> tuple[int, dict[str, Any]]:
    """The app's whole answer to a body: its status and its JSON."""
    parts: list[bytes] = []
    status = 500

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    await app(*make_request(scope, body, gone), send)
    return status, json.loads(b"".join(parts) or b"{}")


async def answer(send: Send, status: int, body: dict[str, Any]) -> None:
    await send_whole(send, status, json.dumps(body).encode(), {"content-type": "application/json"})


async def refuse(send: Send, status: int, message: str) -> None:
    kind = "BadRequestError" if status == 400 else "Refused"
    await answer(send, status, {"error": {"message": message, "type": kind, "code": status}})


async def send_whole(send: Send, status: int, data: bytes, headers: dict[str, str]) -> None:
    named = [(name.encode(), value.encode()) for name, value in headers.items()]
    length = (b"content-length", str(len(data)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*named, length]})
    await send({"type": "http.response.body", "body": data})
