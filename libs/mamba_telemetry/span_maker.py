"""Conversion of a request's notes to SDK spans, with the identifiers that were already passed on."""

from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mamba_telemetry import conventions as names
from mamba_telemetry.request_trace import RequestTrace, SpanNote

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_HEADER = TraceContextTextMapPropagator()


class _NotedIds(IdGenerator):
    # The ids of the notes: other processes already received them as parents.
    trace_id = span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class _Collected(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class SpanMaker:
    """Factory of the spans of one process; called by one thread only."""

    def __init__(self, resource: Resource) -> None:
        self._ids, self._collected = _NotedIds(), _Collected()
        # Sampling has already been decided.
        provider = TracerProvider(
            resource=resource, sampler=ALWAYS_ON, id_generator=self._ids, shutdown_on_exit=False
        )
        provider.add_span_processor(self._collected)
        self._tracer = provider.get_tracer(names.SCOPE)

    def __call__(self, trace: RequestTrace, end: float, keep_reason: str) -> Sequence[ReadableSpan]:
        """Return the spans of a request that ended at `end`; unfinished spans end with it."""
        trace.root.set(names.KEPT, keep_reason)
        trace.root.set(names.SPANS_LEFT_OUT, trace.left_out or None)
        self._collected.spans = []
        self._ids.trace_id = trace.trace_id
        for note in trace.notes:
            self._make_span(trace, note, end)
        return self._collected.spans

    def _make_span(self, trace: RequestTrace, note: SpanNote, end: float) -> None:
        self._ids.span_id = note.span_id
        span = self._tracer.start_span(
            note.name,
            context=_below(trace, note.parent_id),
            kind=note.kind,
            attributes=note.attributes,
            links=[Link(context) for header in note.links if (context := _context(header)).is_valid],
            start_time=_nanoseconds(trace, note.begin),
        )
        for name, at, sequence in note.events:
            attributes = {names.SEQUENCE: sequence} if sequence else None
            span.add_event(name, attributes, timestamp=_nanoseconds(trace, at))
        if note.error:
            span.set_attribute(names.ERROR_TYPE, note.error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(_nanoseconds(trace, note.end or max(end, note.begin)))


def _below(trace: RequestTrace, parent_id: int) -> Context:
    if not parent_id:
        return Context()
    parent = SpanContext(
        trace.trace_id, parent_id, parent_id == trace.caller.span_id, _SAMPLED, trace.caller.trace_state
    )
    return set_span_in_context(NonRecordingSpan(parent), Context())


def _context(header: str) -> SpanContext:
    return get_current_span(_HEADER.extract({"traceparent": header}, Context())).get_span_context()


def _nanoseconds(trace: RequestTrace, at: float) -> int:
    return int((trace.epoch + at) * 1e9)
