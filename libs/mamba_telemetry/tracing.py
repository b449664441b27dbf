"""Tracing of one process: sampling is decided when a request begins, keeping when it ends.

Processes that see one request agree without communication: the first decides by the trace id, the others
follow its `traceparent`, and each keeps by itself what failed or was slow there
(docs/notes/observability.md).
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN_CONTEXT, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mamba_telemetry.request_trace import RequestTrace

if TYPE_CHECKING:  # of the optional extra "telemetry"
    from opentelemetry.sdk.trace.sampling import Sampler

    from mamba_telemetry.span_queue import SpanCounts, SpanQueue

_HEADERS = TraceContextTextMapPropagator()


class Tracing:
    """The traces of one process: it begins and ends those of its requests, and exports what is kept.

    Without a sampler and a queue it records nothing and passes on a caller's trace. `slow_after` is the
    number of seconds to the first byte from which a trace is kept; 0 = no trace is kept for being slow.
    """

    def __init__(
        self,
        sampler: "Sampler | None" = None,
        queue: "SpanQueue | None" = None,
        *,
        slow_after: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sampler, self._queue, self._slow_after, self._clock = sampler, queue, slow_after, clock

    @property
    def on(self) -> bool:
        """Whether requests are recorded."""
        return self._queue is not None

    @property
    def counts(self) -> "SpanCounts | None":
        """Number of spans sent, dropped and failed so far; None while tracing is off."""
        return None if self._queue is None else self._queue.counts

    def begin(self, name: str, headers: Mapping[str, str], *, at: float, record: bool = True) -> RequestTrace:
        """Begin the trace of a request with these `headers`; `at` is its arrival in seconds, by the clock.

        With `record` False, as for a probe, the trace only passes on the caller's trace.
        """
        if "traceparent" not in headers and (self._sampler is None or not record):
            return RequestTrace(name)
        context = _HEADERS.extract(headers, Context()) if "traceparent" in headers else Context()
        caller = get_current_span(context).get_span_context() if context else INVALID_SPAN_CONTEXT
        if self._sampler is None or not record:
            return RequestTrace(name, caller)
        trace = RequestTrace(
            name, caller, recording=True, slow_after=self._slow_after, begin=at, clock=self._clock
        )
        decision = self._sampler.should_sample(context, trace.trace_id, name).decision
        trace.sampled = decision.name == "RECORD_AND_SAMPLE"
        return trace

    def end(self, trace: RequestTrace) -> None:
        """End the trace of a request: its spans are sent or forgotten."""
        if not trace.recording or self._queue is None:
            return
        now = self._clock()
        trace.root.finish(now)
        if reason := trace.keep_reason(now):
            self._queue.offer(trace, now, reason)

    def close(self) -> None:
        """Send the waiting spans, for at most two seconds."""
        if self._queue is not None:
            self._queue.close()


OFF = Tracing()
