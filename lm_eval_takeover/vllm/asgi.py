"""What the server's middleware needs besides Starlette, which vLLM brings: requests of its own to vLLM's app, and its answers."""

import asyncio
import json
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope


async def watch(receive: Receive, gone: asyncio.Event) -> None:
    """Set `gone` when the client goes: vLLM then ends its requests."""
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
