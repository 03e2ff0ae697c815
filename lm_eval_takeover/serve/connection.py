"""A client's connection: bounds for headers, paths and trailers, which uvicorn's own has not. They hold before the key does."""

from asyncio import Transport
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEADERS = 2**16  # bytes of a request's line and headers, or of its trailers
TOO_LONG = f"the path, headers or trailers have more than {MOST_HEADERS:,} bytes"
_HEADERS_WITHIN = 30.0  # seconds
_CLOSES_AFTER = 2.0  # seconds; a client that still sends sees no answer on a closed connection
_ANSWER = (
    f"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-type: text/plain\r\n"
    f"content-length: {len(TOO_LONG)}\r\n\r\n{TOO_LONG}"
)


class BoundedProtocol(HttpToolsProtocol):  # type: ignore[misc]
    """Answers 431 to headers that have no end within the bound, and closes a connection whose headers have none in time.

    Headers that arrive whole are `TakeoverMiddleware`'s to refuse.
    """

    url = b""
    _unread = 0  # bytes since the last headers or piece of a body
    _refused = False
    _awaits_after: Any = HttpToolsProtocol  # the request before the one that is awaited; none yet

    def connection_made(self, transport: Transport) -> None:
        super().connection_made(transport)
        self._limit_time()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MOST_HEADERS and not self.transport.is_closing():
            self._refuse()
        elif self.cycle is None or self.cycle.response_complete:
            self._limit_time()

    def on_headers_complete(self) -> None:
        self._unread = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        if len(self.url) < MOST_HEADERS:
            super().send_400_response(msg)
        else:  # longer than httptools reads
            self._refuse()

    def _refuse(self) -> None:
        self._refused = True
        under_way = self.cycle is not None and not self.cycle.response_complete
        if under_way:  # its trailers are too long
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not under_way or not self.cycle.response_started:
            self.transport.write(_ANSWER.encode())
        self.loop.call_later(_CLOSES_AFTER, self.transport.close)

    def _limit_time(self) -> None:
        last = self.cycle
        if self._awaits_after is not last:  # the clock of each request starts once
            self._awaits_after = last
            self.loop.call_later(_HEADERS_WITHIN, lambda: self.transport.close() if self.cycle is last else None)
