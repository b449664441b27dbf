"""An engine's answer on its way to the client: what its bytes say, and how an answer ends that broke off.

Used by the relay, which alone knows of engines and attempts.
"""

import asyncio

from starlette.types import Send

from mamba_edge.connection.direct_exchange import Begin
from mamba_edge.errors import ApiError
from mamba_gateway.admission.usage_meter import UsageMeter
from mamba_gateway.errors import CUT_SHORT, SILENT, UpstreamIdleTimeout, UpstreamLost
from mamba_gateway.headers import is_event_stream, to_client
from mamba_gateway.upstream.response import IdleTimeout, Pair, UpstreamResponse
from mamba_gateway.upstream.silence import SilenceWatch
from mamba_telemetry.request_trace import SpanNote

DONE = b"data: [DONE]\n\n"
MAX_BUFFERED = 1024 * 1024
"""Size in bytes from which a partial event is passed on as it is, so that memory stays bounded."""
ERROR_EVENT_SECONDS = 3.0
"""Longest time that an error event may wait for the client's socket."""
ERROR_EVENT = b'data: {"error":'
"""Beginning of the last event of a stream that failed; in an answer's text the quotes have backslashes."""
CLIENTS_MISTAKE = b'"invalid_request_error"'
"""Part of such an event where no engine could have answered the request."""


class ResponseTruncated(Exception):
    """The answer broke off and its framing has no room for an error: the connection has to be closed."""


class EventAligner:
    """Cuts a stream of server-sent events behind the last complete event.

    Events are neither parsed nor changed. Only an incomplete event at the end is buffered, so that an error
    event can follow at any time without corrupting a half-sent one.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._mid_event = False
        """Whether a part of an incomplete event has been passed on already."""

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes to pass on now; the rest waits for more."""
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
        """Return the buffered rest of a stream that ended normally."""
        rest, self._buffer = self._buffer, b""
        return rest

    def terminate(self, error: ApiError) -> bytes:
        """Return the bytes that end a broken stream as an engine would: the error event, then [DONE].

        A buffered partial event is dropped.
        """
        self._buffer = b""
        return (b"\n\n" if self._mid_event else b"") + error.event() + DONE


class EngineAnswer:
    """One answer of an engine that goes to the client, byte for byte.

    A stream of events is passed on event by event, so that an error can end it. Everything that can go out
    without a wait does, where the client's side has `begin` and `write`.
    """

    __slots__ = (
        "_aligner", "_begin", "_headers", "_meter", "_response", "_send", "_span", "_watch", "_write",
        "failed", "status",
    )  # fmt: skip

    def __init__(
        self,
        response: UpstreamResponse,
        send: Send,
        meter: UsageMeter | None,
        span: SpanNote,
        watch: SilenceWatch,
        added: tuple[Pair, ...],
    ) -> None:
        """Begin an answer; `added` are the gateway's own headers."""
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
        """Whether the answer says that it failed on the way; None = by a mistake of the client."""

    def send_whole(self, part: bytes) -> bool:
        """Send a whole answer that is no stream without a wait; False: nothing is sent."""
        if self._begin is None or self._aligner is not None or not self._response.complete:
            return False
        if not self._begin(self.status, self._headers, part, False):
            return False
        self.take(part)
        return True

    def begin_now(self, part: bytes, *, more: bool) -> bool:
        """Send status, headers and the first part without a wait; False = nothing is sent, use `begin`."""
        return self._begin is not None and self._begin(self.status, self._headers, part, more)

    async def begin(self) -> None:
        """Send status and headers."""
        start = {"type": "http.response.start", "status": self.status, "headers": self._headers}
        await self._send(start)

    def take(self, chunk: bytes) -> bytes:
        """Record what bytes of the engine say, and return the bytes that may go to the client now."""
        self._watch.record_activity()
        if self._meter is not None:
            self._meter.feed(chunk)
        if ERROR_EVENT in chunk:
            self._span.fail("error_event")
            self.failed = None if CLIENTS_MISTAKE in chunk else True
        return self._aligner.feed(chunk) if self._aligner else chunk

    def pass_on(self, chunk: bytes) -> bytes:
        """Send bytes of the engine without a wait; return those that need one."""
        part = self.take(chunk)
        return b"" if part and self._write is not None and self._write(part) else part

    def rest(self) -> bytes:
        """Return the end of a complete answer, as far as it was kept back for a whole event."""
        return self._aligner.flush() if self._aligner else b""

    async def break_off(self, error: ApiError) -> None:
        """End the answer with an error event. Raises `ResponseTruncated` where there is no room for one."""
        if self._aligner is None:
            raise ResponseTruncated from error
        event = self._aligner.terminate(error)
        try:
            async with asyncio.timeout(ERROR_EVENT_SECONDS):
                await self._send({"type": "http.response.body", "body": event, "more_body": False})
        except TimeoutError:
            # A client that has stopped reading does not get to keep the request.
            raise ResponseTruncated from error


def upstream_error(error: Exception) -> ApiError:
    """Return the error that a client gets whose answer ended with `error` of the upstream connection."""
    if isinstance(error, IdleTimeout):
        return UpstreamIdleTimeout(SILENT)
    return UpstreamLost(CUT_SHORT)


def _last_boundary(data: bytes) -> int:
    if data.endswith(b"\n\n"):  # as nearly every piece does
        return len(data)
    # A blank line ends an event; the line end may be LF, CR LF or CR (HTML standard, section 9.2.5).
    ends = (data.rfind(mark) + len(mark) for mark in (b"\n\n", b"\r\n\r\n", b"\r\r") if mark in data)
    return max(ends, default=0)
