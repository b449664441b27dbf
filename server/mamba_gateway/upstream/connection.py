"""Upstream connection: one TCP connection to an engine, over which requests go one after the other.

Parses with httptools, of which it asks no more than the framing: the bytes of a body pass as they came. Made,
kept and given out by the upstream connector.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from mamba_gateway.upstream.deadlines import Deadlines
from mamba_gateway.upstream.response import ConnectionLost, UpstreamResponse

HEAD_BYTES = 64 * 1024
"""Most bytes of an answer's status line and headers."""
PIECE_BYTES = 64 * 1024
"""Of a large body that are written at once: other streams get their turn in between."""
TOO_LARGE = f"the engine's headers have more than {HEAD_BYTES} bytes"
NO_ANSWER = "what the engine sent is no answer"
_BODILESS = (204, 304)


class EngineUnreachable(Exception):
    """No connection: the engine saw nothing of the request."""


class _TooLarge(Exception):
    """Ends the parsing of an answer."""


class UpstreamConnection(asyncio.Protocol):
    """`idle`: how long an engine may say nothing. `free` is called with the connection when an answer is
    complete and another request may follow."""

    def __init__(self, idle: Deadlines, free: Callable[["UpstreamConnection"], None]) -> None:
        self._idle, self._free = idle, free
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._response: UpstreamResponse | None = None
        self._head_bytes = self._parsed_bytes = 0
        self._in_head = False
        self._complete = False
        self._until_close = False
        """The body ends where the connection does."""
        self._reusable = False
        """Another request may follow the one whose answer is complete."""
        self._unsent = False
        self._write_paused = False

    @property
    def usable(self) -> bool:
        """Another request may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def send(self, head: bytes, body: bytes) -> tuple[UpstreamResponse, bytes]:
        """Send a request; its answer with the first bytes of the body, empty if it has none.

        Raises ConnectionLost and IdleTimeout; cancelled it closes the connection.
        """
        transport = self._transport
        if transport is None:
            raise ConnectionLost("the engine closed the connection")
        response = self._response = UpstreamResponse(self, self._idle)
        self._parser = self._parser or httptools.HttpResponseParser(self)
        self._in_head, self._complete, self._until_close, self._head_bytes = True, False, False, 0
        self._parsed_bytes = 0
        self._reusable = False
        try:
            if len(body) <= PIECE_BYTES:
                transport.write(head + body)
            else:
                await self._send_in_pieces(transport, response, head, body)
            del body  # or this frame would hold it until the answer begins to come
            while (part := response.read_nowait()) is None:  # `read`, without a coroutine of its own
                await response.wait()
            return response, part
        except BaseException:
            response.close()
            raise

    async def _send_in_pieces(
        self, transport: asyncio.Transport, response: UpstreamResponse, head: bytes, body: bytes
    ) -> None:
        # Who answers before the body's end does not want the rest; then no other request can follow.
        self._unsent = True
        transport.write(head)
        view, sent = memoryview(body), 0
        while sent < len(body) and self._response is response and not response.status:
            transport.write(view[sent : sent + PIECE_BYTES])
            sent += PIECE_BYTES
            if self._write_paused:
                await response.wait()
            else:
                await asyncio.sleep(0)
        self._unsent = sent < len(body)

    def abort(self) -> None:
        """Close at once; the engine sees it as a cancellation."""
        self._response = None
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """The reader is slow."""
        if self.usable and self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """It has read what there was."""
        if self.usable and self._transport is not None:
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The engine is there."""
        self._transport = cast("asyncio.Transport", transport)  # that of uvloop is none by its class

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._transport = self._parser = None  # the parser refers to this protocol
        if self._until_close and exc is None:
            self._end()
        else:
            self._fail(f"the engine closed the connection{f': {exc}' if exc else ''}")

    def pause_writing(self) -> None:
        """The engine reads slower than we write."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """It has read most of that."""
        self._write_paused = False
        if self._response is not None:
            self._response.wake()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        response, parser = self._response, self._parser
        if response is None or parser is None:
            self.abort()  # nobody has asked
            return
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._reusable = False
            if not self._complete:
                self._fail(TOO_LARGE if isinstance(error.__context__, _TooLarge) else f"{NO_ANSWER}: {error}")
                return
        if self._complete:
            self._end()
        elif self._in_head and self._too_large(len(data)):
            self._fail(TOO_LARGE)
        else:
            response.read_done()

    def on_message_begin(self) -> None:
        """A status line, the first one or that after `100 Continue`."""
        if self._complete:
            self._reusable = False  # bytes behind the answer belong to no request
        elif self._response is not None:
            self._response.headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A whole header. Trailers come here, too, and are dropped."""
        if self._in_head and self._response is not None:
            self._response.headers.append((name.lower(), value))
            self._parsed_bytes += len(name) + len(value) + 4

    def on_headers_complete(self) -> None:
        """The head is whole."""
        response, parser = self._response, self._parser
        assert parser is not None
        status = parser.get_status_code()
        if response is None or self._complete or status < 200:
            return
        if self._parsed_bytes > HEAD_BYTES:
            raise _TooLarge
        self._in_head, response.status = False, status
        self._until_close = status not in _BODILESS
        for name, value in response.headers:
            if name == b"content-length" or (
                name == b"transfer-encoding" and value.lower().endswith(b"chunked")
            ):
                self._until_close = False

    def on_body(self, body: bytes) -> None:
        """Bytes of the body."""
        if self._response is not None and not self._complete:
            self._response.put(body)

    def on_message_complete(self) -> None:
        """The last byte of an answer, unless it was a provisional one."""
        if not (self._in_head or self._complete) and self._parser is not None:
            self._complete, self._reusable = True, self._parser.should_keep_alive()

    def _too_large(self, more: int) -> bool:
        # Of a header that never ends the parser tells nothing.
        self._head_bytes += more
        return self._head_bytes > HEAD_BYTES

    def _end(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.end()
        if self._transport is None:
            return
        if self._reusable and not self._unsent:
            self._transport.resume_reading()
            self._free(self)
        else:
            self._transport.abort()

    def _fail(self, reason: str) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.end(ConnectionLost(reason))
        if self._transport is not None:
            self._transport.abort()
