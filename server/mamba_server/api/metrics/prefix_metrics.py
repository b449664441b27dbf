"""Series of the API process about the prefix index: what is published of this engine. Read at scrape time."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mamba_prefix.change_log import ChangeLog
from mamba_prefix.publisher import Publisher
from mamba_telemetry.registry import PREFIX


class PrefixMetrics(Collector):
    """Of one served model. `publisher` is None without a Redis: then what it counts is 0."""

    def __init__(self, registry: CollectorRegistry, model: str, changes: ChangeLog) -> None:
        self.publisher: Publisher | None = None
        self._model = model
        self._changes = changes
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """All of them."""
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
                "Times that Redis was away while publishing.",
                publisher.failures if publisher else 0,
            ),
        )
        for name, said, value in numbers:
            counter = CounterMetricFamily(prefix + name, said, labels=["model"])
            counter.add_metric([self._model], value)
            yield counter
        gauges = (
            ("published_entries", "Checkpoints that gateways are told of.", len(self._changes.depths)),
            (
                "publishing",
                "1 if Redis takes what is published; 0 without one.",
                bool(publisher and publisher.connected),
            ),
        )
        for name, said, value in gauges:
            gauge = GaugeMetricFamily(prefix + name, said, labels=["model"])
            gauge.add_metric([self._model], value)
            yield gauge
