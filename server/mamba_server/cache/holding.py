"""What one running sequence holds of the arena: pages, live slot, tracking slots, locks.

Made by the state cache at admission and given back whole when the sequence ends or is preempted, so nothing
of it can survive (W9). The scheduler reads it; only the state cache changes it.
"""

from dataclasses import dataclass

import numpy as np

from mamba_server.cache.arena import Pages
from mamba_server.cache.ghosts import Sighting
from mamba_server.cache.node import Node
from mamba_server.cache.placement import Placement


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A slot that holds (or will hold) the state at `depth`."""

    depth: int
    slot: int


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """Written by launched step `step`; known to be complete when that step commits (O5)."""

    checkpoint: Checkpoint
    step: int
    decode: bool


class Holding:
    """One running sequence's share of the arena."""

    __slots__ = (
        "depth",
        "first_page",
        "last_step",
        "live",
        "match_node",
        "node",
        "page_count",
        "pages",
        "pages_changed",
        "pending",
        "placement",
        "ready",
        "resumed",
        "salt",
        "sighting",
        "slot_in",
        "spare",
        "worthwhile",
    )

    def __init__(self, salt: str, live: int, spare: list[int], placement: Placement) -> None:
        self.salt = salt
        self.first_page = b""
        """Tokens of the first page at admission: under them the prompt counts as being computed."""
        self.live = live
        self.spare = spare
        """Tracking slots with nothing in them."""
        self.ready: list[Checkpoint] = []
        """Complete checkpoints in tracking slots, shallow first."""
        self.pending: list[PendingCheckpoint] = []
        self.placement = placement
        self.worthwhile: frozenset[int] = frozenset()
        """Optional depths whose checkpoints promise more than what they would push out."""
        self.node: Node | None = None
        """Deepest tree node whose pages this sequence uses (page lock held)."""
        self.match_node: Node | None = None
        """Checkpoint read by the first forward (state lock held until its fence, O4)."""
        self.slot_in = -1
        """Where the next forward reads the state: -1 zeros, a checkpoint, or the live slot."""
        self.resumed = 0
        self.sighting: Sighting | None = None
        """Its prompt in the ghost tree."""
        self.depth = 0
        """Tokens folded into the live slot by launched steps."""
        self.last_step = 0
        self.pages: Pages = np.empty(0, np.int32)
        self.page_count = 0
        self.pages_changed = False
        """Some page ids were replaced by the tree's copies: whoever keeps them elsewhere reads them again."""

    def append_pages(self, pages: Pages) -> None:
        """Page ids after the ones already held; the array grows by doubling."""
        needed = self.page_count + len(pages)
        if needed > len(self.pages):
            grown = np.zeros(max(needed, 2 * len(self.pages), 8), np.int32)
            grown[: self.page_count] = self.pages[: self.page_count]
            self.pages = grown
        self.pages[self.page_count : needed] = pages
        self.page_count = needed

    @property
    def reserved(self) -> int:
        """Tracking slots under the strategy's reservation: not those of prefill checkpoints."""
        return len(self.spare) + len(self.ready) + sum(each.decode for each in self.pending)

    @property
    def tracking_slots(self) -> list[int]:
        """Every slot beside the live one, whatever it holds."""
        return (
            self.spare + [each.slot for each in self.ready] + [each.checkpoint.slot for each in self.pending]
        )
