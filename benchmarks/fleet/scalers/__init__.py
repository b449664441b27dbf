"""Autoscalers that are compared: the product's own decision, and the published rules of others."""

from typing import Protocol

from benchmarks.fleet.sample import FleetSample


class Scaler(Protocol):
    """Asked every `period` seconds with what was scraped `delay` seconds before."""

    period: float
    delay: float

    def target(self, sample: FleetSample) -> int:
        """How many engines shall run."""
        ...
