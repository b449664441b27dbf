"""Generated hours that no default was chosen by, to judge autoscalers on: other shapes, lengths, seeds. Pure.

They were written down before the autoscaler was run on any of them.
"""

from collections.abc import Callable

from benchmarks.fleet.generated_hours import LengthDistribution, named, plain
from benchmarks.fleet.shapes import HOUR, bursts, constant, drift, evening, on_off, spiked

from mamba_cli.fleet.workload import RequestStream

SEED = 9101

HOLDOUTS: dict[str, Callable[[], RequestStream]] = {
    "drift": lambda: plain(drift(SEED), 14.0, LengthDistribution(2200, 180), SEED),
    "short-bursts": lambda: plain(
        bursts(SEED + 1, 0.25, 240, 20, 60), 16.0, LengthDistribution(1800, 120), SEED + 1
    ),
    "heavy-tails": lambda: plain(
        bursts(SEED + 2, 0.6, 500, 60, 200), 9.0, LengthDistribution(3000, 250, tail=0.5), SEED + 2
    ),
    "evening": lambda: plain(evening, 18.0, LengthDistribution(1500, 350), SEED + 3),
    "late-crowd": lambda: plain(
        lambda at: 1.0 if HOUR / 2 <= at < HOUR / 2 + 700 else 0.15,
        12.0, LengthDistribution(2500, 150), SEED + 4,
    ),
    "shorter": lambda: plain(
        constant(1.0), 5.0, LengthDistribution(1200, 200), SEED + 5, others=LengthDistribution(12_000, 300),
        share=lambda at: 0.4 if at < HOUR / 2 else 0.0,
    ),
    "two-days-with-spikes": lambda: plain(
        spiked(SEED + 6, days=2), 14.0, LengthDistribution(2000, 300), SEED + 6
    ),
    "slow-on-off": lambda: plain(
        on_off(SEED + 7, 200, 1100, 0.1, begins=True), 10.0, LengthDistribution(3000, 120), SEED + 7
    ),
}  # fmt: skip
"""By name."""


def holdout(name: str) -> RequestStream:
    """Return the holdout hour of that name."""
    return named(name, HOLDOUTS, "holdout")
