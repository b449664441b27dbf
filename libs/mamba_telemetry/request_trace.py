"""`RequestTrace`: the spans of one request in one process, recorded as notes and exported only if kept.

A note has a few fields and costs a tenth of an SDK span, so every request can be recorded, and the slow and
the failed ones exported (tail sampling). `Tracing` begins and ends traces. Times are `time.monotonic()`
seconds, including those from the engine.
"""

import random
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal

from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, SpanKind, format_span_id, format_trace_id

MOST_SPANS = 128
"""Maximum number of spans of one request in one process; further ones are only counted."""
Value = str | bool | int | float | Sequence[str] | Sequence[int]
KeepReason = Literal["sampled", "failed", "slow", ""]


class SpanNote:
    """Record of one span, from which the span is created. `end` is 0 until the span has ended."""

    __slots__ = (
        "attributes",
        "begin",
        "end",
        "error",
        "events",
        "kind",
        "links",
        "name",
        "parent_id",
        "span_id",
    )

    def __init__(self, name: str, parent_id: int, begin: float, kind: SpanKind = SpanKind.INTERNAL) -> None:
        self.name = name
        self.span_id = random.getrandbits(64) or 1
        self.parent_id = parent_id
        """Id of the parent span; 0 = none."""
        self.begin = begin
        self.end = 0.0
        self.kind = kind
        self.error = ""
        """Error code, such as upstream_died; never a message, which may quote a client."""
        self.attributes: dict[str, Value] = {}
        self.events: list[tuple[str, float, int]] = []
        """Events as (name, time, sequence)."""
        self.links: Sequence[str] = ()
        """`traceparent` of other requests that shared a step with this span."""

    def set(self, name: str, value: Value | None) -> None:
        """Set an attribute; None leaves it unset."""
        if value is not None:
            self.attributes[name] = value

    def event(self, name: str, at: float, sequence: int = 0) -> None:
        """Record the event `name` at the time `at`, of the sequence with this number."""
        self.events.append((name, at, sequence))

    def fail(self, code: str) -> None:
        """Mark the span as failed with `code`; if it has failed before, that code stays."""
        self.error = self.error or code

    def finish(self, at: float) -> None:
        """End the span at the time `at`; if it has ended before, that end stays."""
        self.end = self.end or at


class _NullNote(SpanNote):
    """A note that records nothing, for requests that are not traced."""

    __slots__ = ()

    def set(self, name: str, value: Value | None) -> None:
        pass

    def event(self, name: str, at: float, sequence: int = 0) -> None:
        pass

    def fail(self, code: str) -> None:
        pass

    def finish(self, at: float) -> None:
        pass


_NULL_NOTE = _NullNote("", 0, 0.0)


class RequestTrace:
    """Trace of one request in this process. With `recording` off it only passes on the caller's trace.

    `slow_after` is the number of seconds to the first byte from which the trace is kept, sampled or not; 0 =
    a slow request is not kept for being slow.
    """

    __slots__ = (
        "_clock", "answered_at", "caller", "epoch", "left_out", "notes", "recording", "root", "sampled",
        "slow_after", "trace_id",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        caller: SpanContext = INVALID_SPAN_CONTEXT,
        *,
        recording: bool = False,
        sampled: bool = False,
        slow_after: float = 0.0,
        begin: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.caller = caller
        """Span of the caller, to which the request's own span belongs; invalid = the request starts a
        trace."""
        self.recording = recording
        self.sampled = sampled
        self.slow_after = slow_after
        self.trace_id = caller.trace_id or (random.getrandbits(128) or 1 if recording else 0)
        self.answered_at: float | None = None
        """Time at which the first byte of the answer left."""
        self.left_out = 0
        self._clock = clock
        self.epoch = 0.0
        """Offset that turns a time into seconds since 1970."""
        self.root: SpanNote = _NULL_NOTE
        self.notes: list[SpanNote] = []
        if recording:
            self.epoch = time.time() - time.monotonic()
            self.root = SpanNote(name, caller.span_id, begin or clock(), SpanKind.SERVER)
            self.notes.append(self.root)

    def begin(
        self,
        name: str,
        parent: SpanNote | None = None,
        *,
        at: float = 0.0,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> SpanNote:
        """Begin a span below `parent`; None = below the request's own span.

        `at` is its beginning in seconds, by the clock of the trace; 0 = now.
        """
        if not self.recording:
            return _NULL_NOTE
        if len(self.notes) >= MOST_SPANS:
            self.left_out += 1
            return _NULL_NOTE
        if parent is None or parent is _NULL_NOTE:
            parent = self.root
        note = SpanNote(name, parent.span_id, at or self._clock(), kind)
        self.notes.append(note)
        return note

    def end(self, note: SpanNote) -> None:
        """End a span now."""
        if self.recording:
            note.finish(self._clock())

    def span(self, name: str) -> "_SpanBlock":
        """Return a block with a span; an exception fails the span, unless the client caused it."""
        return _SpanBlock(self, self.begin(name)) if self.recording else _NULL_BLOCK

    @property
    def failed(self) -> bool:
        """Whether any span of the request failed."""
        return any(note.error for note in self.notes)

    def keep_reason(self, now: float) -> KeepReason:
        """Return why the spans are exported: sampled, failed or slow; "" = they are not.

        `now` is the time in seconds, by the clock of the trace. A request without an answer counts as slow
        once `slow_after` seconds have passed since it began.
        """
        if not self.recording:
            return ""
        if self.sampled:
            return "sampled"
        if self.failed:
            return "failed"
        answered = now if self.answered_at is None else self.answered_at
        return "slow" if 0 < self.slow_after < answered - self.root.begin else ""

    def exemplar(self) -> dict[str, str] | None:
        """Return the exemplar of a measurement of the request; None if its spans will not be exported."""
        if not self.recording or not self.keep_reason(self._clock()):
            return None
        return {"trace_id": format_trace_id(self.trace_id)}

    def traceparent(self, note: SpanNote | None = None) -> str:
        """Return the value of `traceparent` for work on behalf of `note` (default: the request's own span).

        The format is W3C, version 00; "" outside of any trace.
        """
        if not self.trace_id:
            return ""
        if not self.recording:
            return _header(self.trace_id, self.caller.span_id, int(self.caller.trace_flags))
        span = self.root if note is None or note is _NULL_NOTE else note
        return _header(self.trace_id, span.span_id, int(self.sampled))

    @property
    def id(self) -> str | None:
        """Trace id as 32 hex digits; None outside of any trace."""
        return format_trace_id(self.trace_id) if self.trace_id else None


class _SpanBlock:
    __slots__ = ("_note", "_trace")

    def __init__(self, trace: RequestTrace, note: SpanNote) -> None:
        self._trace, self._note = trace, note

    def __enter__(self) -> SpanNote:
        return self._note

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self._note.fail(error_code(error))
        self._trace.end(self._note)


UNTRACED = RequestTrace("")
"""The trace used where there is no request."""
_NULL_BLOCK = _SpanBlock(UNTRACED, _NULL_NOTE)


def error_code(error: BaseException) -> str:
    """Return the code or class of an exception for a span if the server failed, "" if the client did."""
    if getattr(error, "status", 500) < 500:
        return ""
    return str(getattr(error, "code", "") or type(error).__name__)


def _header(trace_id: int, span_id: int, flags: int) -> str:
    return f"00-{format_trace_id(trace_id)}-{format_span_id(span_id)}-{flags:02x}"
