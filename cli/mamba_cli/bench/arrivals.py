"""Arrivals: when each request of an open-loop run is sent, in seconds from the start. Pure.

A closed loop has no schedule: there the next request is sent when one ends.
"""

from collections.abc import Iterator
from random import Random


def poisson(rate: float, count: int, rng: Random) -> Iterator[float]:
    """`count` times of a Poisson process with `rate` requests a second, the first at 0.

    Raises ValueError unless the rate is positive.
    """
    _check(rate)
    now = 0.0
    for number in range(count):
        if number:
            now += rng.expovariate(rate)
        yield now


def constant(rate: float, count: int) -> Iterator[float]:
    """`count` times, `1 / rate` seconds apart, the first at 0. Raises ValueError like `poisson`."""
    _check(rate)
    return (number / rate for number in range(count))


def _check(rate: float) -> None:
    if not rate > 0:
        raise ValueError(f"a rate must be positive, not {rate:g}")
