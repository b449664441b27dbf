"""The sending side of one request: the bytes that the client has got so far, and comments while it waits.

A streamed request that waits long gets SSE comments, so that no balancer takes the silence for death. The
first comment sends status and headers; from then on every answer has to fit into that stream. Used by the
proxy endpoint; the relay sees a plain ASGI `send`.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from starlette.types import Message, Send

from mamba_edge.connection.direct_exchange import Begin
from mamba_edge.errors import ApiError
from mamba_edge.exchange.asgi_responses import EVENT_STREAM
from mamba_edge.exchange.engine_limit import is_over_own_limit
from mamba_gateway.errors import UpstreamLost
from mamba_gateway.headers import is_event_stream
from mamba_gateway.relay.engine_response import DONE, ERROR_EVENT_SECONDS

COMMENT = b": waiting\n\n"
MAX_REFUSAL = 64 * 1024
"""Largest part of an engine's error that becomes an event, in bytes."""


class ClientResponse:
    """One response to a client, which may begin with comments."""

    __slots__ = (
        "_begin_now", "_one_sender", "_opened", "_refusal", "_send", "_write_now", "answering", "first_byte",
        "over_own_limit", "status",
    )  # fmt: skip

    def __init__(
        self,
        send: Send,
        write_now: Callable[[bytes], bool] | None = None,
        begin_now: Begin | None = None,
    ) -> None:
        self.status = 0
        """Status of the answer or the error that the client got; 0 before either, comments or not."""
        self.first_byte: float | None = None
        """Time of the first byte of the answer, monotonic seconds; comments do not count."""
        self.over_own_limit = False
        """Whether an engine answered that the client exceeds a limit of its own while there is room."""
        self.answering = False
        """Whether the answer or an error event has begun, so that no comment follows."""
        self._send, self._write_now, self._begin_now = send, write_now, begin_now
        self._opened = False
        """Whether comments have sent status and headers."""
        self._refusal: bytearray | None = None
        """Body of an answer that does not fit into the stream that comments have opened."""
        self._one_sender: asyncio.Lock | None = None
        """Lock for senders of comments and answer; None = not needed so far."""

    async def __call__(self, message: Message) -> None:
        """Send one ASGI message of the answer."""
        if message["type"] == "http.response.start":
            self.answering = True
            self.status = message["status"]
            self.over_own_limit = is_over_own_limit(self.status, message["headers"])
            async with self._sender():  # a comment may be on its way
                if not self._opened:
                    await self._send(message)
                elif not _is_plain_stream(message):
                    self._refusal = bytearray()
            return
        body = message.get("body", b"")
        if body and self.first_byte is None:
            self.first_byte = time.monotonic()
        if self._refusal is None:
            await self._send(message)
            return
        self._refusal += body[: MAX_REFUSAL - len(self._refusal)]
        if not message.get("more_body", False):
            await self._end(_refusal_event(self.status, bytes(self._refusal)))

    def begin(self, status: int, headers: Sequence[tuple[bytes, bytes]], part: bytes, more: bool) -> bool:
        """Send the beginning of the answer, or all of it, without a wait.

        False: nothing is sent, and only messages can send it.
        """
        if self._begin_now is None or self._opened or (self._one_sender and self._one_sender.locked()):
            return False
        if not self._begin_now(status, headers, part, more):
            return False
        self.answering, self.status = True, status
        self.over_own_limit = status >= 400 and is_over_own_limit(status, headers)
        if part:
            self.first_byte = time.monotonic()
        return True

    def write(self, part: bytes) -> bool:
        """Send a further part of the answer without a wait; False: nothing is sent, only a message can."""
        # The first byte goes through the ASGI applications around this one, and so do parts for a slow
        # client.
        return (
            self._write_now is not None
            and self.first_byte is not None
            and self._refusal is None
            and self._write_now(part)
        )

    @contextlib.contextmanager
    def kept_alive(self, every: float) -> Iterator[None]:
        """Send a comment for each `every` seconds without an answer in the block."""
        comments: asyncio.Task[None] | None = None

        def begin() -> None:
            nonlocal comments
            comments = asyncio.create_task(self._comment(every))

        # A timer, since hardly any request waits that long: a task for each would cost more.
        timer = asyncio.get_running_loop().call_later(every, begin)
        try:
            yield
        finally:
            timer.cancel()
            if comments is not None:
                comments.cancel()

    async def fail(self, error: ApiError) -> bool:
        """Send an error as the last event of a stream that comments opened.

        False: no comment has opened a stream, or the answer itself has begun.
        """
        if not self._opened or (self.answering and self._refusal is None):
            return False
        self.answering = True
        self.status = error.status
        with contextlib.suppress(TimeoutError):
            # A client that has stopped reading does not get to keep the request.
            async with asyncio.timeout(ERROR_EVENT_SECONDS), self._sender():
                await self._end(error.event())
        return True

    async def _comment(self, every: float) -> None:
        while True:
            async with self._sender():
                if self.answering:
                    return
                if not self._opened:
                    start = {"type": "http.response.start", "status": 200, "headers": list(EVENT_STREAM)}
                    await self._send(start)
                    self._opened = True
                await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})
            await asyncio.sleep(every)

    def _sender(self) -> asyncio.Lock:
        if self._one_sender is None:
            self._one_sender = asyncio.Lock()
        return self._one_sender

    async def _end(self, event: bytes) -> None:
        await self._send({"type": "http.response.body", "body": event + DONE, "more_body": False})


def _is_plain_stream(start: Message) -> bool:
    return start["status"] == 200 and is_event_stream(start["headers"])


def _refusal_event(status: int, body: bytes) -> bytes:
    """Return the engine's own error envelope as an event, or one of the gateway's where there is none."""
    try:
        error = msgspec.json.decode(body, type=dict[str, Any]).get("error")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        error = None
    if not isinstance(error, dict):
        return UpstreamLost(f"the engine answered {status} in place of a stream").event()
    return b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"
