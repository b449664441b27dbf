"""One answer on its way from an engine to the client.

`EngineAnswer` is the side of the engine: it passes bytes on, reads what they say, and ends an answer that
broke off. The relay drives it. `ClientResponse` is the side of the client, which the proxy endpoint creates.
If a streamed request waits for a long time, it sends SSE comments, so that no load balancer closes the
connection as idle. The first comment sends status and headers as well, so every later answer, or error, has
to be part of that stream. The relay sees only an ASGI `send`.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from starlette.types import Message, Send

from mamba_edge.connection.direct_exchange import Begin
from mamba_edge.error_forms import OPENAI, ErrorForm
from mamba_edge.errors import ApiError
from mamba_edge.exchange.asgi_responses import EVENT_STREAM, is_over_own_limit
from mamba_gateway.body_fields import CLIENTS_MISTAKE, UsageMeter, has_error_event
from mamba_gateway.errors import CUT_SHORT, SILENT, UpstreamIdleTimeout, UpstreamLost
from mamba_gateway.headers import is_event_stream, to_client
from mamba_gateway.shadow.answer_record import AnswerRecord
from mamba_gateway.upstream.connection import IdleTimeout, Pair, UpstreamResponse
from mamba_gateway.upstream.silence import SilenceWatch
from mamba_telemetry.request_trace import SpanNote

MAX_BUFFERED = 1024 * 1024
"""Size in bytes from which an incomplete event is passed on as it is, so that memory is bounded."""
ERROR_EVENT_SECONDS = 3.0
"""Longest time, in seconds, that an error event waits until the client's socket accepts it."""


class ResponseTruncated(Exception):
    """The answer broke off, and its framing has no room for an error, so the connection must be closed."""


