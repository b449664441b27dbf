"""Generated hours of requests: shapes of arrivals with lengths of a kind. Deterministic by seed. Pure."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from benchmarks.fleet.shapes import HOUR

from mamba_cli.bench.traces import Arrival
from mamba_cli.fleet.workload import PLAIN_BLOCK, RateShape, RequestStream, TraceWorkload, scaled

LONGEST = 32_000
"""Tokens of a prompt, at most."""


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Log-normal lengths of prompts and answers; of a share of the prompts, Pareto's with a heavy tail."""

    prompt: float
    outputs: float
    tail: float = 0.0
    """Share of the prompts with an infinite variance: Pareto's of exponent 1.5, and of the same mean."""

    def draw(self, rng: Random) -> tuple[int, int]:
        """Draw the lengths of one request."""
        if self.tail and rng.random() < self.tail:
            prompt = self.prompt / 3 * rng.paretovariate(1.5)
        else:
            prompt = _lognormal(rng, self.prompt, 1.0)
        return max(1, min(LONGEST, round(prompt))), max(1, round(_lognormal(rng, self.outputs, 0.8)))


def _lognormal(rng: Random, mean: float, sigma: float) -> float:
    return math.exp(rng.gauss(math.log(mean) - sigma * sigma / 2, sigma))


def plain(
    shape: RateShape,
    peak: float,
    lengths: LengthDistribution,
    seed: int,
    *,
    others: LengthDistribution | None = None,
    share: RateShape = lambda _: 0.0,
) -> RequestStream:
    """Return prompts that begin alike nowhere; Poisson arrivals, `peak` a second at the busiest.

    At each second, `share` of the requests have lengths of the `others`.
    """
    rng = Random(f"plain {seed}")
    at, arrivals = 0.0, list[Arrival]()
    while (at := at + rng.expovariate(peak)) < HOUR:
        if rng.random() < shape(at):
            kind = others if others is not None and rng.random() < share(at) else lengths
            arrivals.append(Arrival(at, *kind.draw(rng), ()))
    return RequestStream(TraceWorkload("plain", PLAIN_BLOCK, arrivals), False)


def cut(workload: TraceWorkload, shape: RateShape, seed: int) -> RequestStream:
    """Cut an hour of that shape from a generated workload."""
    whole = RequestStream(workload, True)
    return scaled(whole, 1.0, min(1.0, whole.seconds / HOUR), shape, seed)


def named(name: str, hours: dict[str, Callable[[], RequestStream]], prefix: str) -> RequestStream:
    """Return the hour of that name among `hours`, called `prefix` and its name."""
    stream = hours[name]()
    return RequestStream(
        TraceWorkload(f"{prefix}-{name}", stream.workload.block, stream.workload.arrivals), stream.identity
    )
