"""What the autoscaler shows at the operator's /metrics, by deployment: as many label sets as it scales."""

import contextlib

from prometheus_client import CollectorRegistry, Gauge

from mamba_operator.autoscale.decide import Decision
from mamba_operator.autoscale.observation import Observation
from mamba_operator.manifest import Key

UNITS = ("prefill", "decode", "slots", "pages", "queue")
"""What engines have so much of."""


class ScalingMetrics:
    """Registers its gauges; labels of deployments that are gone are taken away."""

    def __init__(self, registry: CollectorRegistry) -> None:
        who = ["namespace", "name"]
        prefix = "mambaserve_operator_scaling_"
        self._desired = Gauge(prefix + "desired_engines", "Engines that shall run.", who, registry=registry)
        self._capacity = Gauge(
            prefix + "capacity_engines", "Engines that may be sent requests.", who, registry=registry
        )
        self._reporting = Gauge(
            prefix + "reporting_engines", "Ready engines that told their load at the last look.", who,
            registry=registry,
        )  # fmt: skip
        self._demand = Gauge(
            prefix + "demand_engines", "Engines' worth asked for, by what they have so much of.",
            [*who, "unit"], registry=registry,
        )  # fmt: skip

    def show(self, key: Key, seen: Observation, made: Decision) -> None:
        """One decision."""
        who = (key.namespace, key.name)
        self._desired.labels(*who).set(made.target)
        self._capacity.labels(*who).set(seen.ready)
        self._reporting.labels(*who).set(seen.load.engines if seen.load is not None else 0)
        for unit in UNITS:
            self._demand.labels(*who, unit).set(getattr(made.demand, unit))

    def forget(self, key: Key) -> None:
        """Nothing is decided about it any more."""
        who = (key.namespace, key.name)
        for gauge in (self._desired, self._capacity, self._reporting):
            _remove(gauge, *who)
        for unit in UNITS:
            _remove(self._demand, *who, unit)


def _remove(gauge: Gauge, *labels: str) -> None:
    # Its first look may have failed before anything was shown.
    with contextlib.suppress(KeyError):
        gauge.remove(*labels)
