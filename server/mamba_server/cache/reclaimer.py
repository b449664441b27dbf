"""Reclaimer: allocates from the arena, and evicts unused memory from the tree where the arena is short.

The state cache is the only caller. The eviction policy decides which checkpoint goes first.
"""

from collections.abc import Callable, Sequence

from mamba_server.cache.arena import Allocation, AllocationSite, Arena, PageOwner
from mamba_server.cache.node import Node
from mamba_server.cache.protocol import CacheCounters
from mamba_server.cache.tree import RadixTree

_SPARING = frozenset((AllocationSite.PREFILL_CHECKPOINT, AllocationSite.BORROW))
"""Sites that evict no pinned checkpoint."""
NODES_PER_SWEEP = 8
"""Nodes that one call of `sweep` visits."""


class Reclaimer:
    """Takes memory from one arena, and evicts from one tree where the arena has too little free."""

    def __init__(self, arena: Arena, tree: RadixTree, counters: CacheCounters) -> None:
        self.arena = arena
        self.tree = tree
        self.counters = counters
        self.on_eviction: Callable[[Node], None] | None = None
        """Function called before a checkpoint is evicted, unless the checkpoint is forgotten or wrong."""
        self._to_sweep: list[Node] = []
        """Roots of the subtrees that may still hold forgotten checkpoints, themselves included."""

    def allocate(
        self,
        site: AllocationSite,
        *,
        live: int = 0,
        tracking: int = 0,
        pages: int = 0,
        writer: int = 0,
        evict: bool = True,
    ) -> Allocation | None:
        """Take slots (`live` ones first) and pages, all or none; return None if eviction cannot free enough.

        `writer`: number of the reception that gets a slot and the pages. `evict`: unused checkpoints and
        pages may be evicted for it. A refused call changes nothing (W6).
        """
        slots = live + tracking + (writer > 0)
        may_evict = evict and not self.arena.fits(slots, pages) and not self._spares_pins(site)
        if may_evict and self._can_make_room(slots, pages):
            self.make_room(slots, pages)
        return self.arena.allocate(site, live=live, tracking=tracking, pages=pages, writer=writer)

    def _spares_pins(self, site: AllocationSite) -> bool:
        """Return whether only pinned checkpoints are left to evict, which an allocation at `site` spares."""
        return site in _SPARING and bool(self.tree.pins) and self.tree.eviction.only_pins

    @property
    def available_pages(self) -> int:
        """Pages that can be allocated once everything unused has been evicted."""
        return self._room_without_pages(0) + self.tree.evictable_pages

    def _can_make_room(self, slots: int, pages: int) -> bool:
        """Return whether evicting everything unused would free enough."""
        room = self._room_without_pages(slots)
        if room >= 0:
            return not self.arena.pages_per_slab or pages <= room + self.tree.evictable_pages
        emptied = self.arena.emptiable_slabs + self.tree.evictable_slots - slots
        return emptied >= 0 and pages <= emptied * self.arena.pages_per_slab

    def _room_without_pages(self, slots: int) -> int:
        """Return the pages free once all checkpoints are evicted and `slots` taken; < 0 = too few slots."""
        spare = self.arena.free_slots + self.tree.evictable_slots - slots
        return spare if spare < 0 else self.arena.partial_pages + spare * self.arena.pages_per_slab

    def make_room(self, slots: int, pages: int) -> None:
        """Evict until `slots` and `pages` fit, or nothing is left to evict."""
        # Leaves without a checkpoint only show where prompts diverge. While pages are short they go before
        # everything that can be resumed, and no longer: they hardly ever free a slot, and a start that drops
        # all that have gathered would delay every answer.
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

    def displace_unused(self, slots: int, pages: int) -> None:
        """Evict until `slots` and `pages` fit, or the next victim is one that somebody may want.

        Somebody may want a checkpoint that is pinned, or from which a sequence has resumed.
        """
        eviction, per_slab = self.tree.eviction, self.arena.pages_per_slab
        if not self._can_make_room(slots, pages):
            return
        while not self.arena.fits(slots, pages):
            node = eviction.pop_bare_node() if per_slab and pages > self.arena.partial_pages else None
            if node is None:
                node = eviction.pop_checkpoint()
            if node is None:
                return
            if not node.slot:
                if not node.children and not node.kv_lock:
                    self._drop_leaf(node)
            elif not node.state_lock:
                if node.pin is not None or node.lineage is None or node.lineage.resumed:
                    eviction.offer(node)
                    return
                self.evict(node)

    def evict(self, node: Node, *, report: bool = True) -> None:
        """Evict the unlocked checkpoint of `node` and the pages that only this checkpoint could resume.

        With `report`, the eviction listener may copy the checkpoint before. A wrong one is not reported.
        """
        self.evict_state(node, report=report)
        self._drop_useless(node)

    def evict_state(self, node: Node, *, report: bool = True) -> None:
        """Evict the unlocked checkpoint of `node`, and no pages.

        With `report`, the eviction listener may copy it before.
        """
        self.counters.pins_given_up += report and node.pin is not None
        if report and self.on_eviction is not None and node.epoch == self.tree.epoch:
            self.on_eviction(node)
        self.tree.eviction.evicted(node)
        self.arena.free_slot(self.tree.drop_state(node))
        self.counters.evicted += 1

    def drop_forgotten(self, node: Node) -> None:
        """Drop the unlocked checkpoint of `node`, which a flush has forgotten, and pages only it needed."""
        self.arena.free_slot(self.tree.drop_state(node))
        self._drop_useless(node)

    def _drop_useless(self, node: Node) -> None:
        """Drop the pages that no checkpoint needs any more, now that `node` has lost its checkpoint.

        In an arena with slabs of pages, these may also be pages of the nodes below and above `node`. In any
        other arena, they are only the pages of `node`, and only if it is a leaf whose pages nobody reads.
        """
        if self.arena.pages_per_slab:
            self._drop_bare(node)
        elif not node.children and not node.kv_lock:
            self._drop_leaf(node)

    def _drop_bare(self, node: Node) -> None:
        """Drop the pages of `node`, and of nodes below and above it, that no checkpoint needs any more."""
        below = self.tree.bare_below(node)
        if below is None:
            return
        for descendant in reversed(below):
            self._drop_leaf(descendant)
        self.drop_upwards(node)

    def drop_upwards(self, node: Node) -> None:
        """Drop `node` and its ancestors up to the first that is in use."""
        leaf: Node | None = node
        while leaf is not None and leaf.parent is not None:
            if leaf.slot or leaf.kv_lock or leaf.children:
                return
            parent = leaf.parent
            self._drop_leaf(leaf)
            leaf = parent

    def _drop_leaf(self, node: Node) -> None:
        self.arena.free_pages_of(self.tree.remove_leaf(node), 0, PageOwner.TREE)

    # --- flush ---------------------------------------------------------------------------------------

    def flush(self, spared: Sequence[Node]) -> int:
        """Forget every checkpoint except `spared`, which sequences are reading; return the number lost.

        No forgotten checkpoint is resumed from now on. Its memory comes back when it is swept or needed, and
        not before its exports have ended.
        """
        lost = self.tree.forget(spared)
        self._to_sweep = list(self.tree.roots.values())
        return lost

    @property
    def sweeping(self) -> bool:
        """Whether forgotten checkpoints may still be in memory."""
        return bool(self._to_sweep)

    def sweep(self) -> None:
        """Drop some more of the forgotten checkpoints that are not in use."""
        pending, epoch = self._to_sweep, self.tree.epoch
        for _ in range(NODES_PER_SWEEP):
            if not pending:
                return
            node = pending.pop()
            # A node that was added after the flush is of the current epoch, or it is the upper part of a
            # split node, which goes with the nodes below it.
            pending.extend(node.children.values())
            if node.parent is None or node.epoch == epoch:
                continue
            if node.slot and not node.state_lock:
                self.arena.free_slot(self.tree.drop_state(node))
            self.drop_upwards(node)
