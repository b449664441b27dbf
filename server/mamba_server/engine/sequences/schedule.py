"""What one step does: the scheduler's decision, from which the step's arrays are made. Pure data."""

from dataclasses import dataclass

from mamba_server.cache import Checkpoint, Ints
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.wire import PrefillTiming

MOST_BESIDE = 4
"""Sampled requests that a piece names as computed beside it."""
_SAMPLED = "-01"


@dataclass(frozen=True, slots=True)
class PrefillPiece:
    """Tokens [start, stop) of one sequence. `slot_in`: where its state comes from; `final`: it samples."""

    sequence: Sequence
    start: int
    stop: int
    slot_in: int
    slot_out: int
    checkpoints: list[Checkpoint]
    final: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """One step. `decode_rows[i]` also writes its state to `decode_track[i]` (0 = nowhere)."""

    step: int
    decode_rows: Ints
    decode_track: Ints
    decodes: list[Sequence]
    pieces: list[PrefillPiece]

    @property
    def empty(self) -> bool:
        return not self.decodes and not self.pieces

    @property
    def members(self) -> list[Sequence]:
        """Every sequence that takes part: the decodes, then those of the pieces."""
        return [*self.decodes, *(piece.sequence for piece in self.pieces)]

    @property
    def sampling(self) -> list[Sequence]:
        """Every sequence that samples a token, in the order of the step's results."""
        return [*self.decodes, *(piece.sequence for piece in self.pieces if piece.final)]

    @property
    def tokens(self) -> int:
        return len(self.decodes) + sum(piece.stop - piece.start for piece in self.pieces)

    def timing(self, number: int, began: float, ended: float) -> PrefillTiming:
        """Piece `number`, which was computed between these two moments, and its company."""
        piece = self.pieces[number]
        traced = [each.sequence.timeline for each in self.pieces if each is not piece]
        beside = [each.traceparent for each in traced if each is not None]
        sampled = [each for each in beside if each.endswith(_SAMPLED)]
        return PrefillTiming(
            began=began,
            ended=ended,
            start=piece.start,
            stop=piece.stop,
            step=self.step,
            sequences=len(self.decodes) + len(self.pieces),
            tokens=self.tokens,
            checkpoints=tuple(each.depth for each in piece.checkpoints),
            beside=tuple(sampled[:MOST_BESIDE]),
            preemptions=piece.sequence.preemptions,
        )
