"""Donation: a sequence's checkpoint and the pages below it become the radix tree's.

The state cache calls it when the step that wrote a checkpoint is complete, and when a sequence ends.
Invariant names in comments are those of the state-cache page. A call that breaks an invariant raises
LedgerViolation.
"""

import numpy as np

from mamba_server.cache.arena import Arena, PageOwner
from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.ghost_tree import CheckpointKind, GhostTree
from mamba_server.cache.node import Node, Tokens
from mamba_server.cache.reclaimer import Reclaimer
from mamba_server.cache.sequence_allocation import Checkpoint, SequenceAllocation
from mamba_server.cache.slot_state import SlotState
from mamba_server.cache.tree import RadixTree


class Donation:
    """Moves complete checkpoints and their pages from sequences into the radix tree, their new owner.

    `cap` is the most checkpoints that a path keeps while slots are short.
    """

    def __init__(
        self,
        arena: Arena,
        tree: RadixTree,
        reclaimer: Reclaimer,
        ghosts: GhostTree | None,
        cap: int,
    ) -> None:
        self._arena, self._tree, self._reclaimer = arena, tree, reclaimer
        self._counters = reclaimer.counters
        self.ghosts = ghosts
        """Ghost tree that predicts returns; None with an eviction policy that uses no prediction."""
        self.cap = cap
        """Most checkpoints that a path keeps while slots are short; a new value applies from the next
        donation on."""

    def donate(
        self,
        allocation: SequenceAllocation,
        token_ids: Tokens,
        checkpoint: Checkpoint,
        step: int,
        *,
        capped: bool,
    ) -> None:
        """Move `checkpoint` and the pages below it to the tree, their new owner.

        `checkpoint` is in state TRACK_READY or LIVE. `capped`: slots are short, so the path keeps at most
        `cap` checkpoints, and others on it are dropped.
        """
        if allocation.untrusted_from is not None:
            # The sequence runs on text that was computed from a wrong checkpoint.
            self._arena.free_slot(checkpoint.slot)
            return
        count = checkpoint.depth // self._tree.page_size
        if checkpoint.depth % self._tree.page_size or count > allocation.page_count:
            raise LedgerViolation(f"P5: checkpoint at depth {checkpoint.depth} off the page grid")
        node, accepted = self.insert(allocation, token_ids[: checkpoint.depth], checkpoint.slot, step)
        if accepted:
            self._arena.move(checkpoint.slot, SlotState.CACHED)
            self._counters.created += 1
            if capped:
                self.cap_path(node, allocation.awaited_depths)
        else:
            self._arena.free_slot(checkpoint.slot)
            self._counters.duplicates += 1

    def insert(
        self, allocation: SequenceAllocation, token_ids: Tokens, slot: int, step: int
    ) -> tuple[Node, bool]:
        """Insert the pages of `token_ids`, and the state in `slot` unless that is 0.

        Return the node that ends there, and whether the tree took the state. `step` wrote the state.
        """
        count = len(token_ids) // self._tree.page_size
        pages = allocation.pages[:count]
        is_optional = len(token_ids) in allocation.placement.optional
        ghost, ghost_match = None, allocation.ghost_match
        if self.ghosts is not None and slot and ghost_match is not None:
            if count <= ghost_match.tip.depth:
                ghost = self.ghosts.ghost_at(
                    ghost_match, count, CheckpointKind.GRID if is_optional else CheckpointKind.END
                )
            else:
                ghost = self.ghosts.observe_answer(ghost_match, token_ids, allocation.salt)
        node, present, accepted = self._tree.insert(
            token_ids, pages, slot, step, allocation.salt, ghost=ghost, client=allocation.client
        )
        if accepted:
            node.lineage = allocation.lineage_at(node.depth, step)
        if allocation.node is None or node.depth > allocation.node.depth:
            self._tree.lock(node, state=False)
            if allocation.node is not None:
                self._tree.unlock(allocation.node)
            allocation.node = node
        if self._arena.pages_per_slab:
            self._give_pages(allocation, node, count, present // self._tree.page_size)
        return node, accepted

    def _give_pages(self, allocation: SequenceAllocation, node: Node, count: int, present: int) -> None:
        """Give the tree the first `count` pages of the sequence, except the first `present`, which it has.

        The sequence uses the tree's pages instead of its own copies of these from now on.
        """
        if count > present:
            self._arena.give_pages_to_tree(allocation.pages[present:count])
        if not present:
            return
        of_tree = np.concatenate([ancestor.pages for ancestor in node.path()])[:present]
        own = allocation.pages[:present]
        if own.tobytes() != of_tree.tobytes():
            # Launched steps still read the copies, so the copies are freed by the fence of the last such step
            # (O3).
            spare = own[own != of_tree]
            allocation.replace_pages(of_tree)
            self._arena.free_pages_of(spare, allocation.last_step, PageOwner.SEQUENCE)

    def cap_path(self, node: Node, awaited_depths: set[int]) -> None:
        """Drop checkpoints from the path to `node` until it has at most `cap`, the cheapest to lose first.

        Ends, branches and the checkpoints at `awaited_depths` stay.
        """
        path = self._tree.checkpoints_on_path(node)
        while len(path) > self.cap:
            above = [0] + [candidate.depth for candidate in path[:-1]]
            droppable = [
                (
                    candidate.depth - shallower
                    if self.ghosts is None
                    else self._tree.eviction.weigh(candidate),
                    index,
                )
                for index, (candidate, shallower) in enumerate(zip(path, above, strict=True))
                if candidate is not node
                and not candidate.state_lock
                and candidate.pin is None
                and candidate.depth not in awaited_depths
                and len(candidate.children) < 2
            ]
            if not droppable:
                return
            dropped = path.pop(min(droppable)[1])
            self._reclaimer.evict_state(dropped)
