"""Takes memory from the arena, and makes room there by evicting from the tree what nobody uses just now.

Called by the state cache alone. Which checkpoint goes first is the eviction policy's business.
"""

from collections.abc import Sequence

from mamba_server.cache.arena import Allocation, AllocationSite, Arena, PageOwner
from mamba_server.cache.counters import CacheCounters
from mamba_server.cache.node import Node
from mamba_server.cache.tree import RadixTree

NODES_AT_ONCE = 8
"""Nodes that are swept before others may have their turn."""


class Reclaimer:
    """Gets memory out of one arena."""

    def __init__(self, arena: Arena, tree: RadixTree, counters: CacheCounters) -> None:
        self.arena = arena
        self.tree = tree
        self.counters = counters
        self._to_sweep: list[Node] = []
        """Nodes under which there is something to sweep, themselves included."""

    def allocate(
        self, site: AllocationSite, *, live: int = 0, tracking: int = 0, pages: int = 0, evict: bool = True
    ) -> Allocation | None:
        """Slots (`live` ones first) and pages, all or none; None if there is not enough, whatever goes.

        `evict`: what nobody uses just now may go for it; what is refused changes nothing (W6).
        """
        slots = live + tracking
        if evict and not self.arena.fits(slots, pages) and self._can_make_room(slots, pages):
            self.make_room(slots, pages)
        return self.arena.allocate(site, live=live, tracking=tracking, pages=pages)

    @property
    def available_pages(self) -> int:
        """Pages that could be had now, with everything evicted that nobody uses."""
        return self._room_without_pages(0) + self.tree.evictable_pages

    def _can_make_room(self, slots: int, pages: int) -> bool:
        """Whether evicting all that is evictable would be enough."""
        room = self._room_without_pages(slots)
        if room >= 0:
            return not self.arena.pages_per_slab or pages <= room + self.tree.evictable_pages
        emptied = self.arena.emptiable_slabs + self.tree.evictable_slots - slots
        return emptied >= 0 and pages <= emptied * self.arena.pages_per_slab

    def _room_without_pages(self, slots: int) -> int:
        """Pages there would be with every evictable checkpoint gone and `slots` taken; < 0: too few slots."""
        spare = self.arena.free_slots + self.tree.evictable_slots - slots
        return spare if spare < 0 else self.arena.partial_pages + spare * self.arena.pages_per_slab

    def make_room(self, slots: int, pages: int) -> None:
        """Evict until `slots` and `pages` fit, or nothing is left to evict."""
        # Leaves without a checkpoint only show where prompts part. They go before all that can be resumed
        # as long as pages are short, and no longer: slots hardly ever come of them, and the one start that
        # drops all that have gathered makes every answer wait.
        eviction = self.tree.eviction
        while not self.arena.fits(slots, pages):
            if self.sweeping:
                self.sweep()
                continue
            node = eviction.pop_bare_node() if pages > self.arena.partial_pages else None
            if node is None:
                node = eviction.pop_checkpoint() or eviction.pop_bare_node()
            if node is None:
                return
            if node.slot:
                if not node.state_lock:
                    self.evict(node)
            elif not node.children and not node.kv_lock:
                self._drop_leaf(node)

    def evict(self, node: Node) -> None:
        """Evict the checkpoint of `node` (not locked) and the pages that only it could resume."""
        self.tree.eviction.evicted(node)
        self.arena.free_slot(self.tree.drop_state(node))
        self.counters.evicted += 1
        if self.arena.pages_per_slab:
            self._drop_bare(node)
        elif not node.children and not node.kv_lock:
            self._drop_leaf(node)

    def _drop_bare(self, node: Node) -> None:
        """Drop the pages that no checkpoint needs any more: below `node`, its own and those above it."""
        below = self.tree.bare_below(node)
        if below is None:
            return
        for each in reversed(below):
            self._drop_leaf(each)
        self.drop_upwards(node)

    def drop_upwards(self, node: Node) -> None:
        """Drop `node` and what is above it, as far as nobody needs it."""
        at: Node | None = node
        while at is not None and at.parent is not None and not (at.slot or at.kv_lock or at.children):
            above = at.parent
            self._drop_leaf(at)
            at = above

    def _drop_leaf(self, node: Node) -> None:
        self.arena.free_pages_of(self.tree.remove_leaf(node), 0, PageOwner.TREE)

    # --- flush ---------------------------------------------------------------------------------------

    def flush(self, spared: Sequence[Node]) -> int:
        """Forget every checkpoint but `spared`, all that are locked; the number lost.

        Nothing of them is resumed from now on; their memory comes back as it is swept, or asked for.
        """
        lost = self.tree.forget(spared)
        self._to_sweep = list(self.tree.roots.values())
        return lost

    @property
    def sweeping(self) -> bool:
        """Some of what was flushed may still be there."""
        return bool(self._to_sweep)

    def sweep(self) -> None:
        """Drop some more of what was flushed and is not in use."""
        left, epoch = self._to_sweep, self.tree.epoch
        for _ in range(NODES_AT_ONCE):
            if not left:
                return
            node = left.pop()
            # What has come since under a node that was here is younger, or the upper part of a split, which
            # goes with what is below it.
            left.extend(node.children.values())
            if node.parent is None or node.epoch == epoch:
                continue
            if node.slot:
                self.arena.free_slot(self.tree.drop_state(node))
            self.drop_upwards(node)
