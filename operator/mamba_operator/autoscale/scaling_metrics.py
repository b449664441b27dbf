"""Gauges of the autoscaler for each deployment: for the operator's /metrics and the external metrics API.

A value that is not known has no sample and is never 0: an external autoscaler would remove engines for a 0.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge

from mamba_operator.autoscale.decide import ScalingDecision
from mamba_operator.autoscale.demand import waiting_requests
from mamba_operator.autoscale.observation import Observation
from mamba_operator.objects.manifest import Key

PREFIX = "mambaserve_operator_scaling_"
UNITS = ("prefill", "decode", "slots", "pages", "queue")
"""What engines have so much of."""
RATES = ("prefill", "decode")
"""Units that are known by rates, which are means over a while."""
WARM = 60.0
"""Seconds of known load after which those means are believed, as after a restart of the operator."""
HELP = {
    "desired_engines": "Engines that shall run; in mode External, that the operator would let run.",
    "capacity_engines": "Engines that may be sent requests.",
    "reporting_engines": "Ready engines that told their load at the last look.",
    "demand_engines": "Engines' worth asked for, by what they have so much of.",
    "pool_usage": "Share in use of the fuller of both pools, state slots and KV pages, mean over engines.",
    "waiting_requests": "Requests that wait in gateways and engines.",
}
"""By name, without the prefix."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One number about one deployment."""

    metric: str
    """One of HELP."""
    value: float
    unit: str = ""
    """Of demand_engines."""


def samples(observation: Observation, decision: ScalingDecision) -> Iterator[Sample]:
    """The samples that are known after one observation."""
    load, traffic = observation.load, observation.traffic
    yield Sample("desired_engines", decision.target)
    yield Sample("capacity_engines", observation.ready)
    yield Sample("reporting_engines", load.engines if load is not None else 0)
    all_report = load is not None and load.engines >= observation.ready
    stopped = observation.asked == 0 and observation.ready == 0
    if not (all_report or stopped):
        return
    for unit in UNITS:
        if unit not in RATES or decision.memory.known >= WARM:
            yield Sample("demand_engines", getattr(decision.demand, unit), unit)
    if load is not None:
        yield Sample("pool_usage", max(load.slots_used, load.pages_used) / load.engines)
    if traffic is not None:
        yield Sample(
            "waiting_requests", waiting_requests(traffic) + (load.waiting if load is not None else 0)
        )


class ScalingMetrics:
    """Registers its gauges; labels of deployments that are gone, and of numbers not known, are taken away."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {
            name: Gauge(PREFIX + name, text, _labels(name), registry=registry) for name, text in HELP.items()
        }
        self._last: dict[Key, tuple[float, tuple[Sample, ...]]] = {}

    def show(self, key: Key, observation: Observation, decision: ScalingDecision) -> None:
        """One decision."""
        now = tuple(samples(observation, decision))
        shown = {(one.metric, one.unit) for one in now}
        for one in self._samples(key):
            if (one.metric, one.unit) not in shown:
                self._remove(key, one)
        for one in now:
            self._gauges[one.metric].labels(*_values(key, one)).set(one.value)
        self._last[key] = (observation.at, now)

    def forget(self, key: Key) -> None:
        """Nothing is decided about it any more."""
        for one in self._samples(key):
            self._remove(key, one)
        self._last.pop(key, None)

    def last(self, namespace: str, metric: str) -> list[tuple[str, float, Sample]]:
        """(name, when by the autoscaler's clock, sample) of all deployments of a namespace, by name."""
        return [
            (key.name, at, one)
            for key, (at, found) in sorted(self._last.items(), key=lambda item: item[0])
            for one in found
            if key.namespace == namespace and one.metric == metric
        ]

    def _samples(self, key: Key) -> tuple[Sample, ...]:
        # Its first look may have failed before anything was shown.
        return self._last.get(key, (0.0, ()))[1]

    def _remove(self, key: Key, sample: Sample) -> None:
        with contextlib.suppress(KeyError):
            self._gauges[sample.metric].remove(*_values(key, sample))


def _labels(metric: str) -> list[str]:
    return ["namespace", "name", *(["unit"] if metric == "demand_engines" else [])]


def _values(key: Key, sample: Sample) -> list[str]:
    return [key.namespace, key.name, *([sample.unit] if sample.unit else [])]
