"""How a traced sequence spends its time, noted by the core until the next delta tells it.

A sequence that nobody traces has none. A decode step notes nothing but the checkpoint it may write.
"""

from msgspec.structs import replace

from mamba_server.wire import PrefillTiming, SequenceTimeline

MOST_PIECES = 32
"""Told apart between two deltas; of a longer prompt the last one stands for all that follow."""


class Timeline:
    """Of one sequence. `traceparent`: of the span of its request."""

    __slots__ = ("_checkpoints", "_pieces", "traceparent")

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent
        self._pieces: list[PrefillTiming] = []
        self._checkpoints: list[int] = []

    def piece(self, timing: PrefillTiming) -> None:
        """One of its pieces has been computed."""
        if len(self._pieces) == MOST_PIECES and self._pieces[-1].preemptions == timing.preemptions:
            timing = joined(self._pieces.pop(), timing)
        self._pieces.append(timing)

    def checkpoint(self, depth: int) -> None:
        """A decode step writes one."""
        self._checkpoints.append(depth)

    def take(self) -> SequenceTimeline | None:
        """What was noted since the last time; None = nothing."""
        if not self._pieces and not self._checkpoints:
            return None
        told = SequenceTimeline(tuple(self._pieces), tuple(self._checkpoints))
        self._pieces, self._checkpoints = [], []
        return told


def joined(first: PrefillTiming, second: PrefillTiming) -> PrefillTiming:
    """Two pieces of one prompt told as one, beside those that were beside the second."""
    return replace(
        second,
        began=first.began,
        start=first.start,
        checkpoints=first.checkpoints + second.checkpoints,
        steps=first.steps + 1,
    )
