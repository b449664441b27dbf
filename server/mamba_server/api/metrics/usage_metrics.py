"""Metrics of what API keys and adapters have used of this engine. They are read when they are scraped.

The number of series is bounded by the number of accounts of `UsageTotals`.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from mamba_edge.usage.usage_sum import UsageSum
from mamba_server.api.usage.usage_totals import UsageTotals
from mamba_telemetry.registry import PREFIX

HELP = {
    "requests": "Requests that ended, by key and adapter.",
    "prompt_tokens": "Prompt tokens of requests that ended, resumed ones included, by key and adapter.",
    "resumed_tokens": "Prompt tokens that were resumed from a checkpoint, by key and adapter.",
    "output_tokens": "Tokens of answers that ended, by key and adapter.",
    "device_seconds": "Time of the device, by key and adapter.",
    "slot_seconds": "State slots times the seconds for which they were held, by key and adapter.",
    "page_seconds": "Attention pages times the seconds for which they were used, by key and adapter.",
    "saved_device_seconds": "Time of the device that resumed tokens would have taken, by key and adapter.",
}


class UsageMetrics(Collector):
    """Exposes to Prometheus how much of the engine one model's requests used. It registers itself."""

    def __init__(self, registry: CollectorRegistry, totals: UsageTotals) -> None:
        self._totals = totals
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield a counter of each kind of use."""
        accounts = [(key, adapter, total.named()) for key, adapter, total in self._totals.sums()]
        for name in UsageSum().named():
            counter = CounterMetricFamily(
                f"{PREFIX}usage_{name}", HELP[name], labels=["model", "key", "adapter"]
            )
            for key, adapter, total in accounts:
                counter.add_metric([self._totals.model, key, adapter], total[name])
            yield counter
