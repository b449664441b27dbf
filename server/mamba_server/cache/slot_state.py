"""Life cycle of a slot as one table, which drives the arena, the property tests and the exhaustive model.

A fence is a writer and a number. The forward stream's fences are steps: a move that follows a write of a step
waits until that step is complete. A writer outside the stream fills the memory of one reception, whose number
is its fence: a move that hands this memory on waits until somebody has seen the writer's end, since no time
and no step says when the last byte has landed. The arena calls `check_transition` for every move; the
explorer in the tests walks the same table.
"""

from enum import Enum

from mamba_server.cache.errors import LedgerViolation


class SlotState(Enum):
    """Where a slot is in its life: free, in use by a sequence or the tree, or waiting to be free again."""

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
    RECEIVING = "receiving"
    """A writer outside the forward stream fills the slot for a reception."""
    CONFIRMING = "confirming"
    """The bytes of the reception have landed and its writer has ended; they may still be wrong."""
    INSTALLED = "installed"
    """The slot holds a received checkpoint and belongs to the tree; the launch that completes it may still
    run."""
    EXPORTED = "exported"
    """The slot belongs to the tree, and a transfer outside the forward stream reads it."""
    QUARANTINED = "quarantined"
    """The reception was given up, but its writer may still write to the slot."""


STEP = 1
"""Fence before a move of a slot: the last step that names the slot must be complete."""
WRITER = 2
"""Fence before a move of a slot: the writer outside the forward stream must have ended."""

TRANSITIONS: dict[tuple[SlotState, SlotState], int] = {
    # (from, to): the fences that have to pass before the move, as a sum.
    (SlotState.FREE, SlotState.LIVE): 0,
    (SlotState.FREE, SlotState.TRACK_PENDING): 0,
    (SlotState.LIVE, SlotState.CACHED): STEP,
    (SlotState.TRACK_PENDING, SlotState.TRACK_READY): STEP,
    (SlotState.TRACK_READY, SlotState.TRACK_PENDING): 0,
    (SlotState.TRACK_READY, SlotState.CACHED): STEP,
    (SlotState.LIVE, SlotState.FENCED): 0,
    (SlotState.TRACK_PENDING, SlotState.FENCED): 0,
    (SlotState.TRACK_READY, SlotState.FENCED): 0,
    (SlotState.CACHED, SlotState.FENCED): 0,
    (SlotState.FENCED, SlotState.FREE): STEP + WRITER,
    (SlotState.FREE, SlotState.RECEIVING): STEP + WRITER,
    (SlotState.RECEIVING, SlotState.CONFIRMING): WRITER,
    (SlotState.RECEIVING, SlotState.QUARANTINED): 0,
    (SlotState.RECEIVING, SlotState.FENCED): WRITER,
    (SlotState.QUARANTINED, SlotState.FENCED): WRITER,
    (SlotState.CONFIRMING, SlotState.INSTALLED): WRITER,
    (SlotState.CONFIRMING, SlotState.FENCED): WRITER,
    (SlotState.INSTALLED, SlotState.CACHED): STEP,
    (SlotState.CACHED, SlotState.EXPORTED): STEP,
    (SlotState.EXPORTED, SlotState.CACHED): 0,
}


def check_transition(
    slot: int, old: SlotState, new: SlotState, *, fence: int, completed: int, writer: int = 0
) -> None:
    """Raise if the table does not have the move, or if one of its fences has not passed.

    `writer`: number of the reception whose writer may still write to the slot; 0 = there is none.

    Raises:
        LedgerViolation: names the slot, the move and the fence.
    """
    needed = TRANSITIONS.get((old, new))
    if needed is None:
        raise LedgerViolation(f"slot {slot}: no transition {old.name} -> {new.name}")
    if not needed:
        return
    if needed & STEP and fence > completed:
        raise LedgerViolation(
            f"slot {slot}: {old.name} -> {new.name} before the fence of step {fence} (completed {completed})"
        )
    if needed & WRITER and writer:
        raise LedgerViolation(
            f"T3: slot {slot}: {old.name} -> {new.name} before the end of the writer of reception {writer}"
        )
