"""Arrival times of the requests of an open-loop run, in seconds from its start. Pure.

A closed loop needs no schedule, because it sends the next request when one ends.
"""

from collections.abc import Iterator
from random import Random


def poisson(rate: float, count: int, rng: Random) -> Iterator[float]:
    """Return `count` times of a Poisson process with `rate` requests per second, the first at 0.

    Raises ValueError unless the rate is positive.
    """
    _check(rate)
    now = 0.0
    for number in range(count):
        if number:
            now += rng.expovariate(rate)
        yield now


def constant(rate: float, count: int) -> Iterator[float]:
    """Return `count` times, `1 / rate` seconds apart, the first at 0. Raises ValueError like `poisson`."""
    _check(rate)
    return (number / rate for number in range(count))


def _check(rate: float) -> None:
    if not rate > 0:
        raise ValueError(f"a rate must be positive, not {rate:g}")
