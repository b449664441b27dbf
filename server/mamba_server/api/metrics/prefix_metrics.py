"""Metrics of what this engine publishes to the prefix index. They are read when they are scraped."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mamba_prefix.change_log import ChangeLog
from mamba_prefix.publisher import Publisher
from mamba_telemetry.registry import PREFIX


class PrefixMetrics(Collector):
    """Exposes to Prometheus how a served model's prefixes are published.

    `publisher` is None without a Redis; its counters are 0 then.
    """

    def __init__(self, registry: CollectorRegistry, model: str, changes: ChangeLog) -> None:
        self.publisher: Publisher | None = None
        self._model = model
        self._changes = changes
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of the publisher."""
        publisher, prefix = self.publisher, f"{PREFIX}prefix_index_"
        numbers = (
            (
                "published_batches",
                "Batches of changes written to Redis.",
                publisher.batches if publisher else 0,
            ),
            ("published_bytes", "Bytes written to Redis.", publisher.bytes if publisher else 0),
            ("published_snapshots", "Snapshots written to Redis.", publisher.snapshots if publisher else 0),
            (
                "publish_failures",
                "Failed attempts to publish because Redis was unavailable.",
                publisher.failures if publisher else 0,
            ),
        )
        for name, description, value in numbers:
            counter = CounterMetricFamily(prefix + name, description, labels=["model"])
            counter.add_metric([self._model], value)
            yield counter
        gauges = (
            ("published_entries", "Checkpoints that are published to gateways.", len(self._changes.depths)),
            (
                "publishing",
                "1 if Redis accepts what is published; 0 if not, or without a Redis.",
                bool(publisher and publisher.connected),
            ),
        )
        for name, description, value in gauges:
            gauge = GaugeMetricFamily(prefix + name, description, labels=["model"])
            gauge.add_metric([self._model], value)
            yield gauge
