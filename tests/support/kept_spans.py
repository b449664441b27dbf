"""Tracing whose kept spans a test reads: the real sampler and spans, no thread and no receiver."""

from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from mamba_telemetry.request_trace import RequestTrace
from mamba_telemetry.span_maker import SpanMaker
from mamba_telemetry.span_queue import SpanCounts
from mamba_telemetry.tracing import Tracing

SAMPLED = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
UNSAMPLED = SAMPLED[:-2] + "00"


class KeptSpans:
    """In the place of the queue."""

    def __init__(self) -> None:
        self.counts = SpanCounts()
        self.requests: list[list[ReadableSpan]] = []
        self._make = SpanMaker(Resource({}))

    def offer(self, trace: RequestTrace, end: float, why: str) -> None:
        self.requests.append(list(self._make(trace, end, why)))

    def close(self) -> None:
        pass

    @property
    def spans(self) -> list[ReadableSpan]:
        return [span for request in self.requests for span in request]

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


def tracing_to(kept: KeptSpans, *, ratio: float = 1.0, **more: Any) -> Tracing:
    return Tracing(ParentBasedTraceIdRatio(ratio), kept, **more)  # type: ignore[arg-type]


class Hand:
    """A clock that a test turns."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def parents(spans: list[ReadableSpan]) -> dict[str, str]:
    """Name of each span's parent, "" where it is not among them, by name."""
    names = {span.context.span_id: span.name for span in spans}
    return {span.name: names.get(span.parent.span_id, "") if span.parent else "" for span in spans}
