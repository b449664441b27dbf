"""`UpstreamConnection`: one TCP connection to an engine, which carries one request after the other.

httptools parses only the framing; the bytes of a body are passed on unchanged. For each request the
connection fills an `UpstreamResponse`, which the relay reads. The connector opens the connections, keeps
them, and assigns them.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from mamba_gateway.upstream.deadlines import Deadlines

BUFFERED_BYTES = 128 * 1024
"""Size of a body's buffer in bytes. When the buffer is fuller, reading from the socket is paused."""
Pair = tuple[bytes, bytes]


class ConnectionLost(Exception):
    """The engine closed the connection before its answer was complete."""


class IdleTimeout(Exception):
    """The engine sent nothing for longer than the idle limit."""


class BodySource(Protocol):
    """The connection from which an `UpstreamResponse` reads its body."""

    def pause_reading(self) -> None:
        """Stop reading from the socket."""

    def resume_reading(self) -> None:
        """Continue to read from the socket."""

    def abort(self) -> None:
        """Close the connection at once."""


class UpstreamResponse:
    """An engine's answer to one request, whose body is read as it arrives."""

    __slots__ = (
        "_connection", "_consumer", "_error", "_forwardable", "_idle", "_limited", "_loop", "_parts", "_size",
        "_timer", "_waiter", "_waiting_since", "headers", "status",
    )  # fmt: skip

    def __init__(self, connection: BodySource, idle: Deadlines) -> None:
        """Create an empty answer. `idle` limits how long the engine may send nothing."""
        self.status = 0
        """HTTP status; 0 until the headers are complete."""
        self.headers: list[Pair] = []
        """Headers with names in lower case."""
        self._connection: BodySource | None = connection
        self._idle, self._loop = idle, idle.loop
        self._parts: list[bytes] = []
        self._size = 0
        self._error: Exception | None = None
        self._consumer: Callable[[bytes], bytes] | None = None
        self._forwardable = b""
        """Bytes that the consumer could not send to the client without waiting."""
        self._waiter: asyncio.Future[None] | None = None
        self._waiting_since = 0.0
        self._limited = False
        """Whether the idle limit of the engine is running."""
        self._timer: asyncio.TimerHandle | None = None
        """Timer for the rest of the idle limit, if bytes have arrived since the limit began."""

    @property
    def complete(self) -> bool:
        """Whether the complete answer has arrived and was read."""
        return self._connection is None and self._error is None and not self._parts

    async def read(self) -> bytes:
        """Wait for at least one byte and return the bytes that have arrived; b"" at the end of the body.

        Raises ConnectionLost and IdleTimeout, after the bytes that arrived before have been returned.
        """
        while (part := self.read_nowait()) is None:
            await self.wait()
        return part

    def read_nowait(self) -> bytes | None:
        """Return the bytes that `read` would return, without waiting; None = none have arrived.

        Raises the errors of `read`. After None, use `wait`.
        """
        if self._parts:
            return self._drain()
        if self._error is not None:
            raise self._error
        return b"" if self._connection is None else None

    async def consume(self, consumer: Callable[[bytes], bytes]) -> bytes:
        """Call `consumer` with bytes as they arrive, until it returns bytes that it could not send itself.

        Return those bytes; b"" at the end of the body. Bytes that arrive before the next call are buffered.
        Raises the errors of `read` and of `consumer`.
        """
        self._consumer = consumer
        try:
            while not self._forwardable:
                if self._parts:
                    self._forwardable = consumer(self._drain())
                elif self._error is not None:
                    raise self._error
                elif self._connection is None:
                    return b""
                else:
                    await self.wait()
            left, self._forwardable = self._forwardable, b""
            return left
        finally:
            self._consumer = None

    def wait(self) -> asyncio.Future[None]:
        """Return a future that is completed by the next bytes, the end of the body, or room to write.

        There may be only one reader at a time.
        """
        self._waiter = self._loop.create_future()
        if self._limited:
            self._waiting_since = self._loop.time()
        else:
            self._limited = True
            self._waiting_since = self._idle.begin(self)
        return self._waiter

    def close(self) -> None:
        """Discard the rest of the answer. If the answer is incomplete, its connection is closed."""
        if self._connection is not None:
            self._connection.abort()
            self.end()

    def put(self, part: bytes) -> None:
        """Buffer bytes of the body."""
        self._parts.append(part)
        before, self._size = self._size, self._size + len(part)
        if before <= BUFFERED_BYTES < self._size and self._connection is not None:
            self._connection.pause_reading()

    def read_done(self) -> None:
        """Pass on, or announce, the bytes of one read of the socket, which `put` has buffered."""
        waits = self._waiter is not None and not self._waiter.done()
        if self._consumer is None or not waits or not self._parts:
            self.wake()
            return
        # The bytes are passed on here, without waking the reader, which would cost a sixth more per token.
        self._waiting_since = self._loop.time()
        try:
            self._forwardable = self._consumer(self._drain())
        except Exception as error:
            if self._connection is not None:
                self._connection.abort()
            self.end(error)
        if self._forwardable:
            self.wake()

    def end(self, error: Exception | None = None) -> None:
        """End the answer, which is complete or has broken off with `error`."""
        self._connection, self._error = None, error
        if self._limited:
            self._idle.end(self)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        self.wake()

    def wake(self) -> None:
        """Wake the waiting reader."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _drain(self) -> bytes:
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        if self._size > BUFFERED_BYTES and self._connection is not None:
            self._connection.resume_reading()
        self._size = 0
        return data

    def expire(self) -> None:
        """End the answer if the engine has sent nothing for too long."""
        # Only the time in which a reader waits for the engine counts, not that in which a client reads
        # slowly.
        since = self._waiting_since if self._waiter is not None else self._loop.time()
        left = since + self._idle.seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self.expire)
        elif self._connection is not None:
            self._connection.abort()
            self.end(IdleTimeout(f"the engine sent nothing for {self._idle.seconds:g} s"))


HEAD_BYTES = 64 * 1024
"""Maximum size of an answer's status line and headers in bytes."""
PIECE_BYTES = 64 * 1024
"""Size in bytes of the parts in which a large body is written, so that other streams are served in
between."""
TOO_LARGE = f"the engine's headers have more than {HEAD_BYTES} bytes"
NOT_HTTP = "the engine's answer is not valid HTTP"
_BODILESS = (204, 304)


