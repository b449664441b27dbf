"""`TraceUnits`: the units of a trace with `hash_ids`, and checks whether its lines agree with them. Pure.

Several servers record traces with the fields of Mooncake, some in seconds and with shorter blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

BLOCK_TOKENS = 512
"""Prompt tokens of one id in traces of Mooncake."""
TimeUnit = Literal["s", "ms", "us", "ns"]
SECONDS: dict[TimeUnit, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
MAX_RATE = 200.0
"""Requests per second above which the assumed unit of a trace is implausible."""
MIN_RATE = 1 / 600
"""Requests per second below which the assumed unit of a trace is implausible."""
_BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Sizes of blocks in tokens that servers use."""
_MIN_REQUESTS = 10
"""Smallest number of requests from which a rate is computed."""


@dataclass(frozen=True, slots=True)
class TraceUnits:
    """Units in which one trace gives times and lengths; by default those of Mooncake."""

    block: int = BLOCK_TOKENS
    """Number of prompt tokens of one id."""
    seconds: float = SECONDS["ms"]
    """Length in seconds of one unit of the timestamps."""
    named: bool = True
    """Whether the user named the unit of the timestamps."""

    @classmethod
    def of(cls, block: int | None, unit: TimeUnit | None) -> "TraceUnits":
        """Return the units for the options --block-tokens and --time-unit; None = the option is absent."""
        return cls(block or BLOCK_TOKENS, SECONDS[unit or "ms"], unit is not None)

    def mismatch(self, input_tokens: int, ids: int) -> str | None:
        """Return an error if the number of ids does not fit the length of the prompt, else None."""
        if ids in (0, right := -(-input_tokens // self.block)):
            return None
        fitting = [block for block in _BLOCKS if -(-input_tokens // block) == ids]
        remedy = (
            f"if an id stands for {fitting[0]}, give --block-tokens {fitting[0]}"
            if fitting
            else "give the number of tokens of one id as --block-tokens"
        )
        return (
            f"{ids} hash_ids for a prompt of {input_tokens} tokens, which has {right} blocks of {self.block} "
            f"tokens; the hash_ids must cover the whole prompt: {remedy}"
        )

    def implausible(self, times: Sequence[float]) -> str | None:
        """Return an error if the assumed unit of the ascending `times` is implausible.

        The result is None if it is plausible, if the user named the unit, and if there are too few times to
        tell.
        """
        span = times[-1] - times[0] if len(times) >= _MIN_REQUESTS else 0.0
        if self.named or span <= 0:
            return None
        rate = (len(times) - 1) / span
        if MIN_RATE <= rate <= MAX_RATE:
            return None
        frequency = f"{rate:,.0f} per second" if rate > MAX_RATE else f"one in {1 / rate:,.0f} s"
        return (
            f"{len(times):,} requests in {span:.3g} s are {frequency}{self.guess(times)}; if the "
            "timestamps are in milliseconds nevertheless, give --time-unit ms"
        )

    def guess(self, times: Sequence[float]) -> str:
        """Return the end of an error message: the units in which the ascending `times` would be plausible."""
        span, count = times[-1] - times[0], len(times) - 1
        if span <= 0 or MIN_RATE <= count / span <= MAX_RATE:
            return ""
        spans = {unit: span / self.seconds * seconds for unit, seconds in SECONDS.items()}
        likely = [
            f"--time-unit {unit} ({span_seconds:.3g} s)"
            for unit, span_seconds in spans.items()
            if MIN_RATE <= count / span_seconds <= MAX_RATE
        ]
        return f": give the unit of their timestamps, perhaps {' or '.join(likely)}" if likely else ""
