"""Number of spans of this process by outcome, for `/metrics`."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from mamba_telemetry.registry import PREFIX
from mamba_telemetry.tracing import Tracing


class TraceMetrics(Collector):
    """A collector that registers itself. A process without tracing has no such series."""

    def __init__(self, registry: CollectorRegistry, tracing: Tracing) -> None:
        self._tracing = tracing
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the number of spans so far by outcome."""
        counts = self._tracing.counts
        family = CounterMetricFamily(
            PREFIX + "trace_spans",
            "Spans of kept requests by outcome: sent, dropped (no room), failed (not accepted).",
            labels=["outcome"],
        )
        if counts is not None:
            family.add_metric(["sent"], counts.sent)
            family.add_metric(["dropped"], counts.dropped)
            family.add_metric(["failed"], counts.failed)
        yield family
