"""Generated hours that the autoscaler's defaults were chosen by, beside recorded traces. Pure.

The first five were held out at first. Since the autoscaler was changed for what they showed, they are so no
more.
"""

from collections.abc import Callable

from benchmarks.cache.workloads import agents, chat
from benchmarks.fleet.generated_hours import LengthDistribution, cut, named, plain
from benchmarks.fleet.shapes import HOUR, bursts, constant, on_off, ramp, spiked

from mamba_cli.fleet.workload import RequestStream

SEED = 7001
PEAK = 8.0
"""Requests a second at the busiest."""

PRACTICE: dict[str, Callable[[], RequestStream]] = {
    "ramp": lambda: plain(ramp, PEAK, LengthDistribution(3000, 250), SEED),
    "day-with-spikes": lambda: plain(spiked(SEED), PEAK, LengthDistribution(2000, 400), SEED + 1),
    "on-off": lambda: plain(on_off(SEED), PEAK, LengthDistribution(4000, 60), SEED + 2),
    "agents": lambda: cut(agents(26_000, SEED + 3), constant(0.3), SEED + 3),
    "chat-with-spikes": lambda: cut(chat(12_800, SEED + 4), spiked(SEED + 4), SEED + 4),
    "crowds": lambda: plain(
        bursts(SEED + 5, 0.02, 400, 100, 300), 15.0, LengthDistribution(2500, 150), SEED + 5
    ),
    "constant": lambda: plain(constant(1.0), 12.0, LengthDistribution(2500, 200), SEED + 6),
    "longer": lambda: plain(
        constant(1.0), 6.0, LengthDistribution(1000, 200), SEED + 7, others=LengthDistribution(14_000, 300),
        share=lambda at: 0.0 if at < HOUR / 2 else 0.4,
    ),
}  # fmt: skip
"""By name. `agents` and `chat-with-spikes` are variants of Mooncake's traces: prompts that begin alike, of
the lengths that were published of them. In `longer` four prompts of ten are long from half-way on."""


def practice(name: str) -> RequestStream:
    """Return the practice hour of that name."""
    return named(name, PRACTICE, "practice")
