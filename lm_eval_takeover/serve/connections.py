"""What the server checks before it reads a request: the name in `Host`, and how long the headers take."""

from ipaddress import ip_address
from typing import Any

from starlette.types import Scope

HEADERS_WITHIN = 30.0  # seconds


def is_own_name(scope: Scope) -> bool:
    """Whether `Host` is an address, localhost or the server's --host. A page can point any other name at this machine."""
    name = next((value.decode("latin-1") for key, value in scope["headers"] if key == b"host"), "localhost")
    name = name.rpartition("]")[0].lstrip("[") if name.startswith("[") else name.partition(":")[0]
    arguments = getattr(scope["app"].state, "args", None)
    if name.lower() in ("localhost", getattr(arguments, "host", None)):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def limit_headers() -> None:
    """Make uvicorn close a connection whose request has no end of its headers in time; it has no limit itself."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as Protocol

    if hasattr(Protocol, "awaits_after"):
        return
    made, received = Protocol.connection_made, Protocol.data_received
    Protocol.awaits_after = Protocol  # the request before the one that is awaited; none yet

    def wait(self: Any) -> None:
        last = self.cycle
        if self.awaits_after is not last:  # the clock of each request starts once
            self.awaits_after = last
            self.loop.call_later(HEADERS_WITHIN, lambda: self.transport.close() if self.cycle is last else None)

    def connection_made(self: Any, transport: Any) -> None:
        made(self, transport)
        wait(self)

    def data_received(self: Any, data: bytes) -> None:
        received(self, data)
        if self.cycle is None or self.cycle.response_complete:
            wait(self)

    Protocol.connection_made, Protocol.data_received = connection_made, data_received
