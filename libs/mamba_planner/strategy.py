"""The three strategies as reservations over one slot life cycle, and what else is known of each. Pure.

A strategy says how many tracking slots a running sequence holds and where checkpoints may come from; it has
no code path of its own, which is why it can be changed while serving. Planner and engine read it here.
"""

from dataclasses import dataclass
from typing import get_args

from mamba_api.choices import Strategy

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
MOST_ROBUST_FIRST: tuple[Strategy, ...] = ("ExtraBuffer", "ExtraBufferLazy", "NoBuffer")
"""Checkpoints while decoding: guaranteed, where a slot can be borrowed, where one happens to be free."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one running sequence holds beside its live slot."""

    name: Strategy
    tracking_slots: int
    """Held all the time."""
    tracks_decode: bool
    """Has slots for checkpoints while decoding; otherwise these go into slots that happen to be free. The
    planner does not count on such: the cache fills them."""
    borrows: bool
    """Takes one more slot around a boundary and gives the older back."""
    evicts_for_checkpoints: bool
    """A prefill checkpoint may push out a cached one; otherwise only a free slot is taken."""
    weakness: str
    """What the planner says against it where it ties with another."""

    @property
    def slots_per_sequence(self) -> int:
        """Slots in the budget of one running sequence."""
        return 1 + self.tracking_slots


def reservation(strategy: str, *, overlap: bool) -> Reservation:
    """The reservation of `strategy`. Raises ValueError for any other name.

    ExtraBuffer needs two tracking slots under overlap, since a launched step may still write one while the
    other holds the last complete checkpoint; without overlap one is enough only because the write and its
    commit are not separated by another launch, but the older checkpoint is then lost while it is overwritten.
    """
    match strategy:
        case "NoBuffer":
            return Reservation(
                strategy, 0, tracks_decode=False, borrows=False, evicts_for_checkpoints=False,
                weakness="decoding leaves checkpoints in free slots alone",
            )  # fmt: skip
        case "ExtraBufferLazy":
            return Reservation(
                strategy, 1, tracks_decode=True, borrows=True, evicts_for_checkpoints=True,
                weakness="checkpoints are skipped when no slot can be borrowed",
            )  # fmt: skip
        case "ExtraBuffer":
            return Reservation(
                strategy, 2 if overlap else 1, tracks_decode=True, borrows=False, evicts_for_checkpoints=True,
                weakness="it takes more slots for the same checkpoints",
            )  # fmt: skip
    first = ", ".join(STRATEGIES[:-1])
    raise ValueError(f"unknown strategy {strategy!r}: use {first} or {STRATEGIES[-1]}")


def decode_spacing(outputs: int, page_size: int, track_interval: int) -> int:
    """Tokens between the checkpoints of a sequence that has generated `outputs` tokens.

    A page at first, doubled whenever the output has, at most `track_interval`: of a short answer too, most
    is resumed by the next turn (at most a quarter is lost), for four more writes of the state a doubling.
    """
    doublings = max(0, (outputs // (4 * page_size)).bit_length() - 1)
    return min(page_size << doublings, track_interval)
