"""The trace spans of one request that a proxy relays, as far as the picker sees the request.

The proxy sends the request to the engine. The span of that attempt lasts from the choice to the end of the
answer. The engine's own spans are children of it, because the proxy passes the header `traceparent` on.
"""

from opentelemetry.trace import SpanKind

from mamba_api.dialects.paths import RELAYED
from mamba_gateway.endpoint_picker.request_head import RequestHead
from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.metrics.gateway_metrics import UNKNOWN_MODEL
from mamba_gateway.routing.decision import RoutingRecord
from mamba_telemetry import conventions as names
from mamba_telemetry.request_trace import SpanNote, error_code
from mamba_telemetry.tracing import Tracing

FAILED_FROM = 500


class PickTrace:
    """Trace of one request, which arrived `at` (monotonic seconds)."""

    def __init__(self, tracing: Tracing, head: RequestHead, at: float) -> None:
        self._tracing = tracing
        headers = {
            name: value.decode("latin-1")
            for name in ("traceparent", "tracestate")
            if (value := head.find(name.encode())) is not None
        }
        route = head.path if head.path in RELAYED else ""
        method = (head.find(b":method") or b"").decode("latin-1")
        self.request = tracing.begin(f"POST {route}", headers, at=at, record=method == "POST" and bool(route))
        root = self.request.root
        root.set(names.HTTP_METHOD, method)
        root.set(names.HTTP_ROUTE, route)
        root.set(names.REQUEST_ID, head.request_id)
        self._queue = self._route = self._attempt = root

    def queue(self) -> None:
        """Begin the span of the wait for a permit."""
        self._queue = self.request.begin(names.GATEWAY_QUEUE)

    def route(self) -> None:
        """End the span of the wait for a permit, and begin the span of the choice of an engine."""
        self.request.end(self._queue)
        self._route = self.request.begin(names.GATEWAY_ROUTE)

    def picked(self, record: RoutingRecord) -> None:
        """Record the choice in its span, end that span, and begin the span of the proxy's attempt."""
        record.describe(self._route)
        self.request.end(self._route)
        self._attempt = self.request.begin(names.GATEWAY_ATTEMPT, kind=SpanKind.CLIENT)
        self._attempt.set(names.ENDPOINT, record.decision.endpoint.name)

    @property
    def traceparent(self) -> str:
        """Return the header for the engine; "" if no trace is recorded: the client's own header is kept."""
        return self.request.traceparent(self._attempt) if self.request.recording else ""

    def answered(self, endpoint: Endpoint, status: int, at: float) -> None:
        """Record that the answer of an engine has begun; the proxy may have used another than was chosen."""
        self._attempt.set(names.ENDPOINT, endpoint.name)
        for span in (self._attempt, self.request.root):
            span.set(names.HTTP_STATUS, status)
            if status >= FAILED_FROM:
                span.fail(str(status))
        self.request.answered_at = at

    def refused(self, error: Exception, status: int) -> None:
        """Record that the request was refused, so that no engine answered it."""
        self.request.root.set(names.HTTP_STATUS, status)
        if code := error_code(error):
            self.request.root.fail(code)

    def exemplar(self) -> dict[str, str] | None:
        """Return the trace's labels, which connect a measurement to the trace; None without a trace."""
        return self.request.exemplar()

    def end(self, model: str, *, streams: bool) -> None:
        """End all spans of the request; `model` is the model's label in metrics."""
        root: SpanNote = self.request.root
        if model != UNKNOWN_MODEL:
            root.set(names.REQUEST_MODEL, model)
        root.set(names.REQUEST_STREAM, streams)
        if self.request.answered_at is not None:
            root.event(names.FIRST_BYTE, self.request.answered_at)
            root.set(names.TIME_TO_FIRST_CHUNK, self.request.answered_at - root.begin)
        for span in (self._queue, self._route, self._attempt):
            self.request.end(span)
        self._tracing.end(self.request)
