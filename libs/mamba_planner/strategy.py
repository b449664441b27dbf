"""The three state cache strategies: the slots that each reserves for a sequence, and its weakness. Pure.

A strategy says how many tracking slots a running sequence holds and where checkpoints may come from. It has
no code path of its own, which is why it can be changed while serving. Planner and engine read it here.
"""

from dataclasses import dataclass
from typing import get_args

from mamba_api.choices import Strategy

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
MOST_ROBUST_FIRST: tuple[Strategy, ...] = ("ExtraBuffer", "ExtraBufferLazy", "NoBuffer")
"""Strategies by how they get slots for checkpoints while decoding: guaranteed, if one can be borrowed, if one
happens to be free."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """How many slots one running sequence holds in addition to its live slot."""

    name: Strategy
    tracking_slots: int
    """Number of slots held all the time."""
    tracks_decode: bool
    """Whether there are slots for checkpoints while decoding. Otherwise such checkpoints go into slots that
    happen to be free, which the planner does not count on because the cache fills them."""
    borrows: bool
    """Whether a sequence takes one more slot around a boundary, and returns the older one."""
    evicts_for_checkpoints: bool
    """Whether a prefill checkpoint may evict a cached one; otherwise it needs a free slot."""
    weakness: str
    """Argument against the strategy if it ties with another."""

    @property
    def slots_per_sequence(self) -> int:
        """Slots in the budget of one running sequence."""
        return 1 + self.tracking_slots


def reservation(strategy: str, *, overlap: bool) -> Reservation:
    """Return the reservation of `strategy`. Raises ValueError for any other name.

    ExtraBuffer needs two tracking slots under overlap, because a launched step may still write one while the
    other holds the last complete checkpoint. Without overlap one is enough only because no other launch
    separates the write from its commit; the older checkpoint is then lost while it is overwritten.
    """
    match strategy:
        case "NoBuffer":
            return Reservation(
                strategy, 0, tracks_decode=False, borrows=False, evicts_for_checkpoints=False,
                weakness="decoding leaves checkpoints only in free slots",
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
    """Return the tokens between checkpoints of a sequence that has generated `outputs` tokens.

    The engine places checkpoints by this rule, and the planner estimates by it what the next turn recomputes.
    The spacing starts at one page and doubles whenever the output has doubled, up to `track_interval`. Thus
    the next turn resumes most of a short answer too (at most a quarter is lost), for four more writes of the
    state per doubling.
    """
    doublings = max(0, (outputs // (4 * page_size)).bit_length() - 1)
    return min(page_size << doublings, track_interval)


def slots_of_sequences(running: int, receiving: int, slots_each: int) -> int:
    """Return the slots of an engine's sequences, counting each arriving state as a running sequence."""
    return (running + receiving) * slots_each


def receptions_within(unused: int, receiving: int, slots_each: int) -> int:
    """Return how many further states may arrive, by the rule of `slots_of_sequences`.

    Args:
        unused: slots beyond the slots of running sequences and the one slot of each arriving state.
        receiving: number of states that arrive now.
        slots_each: slots of one running sequence.
    """
    promised = slots_of_sequences(0, receiving, slots_each) - receiving
    return max(0, (unused - promised) // slots_each)
