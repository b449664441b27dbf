"""The HorizontalPodAutoscaler with one metric per pod, by its defaults."""

import math
from collections.abc import Callable

from benchmarks.fleet.scalers.stabilization import Stabilization

from mamba_cli.fleet.sample import EngineSample, FleetSample

TOLERANCE = 0.1
WINDOW = 300.0
"""Seconds for which the highest recommendation holds before it shrinks."""
QUEUE_TARGET = 5.0
"""Requests waiting per pod: what llm-d's saturation detector takes for a full one."""
KV_TARGET = 0.8
"""Target utilization of the KV memory."""


class Hpa:
    """Holds the mean of `metric` over ready pods at `goal`; pods that start count as idle."""

    period = 15.0
    delay = 15.0
    """A metrics adapter answers from Prometheus, which scrapes every fifteen seconds."""

    def __init__(self, metric: Callable[[EngineSample], float], goal: float) -> None:
        self._metric, self._goal = metric, goal
        self._stabilization = Stabilization(WINDOW)

    def target(self, sample: FleetSample) -> int:
        """Scale by the ratio of metric and goal, within a tolerance; at most to twice as many or 4 more."""
        current = sample.desired
        desired = self._wanted(sample, current)
        if desired > current:
            desired = min(desired, max(2 * current, current + 4))
        return max(desired, min(current, self._stabilization.applied(sample.at, desired)))

    def _wanted(self, sample: FleetSample, current: int) -> int:
        if not sample.ready:
            return current
        values = [self._metric(engine) for engine in sample.ready]
        ratio = sum(values) / len(values) / self._goal
        if abs(ratio - 1.0) <= TOLERANCE:
            return current
        if ratio > 1.0 and sample.pending:
            # Those that start are taken for idle.
            everyone = len(values) + len(sample.pending)
            ratio = sum(values) / everyone / self._goal
            if ratio <= 1.0 + TOLERANCE:
                return current
            return max(current, math.ceil(everyone * ratio))
        return math.ceil(len(values) * ratio)


def hpa_queue(goal: float = QUEUE_TARGET) -> Hpa:
    """Return an autoscaler by the requests that wait in engines."""
    return Hpa(lambda engine: engine.waiting, goal)


def hpa_kv(goal: float = KV_TARGET) -> Hpa:
    """Return an autoscaler by the memory that sequences hold."""
    return Hpa(lambda engine: engine.usage, goal)
