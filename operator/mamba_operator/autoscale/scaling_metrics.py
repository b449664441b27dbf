"""Gauges of the autoscaler for each deployment: for the operator's /metrics and the external metrics API.

An unknown value has no sample and is never 0: an external autoscaler would remove engines for a 0.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, Gauge

from mamba_api.choices import Role
from mamba_operator.autoscale.decide import ScalingDecision
from mamba_operator.autoscale.demand import waiting_requests
from mamba_operator.autoscale.observation import Observation
from mamba_operator.objects.manifest import Key

PREFIX = "mambaserve_operator_scaling_"
UNITS = ("prefill", "decode", "slots", "pages", "queue")
"""Limited resources of an engine."""
RATES = ("prefill", "decode")
"""Resources of UNITS whose use is measured by rates, which are means over time."""
WARM_UP_SECONDS = 60.0
"""Seconds of known load after a restart of the operator until rates are reliable."""
HELP = {
    "desired_engines": "Engines that shall run; in mode External, those that the operator would run.",
    "capacity_engines": "Engines that may be sent requests.",
    "reporting_engines": "Ready engines that reported their load at the last poll.",
    "demand_engines": "Demand in engines, by limited resource of an engine.",
    "pool_usage": "Share in use of the fuller pool, state slots or KV pages, mean over engines.",
    "waiting_requests": "Requests that wait in gateways and engines.",
}
"""Help text by the name of the metric, without the prefix."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One number about one deployment."""

    metric: str
    """One of HELP."""
    value: float
    unit: str = ""
    """One of UNITS for a `demand_engines` sample; empty for other metrics."""
    role: Role = "unified"
    """Role of the engines."""


def samples(observation: Observation, decision: ScalingDecision, role: Role = "unified") -> Iterator[Sample]:
    """Yield the samples with known values after one observation of the engines of a role."""
    yield from (replace(sample, role=role) for sample in _samples(observation, decision))


def _samples(observation: Observation, decision: ScalingDecision) -> Iterator[Sample]:
    load, traffic = observation.load, observation.traffic
    yield Sample("desired_engines", decision.target)
    yield Sample("capacity_engines", observation.ready)
    yield Sample("reporting_engines", load.engines if load is not None else 0)
    all_report = load is not None and load.engines >= observation.ready
    stopped = observation.desired == 0 and observation.ready == 0
    if not (all_report or stopped):
        return
    for unit in UNITS:
        if unit not in RATES or decision.memory.known_seconds >= WARM_UP_SECONDS:
            yield Sample("demand_engines", getattr(decision.demand, unit), unit)
    if load is not None:
        yield Sample("pool_usage", max(load.slots_used, load.pages_used) / load.engines)
    if traffic is not None:
        yield Sample(
            "waiting_requests", waiting_requests(traffic) + (load.waiting if load is not None else 0)
        )


class ScalingMetrics:
    """Publishes numbers of the autoscaler's decisions as gauges, for all deployments.

    Samples of removed deployments and of unknown values are removed.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {
            name: Gauge(PREFIX + name, text, _labels(name), registry=registry) for name, text in HELP.items()
        }
        self._last: dict[Key, dict[Role, tuple[float, tuple[Sample, ...]]]] = {}

    def show(
        self, key: Key, observation: Observation, decision: ScalingDecision, role: Role = "unified"
    ) -> None:
        """Publish the samples of one decision about the engines of a role."""
        current = tuple(samples(observation, decision, role))
        series = {(sample.metric, sample.unit) for sample in current}
        # The first poll of a deployment may have failed, so that it has no samples.
        published = self._last.setdefault(key, {})
        for old in published.get(role, (0.0, ()))[1]:
            if (old.metric, old.unit) not in series:
                self._remove(key, old)
        for sample in current:
            self._gauges[sample.metric].labels(*_values(key, sample)).set(sample.value)
        published[role] = (observation.at, current)

    def forget(self, key: Key, *roles: Role) -> None:
        """Remove all samples of a deployment, or of engines that the autoscaler no longer handles."""
        published = self._last.get(key, {})
        for role in roles or tuple(published):
            for sample in published.pop(role, (0.0, ()))[1]:
                self._remove(key, sample)
        if not published:
            self._last.pop(key, None)

    def last(self, namespace: str, metric: str) -> list[tuple[str, float, Sample]]:
        """Return (name, time by the autoscaler's clock, sample) of a namespace's deployments, by name."""
        return [
            (key.name, time, sample)
            for key, by_role in sorted(self._last.items(), key=lambda item: item[0])
            for time, published in by_role.values()
            for sample in published
            if key.namespace == namespace and sample.metric == metric
        ]

    def _remove(self, key: Key, sample: Sample) -> None:
        with contextlib.suppress(KeyError):
            self._gauges[sample.metric].remove(*_values(key, sample))


def _labels(metric: str) -> list[str]:
    return ["namespace", "name", "role", *(["unit"] if metric == "demand_engines" else [])]


def _values(key: Key, sample: Sample) -> list[str]:
    return [key.namespace, key.name, sample.role, *([sample.unit] if sample.unit else [])]
