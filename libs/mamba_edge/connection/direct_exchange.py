"""A request and its answer at our own server, past the messages of ASGI: what is here already is taken at
once, and what goes together is written together.

Each method does all of what it is for, or nothing and says so: then `receive` and `send` do it. They see what
was done here, and go on from there.
"""

from collections.abc import Callable, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    RequestResponseCycle,
)

DIRECT = "mambaserve.direct"
"""Key under which our server's connection puts the `DirectExchange` into the scope, for the request
middleware and the applications around it. Below the middleware it is in the `RequestContext`."""
Begin = Callable[[int, Sequence[tuple[bytes, bytes]], bytes, bool], bool]
"""Status, headers, first part of the body, whether more follows; see `DirectExchange.begin`."""
_FRAMING = (b"connection", b"transfer-encoding")
_BODILESS = (204, 304)


class DirectExchange:
    """Of one request. `on_disconnect` takes what to call when the client leaves, None for nothing."""

    __slots__ = ("_cycle", "on_disconnect", "through_send")

    def __init__(
        self, cycle: RequestResponseCycle, on_disconnect: Callable[[Callable[[], None] | None], None]
    ) -> None:
        self._cycle = cycle
        self.on_disconnect = on_disconnect
        self.through_send = False
        """Somebody in between adds headers to what is sent: only `send` can begin an answer."""

    def body(self, most: float) -> bytes | None:
        """The whole body, if all of it has come and is at most so many bytes."""
        cycle = self._cycle
        if cycle.more_body or len(cycle.body) > most or cycle.waiting_for_100_continue:
            return None
        if cycle.disconnected or cycle.response_complete:
            return None
        whole, cycle.body = bytes(cycle.body), bytearray()
        cycle.message_event.clear()
        cycle.flow.resume_reading()
        return whole

    def begin(self, status: int, headers: Sequence[tuple[bytes, bytes]], part: bytes, more: bool) -> bool:
        """Write status, headers and the first part of the body; with `more` = False that is all of it.

        Header names are in lower case.
        """
        cycle = self._cycle
        if cycle.response_started or cycle.disconnected or self.through_send or cycle.flow.write_paused:
            return False
        pairs = [*cycle.default_headers, *headers]
        named = dict(pairs)
        if not named.keys().isdisjoint(_FRAMING):
            return False
        length: int | None = None
        if (told := named.get(b"content-length")) is not None:
            length = int(told) if told.isdigit() else -1
        if length is None:
            if status in _BODILESS or cycle.scope["http_version"] == "1.0":
                return False
        elif len(part) > length or (len(part) < length and not more):
            return False
        # `send` says what is wrong with one.
        if HEADER_RE.search(b"".join(named)) or HEADER_VALUE_RE.search(b"".join([v for _, v in pairs])):
            return False
        if cycle.scope["method"] == "HEAD":
            return False
        lines = [STATUS_LINE[status], *[b"%b: %b\r\n" % pair for pair in pairs]]
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        if length is None:
            lines.append(b"transfer-encoding: chunked\r\n\r\n")
            lines.append(b"%x\r\n%b\r\n" % (len(part), part) if part else b"")
            lines.append(b"" if more else b"0\r\n\r\n")
        else:
            lines += (b"\r\n", part)
        cycle.response_started, cycle.waiting_for_100_continue = True, False
        cycle.chunked_encoding = length is None
        cycle.expected_content_length = (length or 0) - (0 if length is None else len(part))
        cycle.transport.write(b"".join(lines))
        if not more:
            self._complete(cycle)
        return True

    def write(self, part: bytes) -> bool:
        """Write a further part of a body of unknown length."""
        cycle = self._cycle
        if not cycle.chunked_encoding or cycle.response_complete or cycle.disconnected:
            return False
        if cycle.flow.write_paused or not part:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        return True

    def _complete(self, cycle: RequestResponseCycle) -> None:
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()


class CloseDelimitedResponses:
    """Around the application for a client of HTTP/1.0, which knows no chunks: a body of unknown length ends
    where the connection does."""

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app, self._cycle = app, cycle
        self._unknown_length = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def unchunked(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._unknown_length = all(name != b"content-length" for name, _ in message["headers"])
                if self._unknown_length:
                    self._cycle.chunked_encoding = False
            elif self._unknown_length:
                self._cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, unchunked)
