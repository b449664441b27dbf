"""How a traced sequence spends its time, noted by the core until the next delta tells it.

A sequence that nobody traces has none. A decode step notes nothing but the checkpoint it may write.
"""

from mamba_server.engine.schedule import Schedule
from mamba_server.wire import PrefillTiming, SequenceTimeline

MOST_PIECES = 32
"""Told apart between two deltas; of a longer prompt the last one stands for all that follow."""
MOST_BESIDE = 4
_SAMPLED = "-01"


class Timeline:
    """Of one sequence. `traceparent`: of the span of its request."""

    __slots__ = ("_checkpoints", "_pieces", "traceparent")

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent
        self._pieces: list[PrefillTiming] = []
        self._checkpoints: list[int] = []

    def piece(self, schedule: Schedule, number: int, began: float, ended: float) -> None:
        """Piece `number` of `schedule` was its own, and has been computed."""
        piece = schedule.pieces[number]
        beside = [
            each.sequence.timeline.traceparent
            for each in schedule.pieces
            if each is not piece
            and each.sequence.timeline is not None
            and each.sequence.timeline.traceparent.endswith(_SAMPLED)
        ]
        start, steps = piece.start, 1
        checkpoints = tuple(each.depth for each in piece.checkpoints)
        preemptions = piece.sequence.preemptions
        if len(self._pieces) == MOST_PIECES and self._pieces[-1].preemptions == preemptions:
            last = self._pieces.pop()
            began, start, steps = last.began, last.start, last.steps + 1
            checkpoints = last.checkpoints + checkpoints
        self._pieces.append(
            PrefillTiming(
                began, ended, start, piece.stop, schedule.step, len(schedule.decodes) + len(schedule.pieces),
                schedule.tokens, checkpoints, tuple(beside[:MOST_BESIDE]), preemptions, steps,
            )
        )  # fmt: skip

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
