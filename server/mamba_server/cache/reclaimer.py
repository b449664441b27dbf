"""Takes memory from the arena, and makes room there by evicting from the tree what nobody uses just now.

Called by the state cache alone. Which checkpoint goes first is the eviction policy's business.
"""

from mamba_server.cache.arena import AllocationSite, Arena, Grant, PageOwner
from mamba_server.cache.counters import CacheCounters
from mamba_server.cache.node import Node
from mamba_server.cache.tree import RadixTree


class Reclaimer:
    """Gets memory out of one arena."""

    def __init__(self, arena: Arena, tree: RadixTree, counters: CacheCounters) -> None:
        self.arena = arena
        self.tree = tree
        self.counters = counters

    def allocate(
        self, site: AllocationSite, *, live: int = 0, tracking: int = 0, pages: int = 0, evict: bool = True
    ) -> Grant | None:
        """Slots (`live` ones first) and pages, all or none; None if there is not enough, whatever goes.

        `evict`: what nobody uses just now may go for it; what is refused changes nothing (W6).
        """
        slots = live + tracking
        if evict and not self.arena.fits(slots, pages) and self._can_make(slots, pages):
            self.make(slots, pages)
        return self.arena.allocate(site, live=live, tracking=tracking, pages=pages)

    @property
    def available_pages(self) -> int:
        """Pages that could be had now, with everything evicted that nobody uses."""
        return self._room_without_pages(0) + self.tree.evictable_pages

    def _can_make(self, slots: int, pages: int) -> bool:
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

    def make(self, slots: int, pages: int) -> None:
        """Evict until `slots` and `pages` fit, or nothing is left to evict."""
        # Leaves without a checkpoint only show where prompts part. They are spared while slots alone are
        # short, and go before all that can be resumed when pages are.
        spare_leaves = pages <= self.arena.partial_pages
        eviction = self.tree.eviction
        while not self.arena.fits(slots, pages):
            node = None if spare_leaves else eviction.bare()
            if node is not None:
                if not node.children and not node.kv_lock:
                    self._drop_leaf(node)
                continue
            node = eviction.checkpoint()
            if node is not None:
                if not node.state_lock:
                    self.evict(node)
            elif spare_leaves:
                spare_leaves = False
            else:
                return

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
        at: Node | None = node
        while at is not None and at.parent is not None and not (at.slot or at.kv_lock or at.children):
            above = at.parent
            self._drop_leaf(at)
            at = above

    def _drop_leaf(self, node: Node) -> None:
        self.arena.free_pages_of(self.tree.remove_leaf(node), 0, PageOwner.TREE)

    def flush(self) -> int:
        """Evict everything that no running sequence uses; the number of checkpoints lost."""
        before = self.tree.checkpoints
        for node in sorted(self.tree.walk(), key=lambda each: -each.depth):
            if node.slot and not node.state_lock:
                self.arena.free_slot(self.tree.drop_state(node))
            if not node.slot and not node.children and not node.kv_lock:
                self._drop_leaf(node)
        return before - self.tree.checkpoints