class EventAligner:
    """Cuts a stream of server-sent events after its last complete event.

    Events are neither parsed nor changed. Only an incomplete event at the end is buffered, so that an error
    event can follow at any time without being mixed up with a part of another event.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._mid_event = False
        """Whether a part of an incomplete event was passed on already."""

    def feed(self, chunk: bytes) -> bytes:
        """Add the next bytes of the stream; return all up to the end of the last complete event."""
        data = self._buffer + chunk if self._buffer else chunk
        end = _last_boundary(data)
        if end == 0 and len(data) > MAX_BUFFERED:
            self._buffer, self._mid_event = b"", True
            return data
        if end:
            self._mid_event = False
        out, self._buffer = data[:end], data[end:]
        return out

    def flush(self) -> bytes:
        """Return the buffered bytes of a stream that has ended normally."""
        rest, self._buffer = self._buffer, b""
        return rest

    def terminate(self, error: ApiError, form: ErrorForm = OPENAI, request_id: str = "") -> bytes:
        """Return the bytes that end a broken stream with an error, as an engine would end it.

        A buffered incomplete event is dropped.
        """
        self._buffer = b""
        return (b"\n\n" if self._mid_event else b"") + form.event(error, request_id)


class EngineAnswer:
    """Answer of an engine that is passed on to the client unchanged.

    A stream is passed on event by event, so that an error event can end it. If the client's side has `begin`
    and `write`, everything that can be sent without waiting is sent by them.
    """

    __slots__ = (
        "_aligner", "_begin", "_form", "_headers", "_meter", "_record", "_request_id", "_response", "_send",
        "_span", "_watch", "_write", "failed", "status",
    )  # fmt: skip

    def __init__(
        self,
        response: UpstreamResponse,
        send: Send,
        meter: UsageMeter | None,
        span: SpanNote,
        watch: SilenceWatch,
        added: tuple[Pair, ...],
        form: ErrorForm = OPENAI,
        request_id: str = "",
        record: AnswerRecord | None = None,
    ) -> None:
        """Prepare to pass `response` on to the client through `send`. Nothing is sent yet.

        Args:
            response: the engine's answer, of which the status and the headers have arrived.
            send: ASGI callable that sends to the client.
            meter: reads the tokens used from an answer of status 200; None if nobody counts them.
            span: notes for the trace of this attempt.
            watch: detects that the engine is silent for too long.
            added: headers that the gateway adds to those of the engine.
            form: format of the error messages that the gateway writes.
            request_id: identifier of the request in these error messages.
            record: keeps the bytes, to be compared with another answer to the same request; None = no
                comparison.
        """
        self._record = record
        self._form, self._request_id = form, request_id
        self.status = response.status
        self._response, self._send, self._span, self._watch = response, send, span, watch
        self._meter = meter if response.status == 200 else None
        self._headers = to_client(response.headers)
        self._headers += added
        self._aligner: EventAligner | None = None
        if is_event_stream(response.headers):
            self._aligner = EventAligner()
            # A declared length would leave no room for an error event.
            self._headers = [pair for pair in self._headers if pair[0] != b"content-length"]
        self._begin: Begin | None = getattr(send, "begin", None)
        self._write = getattr(send, "write", None)
        self.failed: bool | None = False
        """Whether the answer itself reports a failure; None = it reports a mistake of the client."""

    @property
    def streamed(self) -> bool:
        """Whether the answer is a stream of events."""
        return self._aligner is not None

    def send_whole(self, part: bytes) -> bool:
        """Send a complete answer that is no stream without waiting; return whether that was possible."""
        if self._begin is None or self._aligner is not None or not self._response.complete:
            return False
        if not self._begin(self.status, self._headers, part, False):
            return False
        self.take(part)
        return True

    def begin_now(self, part: bytes, *, more: bool) -> bool:
        """Send status, headers and the first part without waiting; return whether that was possible.

        `more` says that further parts follow. If the result is False, nothing was sent: await `begin`, and
        then send the part.
        """
        return self._begin is not None and self._begin(self.status, self._headers, part, more)

    async def begin(self) -> None:
        """Send status and headers."""
        start = {"type": "http.response.start", "status": self.status, "headers": self._headers}
        await self._send(start)

    def take(self, chunk: bytes) -> bytes:
        """Read the next bytes of the engine's answer; return those that may be sent to the client now."""
        self._watch.record_activity()
        if self._meter is not None:
            self._meter.feed(chunk)
        if self._record is not None:
            self._record.feed(chunk)
        if has_error_event(chunk):
            self._span.fail("error_event")
            self.failed = None if CLIENTS_MISTAKE in chunk else True
        return self._aligner.feed(chunk) if self._aligner else chunk

    def pass_on(self, chunk: bytes) -> bytes:
        """Read bytes of the engine and send them without waiting; return those that could not be sent."""
        part = self.take(chunk)
        return b"" if part and self._write is not None and self._write(part) else part

    def rest(self) -> bytes:
        """Return the buffered end of a complete answer."""
        return self._aligner.flush() if self._aligner else b""

    async def break_off(self, error: ApiError) -> None:
        """End the answer with an error event. Raises `ResponseTruncated` if an event cannot be sent."""
        if self._aligner is None:
            raise ResponseTruncated from error
        event = self._aligner.terminate(error, self._form, self._request_id)
        try:
            async with asyncio.timeout(ERROR_EVENT_SECONDS):
                await self._send({"type": "http.response.body", "body": event, "more_body": False})
        except TimeoutError:
            # A client that has stopped reading does not get to keep the request.
            raise ResponseTruncated from error


def upstream_error(error: Exception) -> ApiError:
    """Return the error for a client whose answer ended with `error` of the connection to the engine."""
    if isinstance(error, IdleTimeout):
        return UpstreamIdleTimeout(SILENT)
    return UpstreamLost(CUT_SHORT)


def _last_boundary(data: bytes) -> int:
    if data.endswith(b"\n\n"):  # which is the case for nearly every part
        return len(data)
    # A blank line ends an event; the line end may be LF, CR LF or CR (HTML standard, section 9.2.5).
    ends = (data.rfind(mark) + len(mark) for mark in (b"\n\n", b"\r\n\r\n", b"\r\r") if mark in data)
    return max(ends, default=0)


