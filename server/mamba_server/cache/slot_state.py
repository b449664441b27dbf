"""Life cycle of a slot as one table, which drives the arena, the property tests and the exhaustive model.

A transition that follows a device write is legal only after a fence: the step whose completion makes the
write visible. The arena calls `check_transition` for every move; the explorer in the tests walks the same
table.
"""

from enum import Enum

from mamba_server.cache.errors import LedgerViolation


class SlotState(Enum):
    """State of one slot."""

    # Hash by identity: every move looks states up, and the hash of an Enum is Python code.
    __hash__ = object.__hash__

    FREE = "free"
    LIVE = "live"
    """The slot is updated by a running sequence."""
    TRACK_PENDING = "track_pending"
    """The slot is reserved for a checkpoint, or a launched step whose fence has not passed names it."""
    TRACK_READY = "track_ready"
    """The slot holds a complete checkpoint and still belongs to the sequence."""
    CACHED = "cached"
    """The slot belongs to the tree, locked or not."""
    FENCED = "fenced"
    """The slot was returned, but a launched step still names it."""


TRANSITIONS: dict[tuple[SlotState, SlotState], bool] = {
    # (from, to): whether the move needs the fence of the last step that names the slot.
    (SlotState.FREE, SlotState.LIVE): False,
    (SlotState.FREE, SlotState.TRACK_PENDING): False,
    (SlotState.LIVE, SlotState.CACHED): True,
    (SlotState.TRACK_PENDING, SlotState.TRACK_READY): True,
    (SlotState.TRACK_READY, SlotState.TRACK_PENDING): False,
    (SlotState.TRACK_READY, SlotState.CACHED): True,
    (SlotState.LIVE, SlotState.FENCED): False,
    (SlotState.TRACK_PENDING, SlotState.FENCED): False,
    (SlotState.TRACK_READY, SlotState.FENCED): False,
    (SlotState.CACHED, SlotState.FENCED): False,
    (SlotState.FENCED, SlotState.FREE): True,
}


def check_transition(slot: int, old: SlotState, new: SlotState, *, fence: int, completed: int) -> None:
    """Raise if the table does not have the move, or if its fence has not passed.

    Raises:
        LedgerViolation: names the slot, the move and the fence.
    """
    needs_fence = TRANSITIONS.get((old, new))
    if needs_fence is None:
        raise LedgerViolation(f"slot {slot}: no transition {old.name} -> {new.name}")
    if needs_fence and fence > completed:
        raise LedgerViolation(
            f"slot {slot}: {old.name} -> {new.name} before the fence of step {fence} (completed {completed})"
        )
