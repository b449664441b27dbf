"""The token-based saturation rule of llm-d's workload variant autoscaler (V2), as an HPA obeys it."""

import statistics
from collections import deque

from benchmarks.fleet.scalers.stabilization import Stabilization

from mamba_cli.fleet.sample import EngineSample, FleetSample

KV_SHARE = 0.80
QUEUE_FULL = 5
"""Requests that wait in a saturated engine."""
GROW, SHRINK = 0.85, 0.70
HISTORY = 10
WINDOW = 300.0


class Wva:
    """One engine more or less at a time, by tokens; those that start count as there."""

    period, delay = 15.0, 15.0

    def __init__(self, tokens: float) -> None:
        self._tokens = tokens
        """KV tokens of an engine."""
        self._saturated: deque[float] = deque(maxlen=HISTORY)
        self._stabilization = Stabilization(WINDOW)

    def target(self, sample: FleetSample) -> int:
        """Scale by the demand relative to the engines that run or start."""
        demand = sum(engine.tokens + engine.waiting * self._mean_input(sample) for engine in sample.ready)
        demand += sample.unrouted * self._mean_input(sample)
        capacity = self._capacity(sample)
        if capacity <= 0:
            return sample.desired
        engines = sample.desired
        if demand / GROW > sample.supply * capacity:
            engines += 1
        elif (
            len(sample.ready) >= 2
            and not sample.pending
            and len(sample.ready) * capacity - demand / SHRINK >= capacity
        ):
            engines -= 1
        return max(engines, min(sample.desired, self._stabilization.applied(sample.at, engines)))

    def _capacity(self, sample: FleetSample) -> float:
        if not sample.ready:
            return 0.0
        return statistics.median(self._of(engine) for engine in sample.ready)

    def _of(self, engine: EngineSample) -> float:
        most = KV_SHARE * self._tokens
        if engine.waiting >= QUEUE_FULL and engine.tokens:
            self._saturated.append(engine.tokens)
        return min(most, statistics.fmean(self._saturated)) if self._saturated else most

    @staticmethod
    def _mean_input(sample: FleetSample) -> float:
        arrived = sum(engine.totals.arrivals for engine in sample.ready)
        return sum(engine.totals.prompt_tokens for engine in sample.ready) / arrived if arrived else 0.0
