"""The series that dashboards and rules may speak of, taken from the registries that the processes expose.

A panel names a series here and gets PromQL from it. A name that no process has any more, a label that the
series does not carry, the rate of a gauge: each is an error when the files are written, not an empty panel.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from mamba_cli.local.loading.download_metrics import DownloadMetrics
from mamba_edge.usage.prices import Prices
from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.usage.ledger_store import MemoryLedger
from mamba_gateway.usage.usage_ledger import UsageLedger
from mamba_operator.autoscale.scaling_metrics import ScalingMetrics
from mamba_operator.process.metrics import OperatorMetrics
from mamba_prefix.change_log import ChangeLog
from mamba_server.api.metrics.engine_metrics import HELP, EngineMetrics
from mamba_server.api.metrics.prefix_metrics import PrefixMetrics
from mamba_server.api.metrics.request_metrics import RequestMetrics
from mamba_server.api.metrics.usage_metrics import UsageMetrics
from mamba_server.api.usage.usage_totals import UsageTotals
from mamba_server.wire import EngineStats, Ready

SCRAPED = frozenset({"namespace", "pod", "instance"})
"""Labels that come with the scrape, whatever the series."""
RATE = "$__rate_interval"
"""Grafana's: four scrapes at least."""
ENGINE_LABELS = {
    "slabs": ("owner",),
    "slots": ("owner",),
    "pages": ("owner",),
    "prefix_misses": ("cause",),
    "sequences_finished": ("reason",),
    "decode_steps": ("kind",),
    "kernels_left_out": ("operator", "cause"),
    "pins": ("outcome",),
    "audits": ("outcome", "origin"),
    "draft_tokens": ("kind",),
    "accepted_draft_tokens": ("kind",),
    "transfers": ("direction", "outcome"),
    "transfer_bytes": ("direction",),
}
"""Labels of the engine process's own series that have some beside the model."""
ENGINE_GAUGES = frozenset(
    {
        "requests_running", "requests_waiting", "checkpoints", "slabs", "slots", "pages", "arena_usage",
        "state_usage", "kv_usage", "prompt_tokens_waiting", "prompt_room_tokens", "prefill_tokens_per_second",
        "prefill_speed_error", "prefill_attention_ratio", "decode_step_seconds", "max_running_requests",
        "decode_steps", "kernels_left_out", "transfer_receiving", "transfer_exported", "transfer_quarantined",
        "transfer_credits", "pinned_checkpoints", "speculation_on",
    }
)  # fmt: skip
"""Names among the engine process's own series that are gauges."""


class UnknownSeries(LookupError):
    """No process exposes such a series, or not with that label, or not of that type."""


