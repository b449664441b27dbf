"""Timeline of a traced sequence: its times, recorded by the core until the next delta carries them.

A sequence that is not traced has none. A decode step records nothing but the checkpoint it may write.
"""

from msgspec.structs import replace

from mamba_server.wire import Arrival, PrefillTiming, SequenceTimeline

MAX_PIECES = 32
"""Most pieces between two deltas; of a longer prompt, the last one stands for all that follow."""


class Timeline:
    """Collects what happened to one traced sequence and when, until `take` returns it.

    `traceparent` is the traceparent of its request's span.
    """

    __slots__ = ("_arrivals", "_checkpoints", "_pieces", "traceparent")

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent
        self._pieces: list[PrefillTiming] = []
        self._checkpoints: list[int] = []
        self._arrivals: list[Arrival] = []

    def arrival(self, arrival: Arrival) -> None:
        """Record an attempt to get the state of the prompt from elsewhere."""
        self._arrivals.append(arrival)

    def piece(self, timing: PrefillTiming) -> None:
        """Record that a piece has been computed."""
        if len(self._pieces) == MAX_PIECES and self._pieces[-1].preemptions == timing.preemptions:
            timing = joined(self._pieces.pop(), timing)
        self._pieces.append(timing)

    def checkpoint(self, depth: int) -> None:
        """Record that a decode step writes a checkpoint at `depth`."""
        self._checkpoints.append(depth)

    def take(self) -> SequenceTimeline | None:
        """Return and clear the times recorded since the last call; None = there are none."""
        if not self._pieces and not self._checkpoints and not self._arrivals:
            return None
        timeline = SequenceTimeline(tuple(self._pieces), tuple(self._checkpoints), tuple(self._arrivals))
        self._pieces, self._checkpoints, self._arrivals = [], [], []
        return timeline


def joined(first: PrefillTiming, second: PrefillTiming) -> PrefillTiming:
    """Merge two consecutive pieces of one prompt; the other requests are the requests of the second piece."""
    return replace(
        second,
        began=first.began,
        start=first.start,
        checkpoints=first.checkpoints + second.checkpoints,
        steps=first.steps + 1,
    )
