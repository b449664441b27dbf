"""`RequestTrace`: the spans of one request in one process, recorded as notes and exported only if kept.

A note has a few fields and costs a tenth of an SDK span, so every request can be recorded and the slow and
the failed ones exported (tail sampling). `Tracing` begins and ends traces. Times are `time.monotonic()`
seconds, those from the engine too.
"""

import random
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal

from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, SpanKind, format_span_id, format_trace_id

MOST_SPANS = 128
"""Of one request in one process; more are counted and left out."""
Value = str | bool | int | float | Sequence[str] | Sequence[int]
KeepReason = Literal["sampled", "failed", "slow", ""]


class SpanNote:
    """One span to be. `end` = 0 while it lasts."""

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
        """0 = none."""
        self.begin = begin
        self.end = 0.0
        self.kind = kind
        self.error = ""
        """A code, such as upstream_died: never words, which may quote a client."""
        self.attributes: dict[str, Value] = {}
        self.events: list[tuple[str, float, int]] = []
        """(name, when, sequence)."""
        self.links: Sequence[str] = ()
        """`traceparent` of others that it shared a step with."""

    def set(self, name: str, value: Value | None) -> None:
        """Set an attribute; None leaves it unset."""
        if value is not None:
            self.attributes[name] = value

    def event(self, name: str, at: float, sequence: int = 0) -> None:
        """Something happened at a moment."""
        self.events.append((name, at, sequence))

    def fail(self, code: str) -> None:
        """Mark the span as failed; the first code wins."""
        self.error = self.error or code

    def finish(self, at: float) -> None:
        """End the span; the first time wins."""
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
    """Of one request in this process. With `recording` off it only passes on what the caller said.

    `slow_after`: seconds without a first byte after which it is kept, sampled or not; 0 = however slow it is.
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
        """The span that this one is a child of; invalid = it is the first of its trace."""
        self.recording = recording
        self.sampled = sampled
        self.slow_after = slow_after
        self.trace_id = caller.trace_id or (random.getrandbits(128) or 1 if recording else 0)
        self.answered_at: float | None = None
        """When the first byte of the answer left."""
        self.left_out = 0
        self._clock = clock
        self.epoch = 0.0
        """What to add to a time to get seconds since 1970."""
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
        """A span that began now, or at a time; below the request's own one unless it has a parent."""
        if not self.recording:
            return _NULL_NOTE
        if len(self.notes) >= MOST_SPANS:
            self.left_out += 1
            return _NULL_NOTE
        above = self.root if parent is None or parent is _NULL_NOTE else parent
        note = SpanNote(name, above.span_id, at or self._clock(), kind)
        self.notes.append(note)
        return note

    def end(self, note: SpanNote) -> None:
        """It is over by now."""
        if self.recording:
            note.finish(self._clock())

    def span(self, name: str) -> "_SpanBlock":
        """Around what the span is for; an exception fails it, unless the client is to blame."""
        return _SpanBlock(self, self.begin(name)) if self.recording else _NULL_BLOCK

    @property
    def failed(self) -> bool:
        """Whether any of its spans failed."""
        return any(note.error for note in self.notes)

    def keep_reason(self, now: float) -> KeepReason:
        """Why the spans will be exported; "" = by what is known at `now` they will not be."""
        if not self.recording:
            return ""
        if self.sampled:
            return "sampled"
        if self.failed:
            return "failed"
        answered = now if self.answered_at is None else self.answered_at
        return "slow" if 0 < self.slow_after < answered - self.root.begin else ""

    def exemplar(self) -> dict[str, str] | None:
        """What a measurement points to; None where it would point to spans that are not sent."""
        if not self.recording or not self.keep_reason(self._clock()):
            return None
        return {"trace_id": format_trace_id(self.trace_id)}

    def traceparent(self, note: SpanNote | None = None) -> str:
        """The header for who works for `note` (the request's own span): W3C, version 00; "" outside of any
        trace."""
        if not self.trace_id:
            return ""
        if not self.recording:
            return _header(self.trace_id, self.caller.span_id, int(self.caller.trace_flags))
        span = self.root if note is None or note is _NULL_NOTE else note
        return _header(self.trace_id, span.span_id, int(self.sampled))

    @property
    def id(self) -> str | None:
        """32 hex digits; None outside of any trace."""
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
"""Of what is no request."""
_NULL_BLOCK = _SpanBlock(UNTRACED, _NULL_NOTE)


def error_code(error: BaseException) -> str:
    """What a span says of an exception: its code or class if the server failed, "" if the client did."""
    if getattr(error, "status", 500) < 500:
        return ""
    return str(getattr(error, "code", "") or type(error).__name__)


def _header(trace_id: int, span_id: int, flags: int) -> str:
    return f"00-{format_trace_id(trace_id)}-{format_span_id(span_id)}-{flags:02x}"
