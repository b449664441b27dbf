"""The three strategies as reservations over one slot life cycle.

A strategy says how many tracking slots a running sequence holds and where checkpoints may come from; it has
no code path of its own, which is why it can be changed while serving.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one running sequence holds beside its live slot."""

    name: str
    tracking_slots: int
    """Held all the time."""
    tracks_decode: bool
    """Writes a checkpoint at each track interval while decoding."""
    borrows: bool
    """Takes one more slot around a boundary and gives the older back."""
    evicts_for_checkpoints: bool
    """A prefill checkpoint may push out a cached one; otherwise only a free slot is taken."""

    @property
    def slots_per_sequence(self) -> int:
        """Slots in the budget of one running sequence."""
        return 1 + self.tracking_slots


def reservation(strategy: str, *, overlap: bool) -> Reservation:
    """The reservation of `strategy`.

    ExtraBuffer needs two tracking slots under overlap, since a launched step may still write one while the
    other holds the last complete checkpoint; without overlap one is enough only because the write and its
    commit are not separated by another launch, but the older checkpoint is then lost while it is overwritten.
    """
    match strategy:
        case "NoBuffer":
            return Reservation(strategy, 0, tracks_decode=False, borrows=False, evicts_for_checkpoints=False)
        case "ExtraBufferLazy":
            return Reservation(strategy, 1, tracks_decode=True, borrows=True, evicts_for_checkpoints=True)
        case "ExtraBuffer":
            slots = 2 if overlap else 1
            return Reservation(
                strategy, slots, tracks_decode=True, borrows=False, evicts_for_checkpoints=True
            )
    raise ValueError(f"unknown strategy {strategy!r}: use NoBuffer, ExtraBuffer or ExtraBufferLazy")
