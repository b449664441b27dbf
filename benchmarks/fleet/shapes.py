"""Shapes of an hour: by the second, how much of the busiest load comes. Deterministic by seed. Pure."""

import math
from bisect import bisect_right
from collections.abc import Callable
from random import Random

from mamba_cli.fleet.workload import RateShape

HOUR = 3600.0


def constant(share: float) -> RateShape:
    """Return a constant rate."""
    return lambda _: share


def ramp(at: float) -> float:
    """Return a tenth at first, then more and more for three quarters of an hour, then all of it."""
    return min(1.0, 0.1 + 0.9 * at / (0.75 * HOUR))


def evening(at: float) -> float:
    """Return the full rate for a quarter of an hour, then less and less, at last a seventh."""
    return min(1.0, max(1 / 7, 1.0 - (at - 0.25 * HOUR) / (0.5 * HOUR)))


def spiked(seed: int, days: int = 1) -> RateShape:
    """Compress days into an hour, from a tenth to six tenths and back, with six spikes of a minute or two."""
    rng = Random(f"spikes {seed}")
    spikes = [(rng.uniform(0, HOUR), rng.uniform(60, 120)) for _ in range(6)]

    def shape(at: float) -> float:
        base = 0.35 - 0.25 * math.cos(2 * math.pi * (at - 600) * days / HOUR)
        return min(1.0, base + 0.5 * any(begin <= at < begin + length for begin, length in spikes))

    return shape


def on_off(
    seed: int, shortest: float = 150, longest: float = 500, off: float = 0.05, *, begins: bool = False
) -> RateShape:
    """Alternate the full rate and the share `off`. `begins`: with the full rate."""
    turns = _turns(Random(f"on and off {seed}"), lambda rng: rng.uniform(shortest, longest))
    return lambda at: 1.0 if (bisect_right(turns, at) + begins) % 2 == 0 else off


def bursts(seed: int, base: float, mean_gap: float, shortest: float, longest: float) -> RateShape:
    """Return `base` with bursts to the full rate, `mean_gap` seconds apart on average."""
    rng = Random(f"bursts {seed}")
    times, at = list[float](), 0.0
    while at < HOUR:
        times += [at := at + rng.expovariate(1 / mean_gap), at := at + rng.uniform(shortest, longest)]
    return lambda now: 1.0 if bisect_right(times, now) % 2 else base


def drift(seed: int, step: float = 60.0, sigma: float = 0.12) -> RateShape:
    """Return a random walk of the load's logarithm between a fifth and 1, with a step each `step` seconds."""
    rng = Random(f"drift {seed}")
    walk, level = list[float](), math.log(0.5)
    while len(walk) * step <= HOUR:
        level = min(0.0, max(math.log(0.2), level + rng.gauss(0.0, sigma)))
        walk.append(math.exp(level))
    return lambda at: walk[int(at / step)]


def _turns(rng: Random, seconds: Callable[[Random], float]) -> list[float]:
    turns = [0.0]
    while turns[-1] < HOUR:
        turns.append(turns[-1] + seconds(rng))
    return turns
