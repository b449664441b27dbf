"""What one admitted sequence has of the arena beside its row: tracking slots, checkpoints under way, locks.

Made by the state cache at admission and given back whole when the sequence ends or is preempted, so nothing
of it can survive (W9: nothing is left of a preempted sequence). The engine reads it; only the state cache
changes it. How far the sequence has come stands in its row of the persistent batch and is read from there.
"""

from dataclasses import dataclass

from mamba_server.cache.arena import Pages
from mamba_server.cache.ghost_tree import GhostMatch
from mamba_server.cache.node import Node
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.placement import Placement


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A slot that holds (or will hold) the state at `depth`."""

    depth: int
    slot: int


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """Written by launched step `step`; known to be complete when that step commits, not before."""

    checkpoint: Checkpoint
    step: int
    decode: bool


class SequenceAllocation:
    """One admitted sequence's share of the arena; `row` of `batch` is its own."""

    __slots__ = (
        "_batch",
        "awaited",
        "awaits_commit",
        "distrusted_from",
        "first_page",
        "match_node",
        "node",
        "pending",
        "placement",
        "prefill_end",
        "ready",
        "resumed",
        "row",
        "salt",
        "sighting",
        "spare",
        "worthwhile",
    )

    def __init__(
        self, batch: PersistentBatch, row: int, salt: str, spare: list[int], placement: Placement
    ) -> None:
        self._batch = batch
        self.row = row
        self.salt = salt
        self.first_page: bytes | None = None
        """Tokens of the first page at admission: under them the prompt counts as being computed; None = it
        does not any more."""
        self.prefill_end = 0
        """Tokens to compute before the sequence decodes."""
        self.spare = spare
        """Tracking slots with nothing in them."""
        self.ready: list[Checkpoint] = []
        """Complete checkpoints in tracking slots, shallow first."""
        self.pending: list[PendingCheckpoint] = []
        self.awaits_commit = False
        """Whether the commit of a launched step changes something: `pending` or `match_node` is set. Kept as
        a field, since each sampled token asks."""
        self.placement = placement
        self.worthwhile: frozenset[int] = frozenset()
        """Optional depths whose checkpoints promise more than what they would push out."""
        self.awaited: set[int] = set()
        """Depths at which prompts that were put off wait for a state of this one."""
        self.sighting: GhostMatch | None = None
        """Its prompt in the ghost tree."""
        self.node: Node | None = None
        """Deepest tree node whose pages this sequence uses (page lock held)."""
        self.match_node: Node | None = None
        """Checkpoint read by the first forward (state lock held until that forward's fence)."""
        self.distrusted_from: int | None = None
        """Depth from which on what it left in the tree is not to be resumed; None = all is well."""
        self.resumed = self.depth
        """Tokens that it did not compute."""

    # --- its row, read ------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Tokens folded into the live slot by launched steps."""
        return int(self._batch.depth[self.row])

    @property
    def last_step(self) -> int:
        """The last launched step that names it; 0 = none yet."""
        return int(self._batch.last_step[self.row])

    @property
    def live(self) -> int:
        """The live slot; 0 once it has been donated."""
        return int(self._batch.live[self.row])

    @property
    def page_count(self) -> int:
        """How many pages it has, its own and the tree's."""
        return int(self._batch.page_count[self.row])

    @property
    def pages(self) -> Pages:
        """Its page ids, in the order of the tokens: the row itself, no copy."""
        return self._batch.pages[self.row, : self.page_count]

    @property
    def decodes(self) -> bool:
        """Whether a token may be sampled beyond that which the last launched step samples."""
        return self.depth < int(self._batch.last_depth[self.row])

    def replace_pages(self, pages: Pages) -> None:
        """Others in the place of its first ones, with the same keys and values."""
        self._batch.replace_pages(self.row, pages)

    @property
    def slot_in(self) -> int:
        """Where the next forward reads the state: -1 = zeros, a checkpoint, or the live slot."""
        if self.last_step:
            return self.live
        return self.match_node.slot if self.match_node is not None else -1

    # --- its prefix ---------------------------------------------------------------------------------

    def own_pages(self, page_size: int) -> int:
        """Return the pages that only this sequence uses: they can be had once it is gone."""
        node = self.node
        while node is not None and node.kv_lock == 1:
            node = node.parent
        return self.page_count - (node.depth // page_size if node is not None else 0)

    @property
    def seen_pages(self) -> int:
        """Pages of the prompt that an earlier prompt began with, cached or not; 0 where the cache does not
        remember prompts."""
        return self.sighting.shared if self.sighting is not None else 0

    # --- its checkpoints ----------------------------------------------------------------------------

    def pending_depths(self) -> list[int]:
        """Return the depths of the prefill checkpoints that launched steps are writing."""
        return [each.checkpoint.depth for each in self.pending if not each.decode]

    def coming_depths(self) -> list[int]:
        """Return the depths of the prefill checkpoints that are planned or being written."""
        planned = [depth for depth in self.placement.depths if depth > self.depth]
        return planned + self.pending_depths()

    # --- its slots ----------------------------------------------------------------------------------

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
