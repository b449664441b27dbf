"""`TraceUnits`: what the numbers of a trace with `hash_ids` stand for, and whether its lines agree. Pure.

Several servers record traces with the fields of Mooncake's, some with seconds and with shorter blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

BLOCK_TOKENS = 512
TimeUnit = Literal["s", "ms", "us", "ns"]
SECONDS: dict[TimeUnit, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
MOST_RATE = 200.0
"""Requests a second beyond which a trace whose unit nobody named is taken for one in seconds."""
LEAST_RATE = 1 / 600
"""Requests a second below which such a trace is taken for one in a smaller unit."""
_BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Sizes of blocks that servers use."""
_FEW = 10
"""With fewer requests a rate says nothing."""


@dataclass(frozen=True, slots=True)
class TraceUnits:
    """Mooncake's own units by default."""

    block: int = BLOCK_TOKENS
    """Prompt tokens of one id."""
    seconds: float = SECONDS["ms"]
    """Seconds of one unit of the time stamps."""
    named: bool = True
    """Somebody named the unit of the time stamps."""

    @classmethod
    def of(cls, block: int | None, unit: TimeUnit | None) -> "TraceUnits":
        """Return the units of the options --block-tokens and --time-unit; None = not given."""
        return cls(block or BLOCK_TOKENS, SECONDS[unit or "ms"], unit is not None)

    def mismatch(self, input_tokens: int, ids: int) -> str | None:
        """Return what to say of a prompt that has more or fewer ids than its length; None = it has not."""
        if ids in (0, right := -(-input_tokens // self.block)):
            return None
        fitting = [block for block in _BLOCKS if -(-input_tokens // block) == ids]
        remedy = (
            f"if an id stands for {fitting[0]}, give --block-tokens {fitting[0]}"
            if fitting
            else "give --block-tokens with what an id stands for"
        )
        return (
            f"{ids} hash_ids for {input_tokens} tokens, which are {right} of {self.block} tokens; a prompt "
            f"has to be whole in its hash_ids: {remedy}"
        )

    def implausible(self, times: Sequence[float]) -> str | None:
        """Return what to say of ascending times in a unit that nobody named and that cannot be right."""
        span = times[-1] - times[0] if len(times) >= _FEW else 0.0
        if self.named or span <= 0:
            return None
        rate = (len(times) - 1) / span
        if LEAST_RATE <= rate <= MOST_RATE:
            return None
        often = f"{rate:,.0f} a second" if rate > MOST_RATE else f"one in {1 / rate:,.0f} s"
        return (
            f"{len(times):,} requests in {span:.3g} s are {often}{self.guess(times)}; if timestamps are in "
            "milliseconds all the same, give --time-unit ms"
        )

    def guess(self, times: Sequence[float]) -> str:
        """Return which units would make ascending times those of a trace, as the end of a sentence."""
        span, count = times[-1] - times[0], len(times) - 1
        if span <= 0 or LEAST_RATE <= count / span <= MOST_RATE:
            return ""
        spans = {unit: span / self.seconds * seconds for unit, seconds in SECONDS.items()}
        likely = [
            f"--time-unit {unit} ({found:.3g} s)"
            for unit, found in spans.items()
            if LEAST_RATE <= count / found <= MOST_RATE
        ]
        return f": give the unit of their timestamps, perhaps {' or '.join(likely)}" if likely else ""
