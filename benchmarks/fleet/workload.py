"""Workloads of fleets besides recorded traces: the cache benchmarks' workloads, and the shape of a day."""

import math

from benchmarks.cache.workloads import GENERATED

from mamba_cli.fleet.workload import RequestStream


def generated(name: str, requests: int, seed: int) -> RequestStream:
    """Return one of the cache benchmarks' workloads, by name."""
    make = next(each for each in GENERATED if each.__name__ == name)
    return RequestStream(make(requests, seed), True)


def day(at: float) -> float:
    """Load by the second of the day, by that of the busiest hour: least at four, most at sixteen o'clock."""
    return 0.55 - 0.45 * math.cos(2 * math.pi * (at / 3600 - 4) / 24)
