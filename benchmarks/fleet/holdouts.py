"""Traffic that no default was chosen by, to judge autoscalers on: other shapes, lengths and seeds.

The defaults were chosen on recorded traces, as they are and as more users. Here arrivals are generated: a
shape of an hour says how much of the busiest load comes at each second, and seeds differ from all in use
elsewhere. Deterministic. Pure.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from random import Random

from benchmarks.cache.workloads import agents, chat

from mamba_cli.bench.traces import Arrival
from mamba_cli.fleet.workload import PLAIN_BLOCK, Asked, Shape, Workload, scaled

HOUR = 3600.0
SEED = 7001
PEAK = 8.0
"""Requests a second at the busiest, of those without prefixes."""


def ramp(at: float) -> float:
    """A tenth at first, then more and more for three quarters of an hour, then all of it."""
    return min(1.0, 0.1 + 0.9 * at / (0.75 * HOUR))


def spiked(seed: int = SEED) -> Shape:
    """A day in an hour, least at ten minutes and most at forty; and six spikes of a minute or two."""
    rng = Random(f"spikes {seed}")
    spikes = [(rng.uniform(0, HOUR), rng.uniform(60, 120)) for _ in range(6)]

    def shape(at: float) -> float:
        base = 0.35 - 0.25 * math.cos(2 * math.pi * (at - 600) / HOUR)
        return min(1.0, base + 0.5 * any(begin <= at < begin + length for begin, length in spikes))

    return shape


def on_off(seed: int = SEED) -> Shape:
    """All of it and a twentieth of it in turns, each for some minutes."""
    rng = Random(f"on and off {seed}")
    turns = [0.0]
    while turns[-1] < HOUR:
        turns.append(turns[-1] + rng.uniform(150, 500))
    return lambda at: 0.05 if bisect_right(turns, at) % 2 else 1.0


def plain(shape: Shape, prompt: float, outputs: float, seed: int) -> Asked:
    """Prompts and answers of these mean lengths, log-normal, that begin alike nowhere; Poisson arrivals."""
    rng = Random(f"plain {seed}")

    def length(mean: float, sigma: float) -> int:
        return max(1, round(math.exp(rng.gauss(math.log(mean) - sigma * sigma / 2, sigma))))

    at, made = 0.0, list[Arrival]()
    while (at := at + rng.expovariate(PEAK)) < HOUR:
        if rng.random() < shape(at):
            made.append(Arrival(at, min(32_000, length(prompt, 1.0)), length(outputs, 0.8), ()))
    return Asked(Workload("plain", PLAIN_BLOCK, made), False)


def _cut(workload: Workload, shape: Shape, seed: int) -> Asked:
    """An hour of it, in that shape."""
    whole = Asked(workload, True)
    return scaled(whole, 1.0, min(1.0, whole.seconds / HOUR), shape, seed)


HOLDOUTS: dict[str, Callable[[], Asked]] = {
    "ramp": lambda: plain(ramp, 3000, 250, SEED),
    "day-with-spikes": lambda: plain(spiked(), 2000, 400, SEED + 1),
    "on-off": lambda: plain(on_off(), 4000, 60, SEED + 2),
    "agents": lambda: _cut(agents(26_000, SEED + 3), lambda _: 0.3, SEED + 3),
    "chat-with-spikes": lambda: _cut(chat(12_800, SEED + 4), spiked(SEED + 4), SEED + 4),
}
"""By name. `agents` and `chat-with-spikes` are variants of Mooncake's traces: prompts that begin alike, of
the lengths that were published of them."""


def holdout(name: str) -> Asked:
    """The one of that name."""
    found = HOLDOUTS[name]()
    return Asked(Workload(f"holdout-{name}", found.workload.block, found.workload.arrivals), found.identity)