class EngineUnreachable(Exception):
    """No connection could be opened, so the engine has received nothing of the request."""


class _TooLarge(Exception):
    """Raised within the parser to stop it, because the headers of an answer are too large."""


class UpstreamConnection(asyncio.Protocol):
    """A connection to an engine, which sends one request at a time and reads its answer."""

    def __init__(self, idle: Deadlines, free: Callable[["UpstreamConnection"], None]) -> None:
        """Create a connection that is not open yet. `idle` limits how long the engine may send nothing.

        `free` is called with the connection when an answer is complete and another request may follow.
        """
        self._idle, self._free = idle, free
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._response: UpstreamResponse | None = None
        self._head_bytes = self._parsed_bytes = 0
        self._in_head = False
        self._complete = False
        self._until_close = False
        """Whether the end of the connection marks the end of the body."""
        self._reusable = False
        """Whether another request may follow when the answer is complete."""
        self._unsent = False
        self._write_paused = False

    @property
    def usable(self) -> bool:
        """Whether the connection is open."""
        return self._transport is not None and not self._transport.is_closing()

    async def send(self, head: bytes, body: bytes) -> tuple[UpstreamResponse, bytes]:
        """Send a request; return its answer and the first bytes of the body, empty if there is no body.

        Raises ConnectionLost and IdleTimeout. A cancellation closes the connection.
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
        # An engine that answers before the body's end does not want the rest; then no other request can
        # follow.
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
        """Close the connection at once; the engine sees it as a cancellation."""
        self._response = None
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Stop reading from the socket, because the reader is slow."""
        if self.usable and self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue to read from the socket, because the reader has caught up."""
        if self.usable and self._transport is not None:
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport of the new connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer, complete if the end of the connection marks its end, or else as lost."""
        self._transport = self._parser = None  # breaks the reference cycle of parser and connection
        if self._until_close and exc is None:
            self._end()
        else:
            self._fail(f"the engine closed the connection{f': {exc}' if exc else ''}")

    def pause_writing(self) -> None:
        """Stop writing the body, because the engine reads slowly."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """Continue to write the body, because the engine has caught up."""
        self._write_paused = False
        if self._response is not None:
            self._response.wake()

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the engine, and wake the reader of the answer."""
        response, parser = self._response, self._parser
        if response is None or parser is None:
            self.abort()  # no request is under way
            return
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._reusable = False
            if not self._complete:
                self._fail(TOO_LARGE if isinstance(error.__context__, _TooLarge) else f"{NOT_HTTP}: {error}")
                return
        if self._complete:
            self._end()
        elif self._in_head and self._too_large(len(data)):
            self._fail(TOO_LARGE)
        else:
            response.read_done()

    def on_message_begin(self) -> None:
        """Begin the headers at a status line, the first one or that after `100 Continue`."""
        if self._complete:
            self._reusable = False  # bytes after the end of an answer belong to no request
        elif self._response is not None:
            self._response.headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Trailers are passed here too, and ignored."""
        if self._in_head and self._response is not None:
            self._response.headers.append((name.lower(), value))
            self._parsed_bytes += len(name) + len(value) + 4

    def on_headers_complete(self) -> None:
        """Store the status, and determine how the end of the body is marked."""
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
        """Add bytes of the body to the answer."""
        if self._response is not None and not self._complete:
            self._response.put(body)

    def on_message_complete(self) -> None:
        """Record the end of an answer, unless its status was provisional (1xx)."""
        if not (self._in_head or self._complete) and self._parser is not None:
            self._complete, self._reusable = True, self._parser.should_keep_alive()

    def _too_large(self, more: int) -> bool:
        # The parser does not limit the size of headers.
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
