"""Quarantine: wrong checkpoints leave the tree for good, with everything that was computed from them.

`RadixStateCache` is a `Quarantine`. It also lends memory to audits, which compute an answer again to find out
whether a checkpoint is wrong. Invariant names in comments are those of the state-cache page.
"""

import numpy as np

from mamba_server.cache.arena import AllocationSite
from mamba_server.cache.lineage import Lineage
from mamba_server.cache.node import UNTRUSTED, Node, Tokens
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.placement import Placement
from mamba_server.cache.protocol import Quarantined
from mamba_server.cache.sequence_allocation import SequenceAllocation
from mamba_server.cache.transit import Transit

AUDIT_SHARE = 0.5
"""Largest share of the arena that one audit takes."""


class Quarantine(Transit):
    """Cache of one device, as far as wrong checkpoints and the search for them are concerned."""

    batch: PersistentBatch
    allocations: dict[int, SequenceAllocation]

    # --- checkpoints that are wrong ------------------------------------------------------------------

    def quarantine(self, token_ids: Tokens, salt: str) -> list[Quarantined]:
        """Withdraw the checkpoint of the prefix `token_ids` and all that continue it; return them.

        Every checkpoint that was computed from the wrong one continues its text, and so do all pages that
        were written from it. What others read is forgotten now and freed by `release_condemned`. Sequences
        that run on such text give nothing to the tree any more.
        """
        nodes = self.tree.nodes_from(token_ids, salt)
        withdrawn = []
        for node in nodes:
            if node.slot:
                prefix = np.concatenate([each.token_ids for each in node.path()])
                withdrawn.append(Quarantined(prefix, salt, node.lineage))
        reached = {id(node) for node in nodes}
        for allocation in self.allocations.values():
            if allocation.node is not None and id(allocation.node) in reached:
                earlier, depth = allocation.untrusted_from, len(token_ids)
                allocation.untrusted_from = depth if earlier is None else min(depth, earlier)
        for node in reversed(nodes):
            if not node.slot:
                continue
            self.counters.quarantined += 1
            if node.state_lock:
                self.tree.distrust(node)
                self._condemned.append(node)
            else:
                self.reclaimer.evict(node, report=False)
        return withdrawn

    @property
    def condemned(self) -> int:
        """Number of quarantined checkpoints that somebody still reads."""
        return len(self._condemned)

    def release_condemned(self) -> None:
        """Free the quarantined checkpoints that nobody reads any more."""
        kept = []
        for node in self._condemned:
            if not node.slot or node.epoch != UNTRUSTED:
                continue
            if node.state_lock:
                kept.append(node)
            else:
                self.reclaimer.drop_forgotten(node)
        self._condemned = kept

    def _drop_untrusted(self, deepest: Node, depth: int) -> None:
        """Drop the checkpoints on the path to `deepest` from `depth` on, and pages that lead to none."""
        for node in reversed(list(deepest.path())):
            # A sequence that is resuming from this checkpoint detects the failure at its own commit.
            if node.slot and node.depth >= depth:
                self._drop_wrong(node)
        if deepest.depth >= depth:
            self.reclaimer.drop_upwards(deepest)

    def slot_of(self, token_ids: Tokens, salt: str, lineage: Lineage) -> int:
        """Return the slot of the checkpoint of a prefix if it is the one of that lineage; 0 = it is gone."""
        for node in self.tree.complete_checkpoints(token_ids, salt, self.arena.completed + 1):
            if node.depth == len(token_ids):
                return node.slot if node.lineage is lineage else 0
        return 0

    # --- memory of audits ----------------------------------------------------------------------------

    def admit_audit(self, token_ids: Tokens, salt: str) -> SequenceAllocation | None:
        """Take a slot and all pages for computing `token_ids` once more from the beginning; None = not now.

        The result is given to nobody. Only checkpoints from which nobody has ever resumed give way to it.
        """
        pages = -(-len(token_ids) // self.tree.page_size)
        per_slab = self.arena.pages_per_slab
        slabs = 1 + (pages / per_slab if per_slab else 0)
        if not self.batch.free or slabs > AUDIT_SHARE * (self.arena.slabs - 1):
            return None
        self.reclaimer.displace_unused(1, pages)
        grant = self.reclaimer.allocate(AllocationSite.AUDIT, live=1, pages=pages, evict=False)
        if grant is None:
            return None
        row = self.batch.add(grant.slots[0], 0)
        self.batch.state_seed[row] = token_ids[0]
        self.batch.append_pages(row, grant.pages)
        allocation = SequenceAllocation(self.batch, row, salt, [], Placement((), ()))
        self.allocations[row] = allocation
        return allocation
