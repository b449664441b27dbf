"""`Capacity`: what a state cache holds and could give at one moment."""

from typing import NamedTuple


class Capacity(NamedTuple):
    """Snapshot of the memory of one cache: the arena, and what eviction could add to it.

    A tuple, since the scheduler takes a few of them in each step.
    """

    page_size: int
    """Tokens of a page."""
    slabs: int
    """Slabs of the arena without that of padding: each is one slot, or `pages_per_slab` pages."""
    pages_per_slab: int
    """0 = pages take no memory, as in a model without attention."""
    slots_per_sequence: int
    """Slots that the strategy in force reserves for a sequence, the live one included."""
    free_slots: int
    evictable_slots: int
    """Slots of checkpoints that no sequence is reading."""
    free_pages: int
    evictable_pages: int
    """Pages of the tree that no running sequence uses."""
    available_pages: int
    """Pages that could be had with everything evicted that can be; slabs of free slots count as pages."""
    checkpoints: int
    """Checkpoints in the tree."""
    admitted: int
    """Sequences that were admitted and have not ended or been preempted."""
    retiring: int
    """Sequences that have ended and whose memory comes back with a later fence."""
    returning: bool
    """Whether a step in flight holds memory that comes back with its fence."""
    accepts_checkpoints: bool
    """Whether a prefill that starts now will get slots for its checkpoints, as far as can be foreseen."""

    def pages_for(self, tokens: int) -> int:
        """Return the pages of a sequence of `tokens` tokens."""
        return -(-tokens // self.page_size)

    def never_fits(self, tokens: int, slots_per_sequence: int | None = None) -> bool:
        """Tell whether a sequence of `tokens` tokens could not even run with the arena to itself.

        `slots_per_sequence`: of another strategy than the one in force.
        """
        slots = self.slots_per_sequence if slots_per_sequence is None else slots_per_sequence
        slabs = self.slabs - slots
        return slabs < 0 or (self.pages_per_slab > 0 and self.pages_for(tokens) > slabs * self.pages_per_slab)