@dataclass(frozen=True, slots=True)
class Series:
    """One metric with a selection of its label sets. `name` as prometheus_client has it, without `_total`."""

    name: str
    kind: str
    """counter, gauge or histogram."""
    labels: frozenset[str]
    meaning: str = ""
    selected: tuple[str, ...] = ()
    """Matchers."""

    def where(self, **labels: str) -> "Series":
        """Select label sets with these values. Raises UnknownSeries."""
        return self._narrowed("=", labels)

    def like(self, **labels: str) -> "Series":
        """Select label sets whose values match these expressions as a whole. Raises UnknownSeries."""
        return self._narrowed("=~", labels)

    def without(self, **labels: str) -> "Series":
        """Select label sets with other values. Raises UnknownSeries."""
        return self._narrowed("!=", labels)

    def _narrowed(self, operator: str, labels: Mapping[str, str]) -> "Series":
        self._known(labels)
        matchers = [f'{label}{operator}"{value}"' for label, value in labels.items()]
        return replace(self, selected=(*self.selected, *matchers))

    def check(self, label: str) -> None:
        """Raise UnknownSeries for a label that the series does not have."""
        if label not in self.labels | SCRAPED:
            raise UnknownSeries(f"{self.name} has no label {label}: it has {', '.join(sorted(self.labels))}")

    @property
    def now(self) -> str:
        """Return an expression of the current values."""
        self._must_be("gauge")
        return self._selector("")

    def rate(self, window: str = RATE) -> str:
        """Increase a second over a window."""
        self._must_be("counter")
        return f"rate({self._selector('_total')}[{window}])"

    def increase(self, window: str, before: str = "") -> str:
        """Increase over a window that ends now, or a time `before`."""
        self._must_be("counter")
        offset = f" offset {before}" if before else ""
        return f"increase({self._selector('_total')}[{window}]{offset})"

    def quantile(self, share: float, *by: str, window: str = RATE) -> str:
        """Return the quantile `share` of the observations, over all label sets or by some."""
        self._must_be("histogram")
        buckets = f"rate({self._selector('_bucket')}[{window}])"
        return f"histogram_quantile({share:g}, {total(buckets, 'le', *self._known(by))})"

    def mean(self, *by: str, window: str = RATE) -> str:
        """Return the mean of the observations."""
        self._must_be("histogram")
        parts = [f"rate({self._selector(part)}[{window}])" for part in ("_sum", "_count")]
        return " / ".join(total(part, *self._known(by)) for part in parts)

    def summed(self, *by: str, window: str = RATE) -> str:
        """Sum current values, or rates, over all label sets or by some."""
        return total(self.now if self.kind == "gauge" else self.rate(window), *self._known(by))

    def _known(self, labels: Iterable[str]) -> tuple[str, ...]:
        found = tuple(labels)
        for label in found:
            self.check(label)
        return found

    def _must_be(self, kind: str) -> None:
        if self.kind != kind:
            raise UnknownSeries(f"{self.name} is a {self.kind}, not a {kind}")

    def _selector(self, suffix: str) -> str:
        chosen = f"{{{','.join(self.selected)}}}" if self.selected else ""
        return f"{self.name}{suffix}{chosen}"


def total(expression: str, *by: str) -> str:
    """Sum the expression by these labels."""
    return f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})"


def series(name: str) -> Series:
    """Return the series `mambaserve_NAME`. Raises UnknownSeries."""
    try:
        return _catalogue()[f"mambaserve_{name}"]
    except KeyError:
        raise UnknownSeries(f"no process exposes mambaserve_{name}") from None


@cache
def _catalogue() -> Mapping[str, Series]:
    endpoint = Endpoint(
        url="", name="e", ready=True, draining=False, models=None, running=0, waiting=0, kv_usage=0.0,
        in_flight=0, in_flight_at_report=0,
    )  # fmt: skip
    engine = CollectorRegistry()
    metrics = EngineMetrics(engine, "m")
    metrics.on_ready(Ready(1, 1, (), {}))
    metrics.on_stats(_every_number())
    RequestMetrics(engine, "m")
    PrefixMetrics(engine, "m", ChangeLog("m"))
    operator = OperatorMetrics().registry
    ScalingMetrics(operator)
    UsageMetrics(engine, UsageTotals("m"))
    gateway = GatewayMetrics(lambda: (endpoint,)).registry
    gateway.register(UsageLedger(MemoryLedger(1), prices=Prices(), days=1))
    registries = (engine, gateway, operator, DownloadMetrics().registry)
    return {each.name: each for registry in registries for each in _exposed(registry)}


def _every_number() -> EngineStats:
    keys = {
        name: f"{name}{{{','.join(f'{label}=x' for label in ENGINE_LABELS.get(name, ()))}}}"
        for name in HELP
    }  # fmt: skip
    gauges = {key: 0.0 for name, key in keys.items() if name in ENGINE_GAUGES}
    return EngineStats({key: 0.0 for name, key in keys.items() if name not in ENGINE_GAUGES}, gauges, [], [])


def _exposed(registry: CollectorRegistry) -> Iterable[Series]:
    # A metric without label sets yet has no sample that would tell its labels; they stand nowhere else.
    named = {
        family.name: frozenset(collector._labelnames)  # noqa: SLF001
        for collector in set(registry._collector_to_names)  # noqa: SLF001
        if isinstance(collector, MetricWrapperBase)
        for family in collector.describe()
    }
    for family in registry.collect():
        seen = {label for sample in family.samples for label in sample.labels} - {"le"}
        labels = named.get(family.name) or frozenset(seen.union(getattr(family, "_labelnames", ())))
        yield Series(family.name, family.type, labels, family.documentation)
