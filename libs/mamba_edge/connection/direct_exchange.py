"""Direct access to a request and its answer at Mambaserve's own HTTP server, bypassing the messages of ASGI.

Bytes that have arrived are read at once, and bytes that belong together are written together. Each method
either does its whole work or does nothing and returns None or False; then `receive` and `send` do it. Both
see the effect of these methods and continue from there. `CloseDelimitedResponses` writes answers to clients
of HTTP/1.0.
"""

from collections.abc import Callable, Mapping, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    RequestResponseCycle,
)

DIRECT = "mambaserve.direct"
"""Key of the scope under which our server's connection puts the `DirectExchange`, for the request middleware
and the applications around it. Below the middleware it is in the `RequestContext`."""
Begin = Callable[[int, Sequence[tuple[bytes, bytes]], bytes, bool], bool]
"""Function of status, headers, first part of the body, and whether more follows. Its result is whether it has
written them; see `DirectExchange.begin`."""
_BODILESS = (204, 304)


class DirectExchange:
    """Access to one request and its answer that bypasses the messages of ASGI.

    `on_disconnect(callback)` sets the one callback that is called when the client leaves; None removes it.
    """

    __slots__ = ("_cycle", "on_disconnect", "through_send")

    def __init__(
        self, cycle: RequestResponseCycle, on_disconnect: Callable[[Callable[[], None] | None], None]
    ) -> None:
        self._cycle = cycle
        self.on_disconnect = on_disconnect
        self.through_send = False
        """Whether an application in between adds headers to the answer, so that only `send` can begin an
        answer."""

    def body(self, most: float) -> bytes | None:
        """Return the whole body; None if it has to be read with `receive`.

        That is the case if the body has not arrived completely, has more than `most` bytes or belongs to a
        client that waits for `100 Continue`, and if the client has left or has its answer already.
        """
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
        """Write the status, the headers and the first part of the body: either all of them or nothing.

        Return whether they were written. If not, the caller has to send them through `send`. The names of the
        headers have to be in lower case. If `more` is False, the body is complete.
        """
        cycle = self._cycle
        if cycle.response_started or cycle.disconnected or self.through_send or cycle.flow.write_paused:
            return False
        pairs = [*cycle.default_headers, *headers]
        values = dict(pairs)
        declared = values.get(b"content-length")
        if not self._fits(status, declared, len(part), more) or not _are_plain(pairs, values):
            return False
        length = None if declared is None else int(declared)
        lines = [STATUS_LINE[status], *[b"%b: %b\r\n" % pair for pair in pairs]]
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        if length is None:
            lines.append(b"transfer-encoding: chunked\r\n\r\n")
            lines.append(b"%x\r\n%b\r\n" % (len(part), part) if part else b"")
            lines.append(b"" if more else b"0\r\n\r\n")
            cycle.expected_content_length = 0
        else:
            lines += (b"\r\n", part)
            cycle.expected_content_length = length - len(part)
        cycle.response_started, cycle.waiting_for_100_continue = True, False
        cycle.chunked_encoding = length is None
        cycle.transport.write(b"".join(lines))
        if not more:
            self._complete(cycle)
        return True

    def _fits(self, status: int, declared: bytes | None, size: int, more: bool) -> bool:
        """Return whether an answer with a body can begin with a part of `size` bytes.

        `declared` is the value of its Content-Length, None without one. The result is False for an answer
        that may not have a body, and for `declared` bytes that `size` and `more` contradict.
        """
        scope = self._cycle.scope
        if scope["method"] == "HEAD":
            return False
        if declared is None:
            return status not in _BODILESS and scope["http_version"] != "1.0"
        return declared.isdigit() and (size == int(declared) or (size < int(declared) and more))

    def write(self, part: bytes) -> bool:
        """Write a further part of a body of unknown length, and return whether it was written.

        If not, the caller has to send the part through `send`.
        """
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


def _are_plain(pairs: Sequence[tuple[bytes, bytes]], values: Mapping[bytes, bytes]) -> bool:
    """Return whether all headers are valid and none of them is Connection or Transfer-Encoding.

    Otherwise `send` writes the answer, and reports invalid headers.
    """
    if b"connection" in values or b"transfer-encoding" in values:
        return False
    return not (HEADER_RE.search(b"".join(values)) or HEADER_VALUE_RE.search(b"".join([v for _, v in pairs])))


class CloseDelimitedResponses:
    """The application for a client of HTTP/1.0, which cannot read a body in chunks.

    A body of unknown length ends where the connection ends.
    """

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