COMMENT = b": waiting\n\n"
MAX_REFUSAL = 64 * 1024
"""Maximum size in bytes of an engine's error body that is turned into an event."""


class ClientResponse:
    """Sends the answer to one client; while the answer is not there, it may send comments.

    `write_now` and `begin_now` send without waiting, where the server can; None = only messages are sent.
    """

    __slots__ = (
        "_begin_now", "_form", "_one_sender", "_opened", "_refusal", "_request_id", "_send", "_write_now",
        "answering", "first_byte", "over_own_limit", "status",
    )  # fmt: skip

    def __init__(
        self,
        send: Send,
        write_now: Callable[[bytes], bool] | None = None,
        begin_now: Begin | None = None,
        form: ErrorForm = OPENAI,
        request_id: str = "",
    ) -> None:
        self._form, self._request_id = form, request_id
        self.status = 0
        """Status of the answer or the error that the client received; 0 before that, even if comments were
        sent."""
        self.first_byte: float | None = None
        """Time of the first byte of the answer in monotonic seconds; comments do not count."""
        self.over_own_limit = False
        """Whether an engine answered that the client exceeds a limit of its own."""
        self.answering = False
        """Whether the answer or an error event has begun, so that no comments may follow."""
        self._send, self._write_now, self._begin_now = send, write_now, begin_now
        self._opened = False
        """Whether a comment has sent status and headers."""
        self._refusal: bytearray | None = None
        """Body of an error answer that is turned into an event, because a comment has begun the stream."""
        self._one_sender: asyncio.Lock | None = None
        """Lock between comments and the answer; None = it was not needed so far."""

    async def __call__(self, message: Message) -> None:
        """Send one ASGI message of the answer."""
        if message["type"] == "http.response.start":
            self.answering = True
            self.status = message["status"]
            self.over_own_limit = is_over_own_limit(self.status, message["headers"])
            async with self._sender():  # a comment may be being sent at this moment
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
            await self._end(self._refusal_event(bytes(self._refusal)))

    def begin(self, status: int, headers: Sequence[tuple[bytes, bytes]], part: bytes, more: bool) -> bool:
        """Send the beginning of the answer, or all of it, without waiting.

        If the result is False, nothing was sent, and the answer has to be sent by ASGI messages.
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
        """Send a further part without waiting; if the result is False, send it by an ASGI message."""
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
        """Send a comment every `every` seconds in the block, until the answer begins."""
        comments: asyncio.Task[None] | None = None

        def begin() -> None:
            nonlocal comments
            comments = asyncio.create_task(self._comment(every))

        # A timer is cheaper than a task for each request, since hardly any request waits that long.
        timer = asyncio.get_running_loop().call_later(every, begin)
        try:
            yield
        finally:
            timer.cancel()
            if comments is not None:
                comments.cancel()

    async def fail(self, error: ApiError) -> bool:
        """Send an error as the last event of a stream that a comment has begun.

        The result is False if no comment has begun a stream, or if the answer itself has begun.
        """
        if not self._opened or (self.answering and self._refusal is None):
            return False
        self.answering = True
        self.status = error.status
        with contextlib.suppress(TimeoutError):
            # A client that has stopped reading does not get to keep the request.
            async with asyncio.timeout(ERROR_EVENT_SECONDS), self._sender():
                await self._end(self._form.event(error, self._request_id))
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

    def _refusal_event(self, body: bytes) -> bytes:
        """Return the engine's error as an event; if it is no valid error, one of the gateway's."""
        try:
            envelope = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            envelope = {}
        if not isinstance(envelope.get("error"), dict):
            error = UpstreamLost(f"the engine answered {self.status} in place of a stream")
            return self._form.event(error, self._request_id)
        return self._form.event_of(envelope)

    async def _end(self, event: bytes) -> None:
        await self._send({"type": "http.response.body", "body": event, "more_body": False})


def _is_plain_stream(start: Message) -> bool:
    return start["status"] == 200 and is_event_stream(start["headers"])
