"""Donation: a sequence's checkpoint and the pages below it become the radix tree's.

Called by the state cache when the step that wrote a checkpoint is complete, and when a sequence ends.
Invariant names in comments are those of the state-cache page.
"""

import numpy as np

from mamba_server.cache.arena import Arena, PageOwner
from mamba_server.cache.counters import CacheCounters
from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.ghost_tree import CheckpointKind, GhostTree
from mamba_server.cache.node import Node, Tokens
from mamba_server.cache.sequence_allocation import Checkpoint, SequenceAllocation
from mamba_server.cache.slot_state import SlotState
from mamba_server.cache.tree import RadixTree


class Donation:
    """The way from sequences into `tree`."""

    def __init__(
        self,
        arena: Arena,
        tree: RadixTree,
        counters: CacheCounters,
        ghosts: GhostTree | None,
        cap: int,
    ) -> None:
        self._arena, self._tree, self._counters = arena, tree, counters
        self.ghosts = ghosts
        """What foresees returns; None where eviction does not ask."""
        self.cap = cap
        """Most checkpoints of a path while slots are short; a change counts from the next donation on."""

    def donate(
        self,
        allocation: SequenceAllocation,
        token_ids: Tokens,
        checkpoint: Checkpoint,
        step: int,
        *,
        capped: bool,
    ) -> None:
        """Move `checkpoint` (TRACK_READY or LIVE) and the pages below it to the tree, their owner now.

        `capped`: slots are short, so that the path keeps at most `cap` checkpoints.
        """
        count = checkpoint.depth // self._tree.page_size
        if checkpoint.depth % self._tree.page_size or count > allocation.page_count:
            raise LedgerViolation(f"P5: checkpoint at depth {checkpoint.depth} off the page grid")
        node, taken = self.insert(allocation, token_ids[: checkpoint.depth], checkpoint.slot, step)
        if taken:
            self._arena.move(checkpoint.slot, SlotState.CACHED)
            self._counters.made += 1
            if capped:
                self._cap_path(node, allocation.awaited)
        else:
            self._arena.free_slot(checkpoint.slot)
            self._counters.duplicates += 1

    def insert(
        self, allocation: SequenceAllocation, token_ids: Tokens, slot: int, step: int
    ) -> tuple[Node, bool]:
        """Pages, and the state in `slot` unless that is 0. Returns the node, and if it took the state."""
        count = len(token_ids) // self._tree.page_size
        pages = allocation.pages[:count]
        guess = len(token_ids) in allocation.placement.optional
        ghost, sighting = None, allocation.sighting
        if self.ghosts is not None and slot and sighting is not None:
            if count <= sighting.tip.depth:
                ghost = self.ghosts.ghost_at(
                    sighting, count, CheckpointKind.GRID if guess else CheckpointKind.END
                )
            else:
                ghost = self.ghosts.observe_answer(sighting, token_ids, allocation.salt)
        node, had, taken = self._tree.insert(token_ids, pages, slot, step, allocation.salt, ghost=ghost)
        if allocation.node is None or node.depth > allocation.node.depth:
            self._tree.lock(node, state=False)
            if allocation.node is not None:
                self._tree.unlock(allocation.node)
            allocation.node = node
        if self._arena.pages_per_slab:
            self._give_pages(allocation, node, count, had // self._tree.page_size)
        return node, taken

    def _give_pages(self, allocation: SequenceAllocation, node: Node, count: int, had: int) -> None:
        """Pages past the first `had` become the tree's; of the others the sequence takes the tree's copy."""
        if count > had:
            self._arena.give_pages_to_tree(allocation.pages[had:count])
        if not had:
            return
        of_tree = np.concatenate([each.pages for each in node.path()])[:had]
        own = allocation.pages[:had]
        if own.tobytes() != of_tree.tobytes():
            # Launched steps still read the copies: they go when the last of those is complete (O3: by fence).
            spare = own[own != of_tree]
            allocation.replace_pages(of_tree)
            self._arena.free_pages_of(spare, allocation.last_step, PageOwner.SEQUENCE)

    def _cap_path(self, node: Node, awaited: set[int]) -> None:
        """At most `cap` checkpoints on a path: ends and branches stay, the cheapest to lose goes.

        Those at the `awaited` depths stay too.
        """
        path = self._tree.checkpoints_on_path(node)
        while len(path) > self.cap:
            above = [0] + [each.depth for each in path[:-1]]
            droppable = [
                (each.depth - shallower if self.ghosts is None else self._tree.eviction.weigh(each), index)
                for index, (each, shallower) in enumerate(zip(path, above, strict=True))
                if each is not node
                and not each.state_lock
                and each.depth not in awaited
                and len(each.children) < 2
            ]
            if not droppable:
                return
            dropped = path.pop(min(droppable)[1])
            self._tree.eviction.evicted(dropped)
            self._arena.free_slot(self._tree.drop_state(dropped))
            self._counters.evicted += 1
