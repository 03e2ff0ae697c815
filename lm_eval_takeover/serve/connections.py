"""What the server checks before it reads a request: the name in `Host`, and how long the headers take."""

from ipaddress import ip_address
from typing import Any

from starlette.types import Scope

_HEADERS_WITHIN = 30.0  # seconds


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


def limit_headers(seconds: float = _HEADERS_WITHIN) -> None:
    """Make uvicorn close a connection whose request has no end of its headers after so many seconds; it has no limit itself."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    made, received = (getattr(AutoHTTPProtocol, name) for name in ("connection_made", "data_received"))
    if getattr(made, "limit", None) is not None:
        made.limit[0] = seconds
        return
    limit = [seconds]

    def wait(self: Any) -> None:
        """Start the clock, once for each request that is awaited."""
        last = self.cycle  # the request before; None at first

        def close() -> None:
            if self.cycle is last and not self.transport.is_closing():
                self.transport.close()

        if getattr(self, "awaited_after", self) is not last:
            self.awaited_after = last
            self.loop.call_later(limit[0], close)

    def connection_made(self: Any, transport: Any) -> None:
        made(self, transport)
        wait(self)

    def data_received(self: Any, data: bytes) -> None:
        received(self, data)
        if self.cycle is None or self.cycle.response_complete:
            wait(self)

    connection_made.limit = limit  # type: ignore[attr-defined]
    AutoHTTPProtocol.connection_made, AutoHTTPProtocol.data_received = connection_made, data_received
