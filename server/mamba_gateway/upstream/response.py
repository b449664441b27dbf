"""`UpstreamResponse`: the response to one request, filled by its connection and read by the relay."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from mamba_gateway.upstream.deadlines import Deadlines

BUFFERED_BYTES = 128 * 1024
"""Size of a body's buffer; above it reading from the socket is paused."""
Pair = tuple[bytes, bytes]


class ConnectionLost(Exception):
    """The engine closed the connection before its answer was complete."""


class IdleTimeout(Exception):
    """The engine sent nothing for longer than the idle limit."""


class BodySource(Protocol):
    """The connection of an answer, as far as the answer needs it."""

    def pause_reading(self) -> None:
        """Stop reading from the socket."""

    def resume_reading(self) -> None:
        """Read from the socket again."""

    def abort(self) -> None:
        """Close the connection at once."""


class UpstreamResponse:
    """The answer to one request, as it arrives."""

    __slots__ = (
        "_connection", "_consumer", "_error", "_forwardable", "_idle", "_limited", "_loop", "_parts", "_size",
        "_timer", "_waiter", "_waiting_since", "headers", "status",
    )  # fmt: skip

    def __init__(self, connection: BodySource, idle: Deadlines) -> None:
        """`idle`: how long the engine may send nothing."""
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
        """Bytes that the consumer could not pass on itself."""
        self._waiter: asyncio.Future[None] | None = None
        self._waiting_since = 0.0
        self._limited = False
        """Whether an idle timeout of the engine is running already."""
        self._timer: asyncio.TimerHandle | None = None
        """Timer for the rest of the idle timeout, where bytes have come since it began."""

    @property
    def complete(self) -> bool:
        """Whether the whole answer has arrived and was read."""
        return self._connection is None and self._error is None and not self._parts

    async def read(self) -> bytes:
        """Wait for bytes and return them, at least one; empty at the end.

        Raises ConnectionLost and IdleTimeout, behind the bytes that came before.
        """
        while (part := self.read_nowait()) is None:
            await self.wait()
        return part

    def read_nowait(self) -> bytes | None:
        """Return the bytes that `read` would, without waiting; None = nothing has arrived, `wait` first.

        Raises as `read` does.
        """
        if self._parts:
            return self._drain()
        if self._error is not None:
            raise self._error
        return b"" if self._connection is None else None

    async def consume(self, consumer: Callable[[bytes], bytes]) -> bytes:
        """Call `consumer` with bytes as they arrive, until it returns bytes that it could not pass on itself.

        Returns those bytes, at least one; empty at the end of the body. Bytes that arrive until the next call
        are buffered. Raises what `read` and `consumer` raise.
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
        """Return a future that completes with the next bytes, the end of the body, or room to write.

        There may be one reader at a time.
        """
        self._waiter = self._loop.create_future()
        if self._limited:
            self._waiting_since = self._loop.time()
        else:
            self._limited = True
            self._waiting_since = self._idle.begin(self)
        return self._waiter

    def close(self) -> None:
        """Drop the rest of the answer; an incomplete one takes its connection with it."""
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
        """Consume or announce the bytes of one read of the socket, which were `put` before."""
        waits = self._waiter is not None and not self._waiter.done()
        if self._consumer is None or not waits or not self._parts:
            self.wake()
            return
        # Consumed here without waking the reader: a turn of the loop for each token costs a sixth more.
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
        """Wake the reader that waits."""
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
