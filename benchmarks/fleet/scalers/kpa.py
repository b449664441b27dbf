"""Knative's pod autoscaler on concurrency: a stable window, and a short one for panic."""

import math
from collections import deque

from mamba_cli.fleet.sample import FleetSample

STABLE = 60.0
PANIC = 6.0
UP, DOWN = 1000.0, 2.0
"""Most by which one decision multiplies, divides."""
THRESHOLD = 2.0
UTILIZATION = 0.7


class Kpa:
    """`concurrency`: requests that one engine may have at once."""

    period, delay = 2.0, 1.0

    def __init__(self, concurrency: float) -> None:
        self._goal = UTILIZATION * concurrency
        self._samples: deque[tuple[float, int]] = deque()
        self._panicked: float | None = None
        self._most = 0

    def target(self, sample: FleetSample) -> int:
        """Return the larger target while in panic, never less than before; else that of the stable window."""
        now = sample.at
        self._samples.append((now, sample.in_flight))
        while self._samples[0][0] <= now - STABLE:
            self._samples.popleft()
        ready = max(1, len(sample.ready))
        most, least = math.ceil(UP * ready), math.floor(ready / DOWN)
        targets = {window: math.ceil(self._mean(now - window) / self._goal) for window in (STABLE, PANIC)}
        over = targets[PANIC] / ready >= THRESHOLD
        stable, panic = (min(max(targets[window], least), most) for window in (STABLE, PANIC))
        if over:
            self._panicked = now
        elif self._panicked is not None and now - self._panicked > STABLE:
            self._panicked, self._most = None, 0
        if self._panicked is None:
            return stable
        self._most = max(self._most, stable, panic)
        return self._most

    def _mean(self, since: float) -> float:
        values = [value for at, value in self._samples if at > since]
        return sum(values) / len(values)
