"""`Transit`: checkpoints of one cache whose memory a transfer reads or writes outside the model's steps.

An *export* locks a checkpoint of the tree while a transfer reads it. A *reception* is memory that a transfer
writes; afterwards the memory is given to the tree, or freed. `RadixStateCache` is a `Transit` that also
serves sequences. Pure: the caller, who moves the bytes, reports when a writer or a reader has ended, and
nothing here waits for that. The names of invariants in comments (T3, T4, …) are those of the page about the
state cache. A call that breaks an invariant raises LedgerViolation.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mamba_planner.strategy import Reservation
from mamba_server.cache.arena import NO_PAGES, AllocationSite, Arena, PageOwner, Pages
from mamba_server.cache.donation import Donation
from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.ghost_tree import CheckpointKind, Ghost, GhostMatch, GhostTree
from mamba_server.cache.node import RECEIVED, UNTRUSTED, Lineage, Node, Pin, Provenance, Tokens
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.placement import Placement
from mamba_server.cache.protocol import (
    CacheCounters,
    EvictedCheckpoint,
    EvictionListener,
    Export,
    Quarantined,
    Reception,
)
from mamba_server.cache.reclaimer import Reclaimer
from mamba_server.cache.sequence_allocation import SequenceAllocation
from mamba_server.cache.slot_state import SlotState
from mamba_server.cache.tree import RadixTree

_NOTHING = (0, 0, 0, 0)
AUDIT_SHARE = 0.5
"""Largest share of the arena that one audit takes."""


@dataclass(frozen=True, slots=True)
class HeldReception:
    """A reception that has not ended; pages up to the node `base` are locked for it; None = none are."""

    reception: Reception
    base: Node | None


@dataclass(frozen=True, slots=True)
class PendingInstall:
    """A received checkpoint in the tree, which is locked because launch `fence` may still write it."""

    node: Node
    fence: int
    pages: Pages


class Transit:
    """Lends checkpoints of one cache to readers outside (exports), and takes checkpoints in (receptions).

    Each export and each reception has a number until it ends.
    """

    strategy: Reservation
    prefix_caching: bool
    min_checkpoint_depth: int

    def __init__(self, arena: Arena, tree: RadixTree, cap: int) -> None:
        self.arena = arena
        self.tree = tree
        tree.on_pin = arena.pin
        self.counters = CacheCounters()
        self.reclaimer = Reclaimer(arena, tree, self.counters)
        self.donation = Donation(arena, tree, self.reclaimer, None, cap)
        self.exports: dict[int, Node] = {}
        """Node of the tree that each export reads and has locked, by the number of the export."""
        self.receptions: dict[int, HeldReception] = {}
        """Receptions that have not ended, by number, including those whose memory is quarantined."""
        self.installs: list[PendingInstall] = []
        self._number = 0
        self._condemned: list[Node] = []
        """Quarantined checkpoints that somebody still reads."""

    def on_eviction(self, listener: EvictionListener | None) -> None:
        """Have `listener` called before each eviction of a checkpoint that no launch is writing."""

        def report(node: Node) -> None:
            evicted = EvictedCheckpoint(node)
            if listener is not None and not (self.installs and self._is_being_written(node, evicted.pages)):
                listener(evicted)

        self.reclaimer.on_eviction = report if listener is not None else None

    def checkpoints(self) -> Iterator[EvictedCheckpoint]:
        """Yield every checkpoint from which a prompt can resume, as a listener to evictions gets it."""
        for node in self.tree.walk():
            if node.slot and node.epoch == self.tree.epoch:
                checkpoint = EvictedCheckpoint(node)
                if not (self.installs and self._is_being_written(node, checkpoint.pages)):
                    yield checkpoint

    def hottest(self, count: int) -> list[EvictedCheckpoint]:
        """Return up to `count` checkpoints that would be evicted last, the most valuable first."""
        nodes = (node for node in self.tree.walk() if node.slot and node.epoch == self.tree.epoch)
        return [EvictedCheckpoint(node) for node in heapq.nlargest(count, nodes, self.tree.eviction.rank)]

    @property
    def ghosts(self) -> GhostTree | None:
        """Ghost tree that predicts which prompts return; None = the eviction policy uses none."""
        return self.donation.ghosts

    @property
    def _slots_to_spare(self) -> bool:
        """Whether more slots are free than the next two sequences will need."""
        return self.arena.free_slots > 2 * self.strategy.slots_per_sequence

    def _in_transit(self) -> tuple[int, int, int, int]:
        """Return the numbers of slots being received, exported and quarantined, and of quarantined pages."""
        if not self.receptions and not self.exports:
            return _NOTHING
        slots = self.arena.slots_by_state
        return (
            slots[SlotState.RECEIVING] + slots[SlotState.CONFIRMING],
            slots[SlotState.EXPORTED],
            slots[SlotState.QUARANTINED],
            self.arena.pages_by_owner[PageOwner.QUARANTINED],
        )

    # --- export --------------------------------------------------------------------------------------

    def export(self, token_ids: Tokens, salt: str, step: int, *, most: int | None = None) -> Export | None:
        """Lock the prefix's deepest complete checkpoint of at most `most` tokens.

        The result is None if there is none, if a transfer or a copy still writes it, or without prefix
        caching.
        """
        if not self.prefix_caching:
            return None
        for node in self.tree.complete_checkpoints(token_ids, salt, step):
            if most is not None and node.depth > most:
                continue
            pages = np.concatenate([each.pages for each in node.path()])
            if not self._is_being_written(node, pages):
                break
        else:
            return None
        self.tree.lock(node, state=True)
        self.tree.touch(node)
        if self.arena.slot_state(node.slot) is not SlotState.EXPORTED:
            self.arena.move(node.slot, SlotState.EXPORTED)
        self._number += 1
        self.exports[self._number] = node
        return Export(self._number, node.depth, node.slot, pages)

    def _is_being_written(self, node: Node, pages: Pages) -> bool:
        """Return whether a launch that may be incomplete writes the checkpoint or one of its pages."""
        for install in self.installs:
            if install.node is node:
                return True
            if self.arena.pages_per_slab and np.isin(install.pages, pages).any():
                return True
        return False

    def end_export(self, export: Export) -> None:
        """Unlock the checkpoint that was exported, and free it if the tree has forgotten it meanwhile."""
        node = self.exports.pop(export.number, None)
        if node is None:
            raise LedgerViolation(f"T6: export {export.number} ended twice, or never began")
        if node not in self.exports.values():
            self.arena.move(node.slot, SlotState.CACHED)
        self._unlock(node)

    def _unlock(self, node: Node) -> None:
        """Release a lock on the checkpoint of `node`; free the checkpoint if it is forgotten and unlocked."""
        self.tree.unlock_state(node)
        self.tree.unlock(node)
        if node.epoch != self.tree.epoch and not node.state_lock:
            self.reclaimer.drop_forgotten(node)

    # --- pins ----------------------------------------------------------------------------------------

    def pin(self, token_ids: Tokens, salt: str, step: int, *, depth: int) -> Pin | None:
        """Keep a checkpoint of a prompt from being evicted; None = the prompt has no complete one.

        The checkpoint is the one at `depth`, else the next deeper one, else the next shallower one.
        """
        nodes = self.tree.complete_checkpoints(token_ids, salt, step)
        behind = [node for node in nodes if node.depth >= depth]
        node = behind[-1] if behind else nodes[0] if nodes else None
        if node is None:
            return None
        if node.pin is not None:
            node.pin.holders += 1
            return node.pin
        above = node.parent
        while above is not None and above.pin is None:
            above = above.parent
        self._number += 1
        pages = (node.depth - (above.depth if above is not None else 0)) // self.tree.page_size
        pin = node.pin = self.tree.pins[self._number] = Pin(self._number, node, pages)
        self._reorder(node)
        return pin

    def unpin(self, pin: Pin) -> None:
        """Release the pin for one holder; after the last one, the checkpoint can be evicted as any other."""
        node = pin.node
        pin.holders -= 1
        if pin.holders < 0:
            raise LedgerViolation(f"K1: pin {pin.number} was released once too often")
        if node is not None and not pin.holders:
            self.tree.release_pin(pin)
            self._reorder(node)

    def _reorder(self, node: Node) -> None:
        """Move a node to its new position in the order of evictions, if it is in that order."""
        if node.victims is not None:
            self.tree.eviction.offer(node)

    # --- receive -------------------------------------------------------------------------------------

    def receive(self, token_ids: Tokens, salt: str) -> Reception | None:
        """Reserve a slot, and those pages of `token_ids` that the tree lacks.

        The pages that the tree has are locked until the reception has ended, so that they are still there
        when the rest has arrived (T4). The result is None, and nothing is changed, if too few slots or pages
        are free, if the tree has the checkpoint, if it is too shallow, or without prefix caching.
        """
        depth, page_size = len(token_ids), self.tree.page_size
        if not depth or depth % page_size:
            raise LedgerViolation(f"P5: a reception of {depth} tokens on pages of {page_size}")
        if not self.prefix_caching or depth < self.min_checkpoint_depth:
            return None
        base_node, base = self.tree.lock_pages(token_ids, salt)
        if base_node is None:
            grant = self._allocate(depth)
        elif self._has_checkpoint(base_node, depth) and base == depth:
            grant = None
        else:
            grant = self._allocate(depth - base)
        if grant is None:
            if base_node is not None:
                self.tree.unlock(base_node)
            return None
        if base_node is not None:
            base_node = self.tree.cut(base_node, base)
        slot, pages = grant
        reception = Reception(self._number, token_ids.copy(), salt, depth, base, slot, pages)
        self.receptions[reception.number] = HeldReception(reception, base_node)
        return reception

    def _has_checkpoint(self, node: Node, depth: int) -> bool:
        """Return whether `node` has a checkpoint at `depth` that the tree has not forgotten."""
        return node.depth == depth and node.slot > 0 and node.epoch == self.tree.epoch

    def _allocate(self, tokens: int) -> tuple[int, Pages] | None:
        """Reserve a slot and the pages of `tokens` tokens for a new reception; None if too few are free."""
        number = self._number + 1
        grant = self.reclaimer.allocate(
            AllocationSite.RECEIVE, pages=tokens // self.tree.page_size, writer=number
        )
        if grant is None:
            return None
        self._number = number
        return grant.slots[0], grant.pages

    def _held(self, reception: Reception, *states: SlotState) -> HeldReception:
        """Return the data of `reception`. Raises LedgerViolation if its slot is in none of `states`."""
        held = self.receptions.get(reception.number)
        if held is None or held.reception is not reception:
            raise LedgerViolation(f"T1: reception {reception.number} has ended, or never began")
        state = self.arena.slot_state(reception.slot)
        if state not in states:
            raise LedgerViolation(f"T1: reception {reception.number} is {state.value}")
        return held

    def confirm(self, reception: Reception) -> None:
        """Record that all bytes of the reception have arrived and that its writer has ended."""
        self._held(reception, SlotState.RECEIVING)
        self.arena.end_writer(reception.number)
        self.arena.move(reception.slot, SlotState.CONFIRMING)

    def install(self, reception: Reception, step: int, provenance: Provenance = RECEIVED) -> bool:
        """Give a received checkpoint and its pages to the tree; return whether the tree took the checkpoint.

        `provenance` says where the state comes from. Pages that the tree has obtained in the meantime are
        freed once launch `step - 1`, which may write them, is complete.
        """
        held = self._held(reception, SlotState.CONFIRMING)
        arena, tree, fence = self.arena, self.tree, step - 1
        pages, base_pages = reception.pages, NO_PAGES
        if held.base is not None:
            base_pages = np.concatenate([node.pages for node in held.base.path()])
        ghost = self.ghosts.arrival() if self.ghosts is not None else None
        node, present, accepted = tree.insert(
            reception.token_ids,
            np.concatenate([base_pages, pages]),
            reception.slot,
            fence,
            reception.salt,
            ghost=ghost,
        )
        duplicates = (present - reception.base) // tree.page_size
        if duplicates < 0:
            raise LedgerViolation(f"T4: the tree lost pages below {reception.base} during a reception")
        arena.free_pages_of(pages[:duplicates], fence, PageOwner.TRANSFER)
        arena.give_pages_to_tree(pages[duplicates:], PageOwner.TRANSFER)
        if accepted:
            node.lineage = Lineage(provenance, node.depth, fence)
            self._accept(node, fence, pages[duplicates:])
        else:
            arena.free_slot(reception.slot, fence)
            self.counters.duplicates += 1
        self._end(held)
        return accepted

    def _accept(self, node: Node, fence: int, pages: Pages) -> None:
        """Record that the tree has the received checkpoint of `node`, which launch `fence` completes."""
        self.counters.created += 1
        self.arena.move(node.slot, SlotState.INSTALLED, fence)
        if fence > self.arena.completed:
            # The checkpoint is locked, since it cannot make room while launch `fence` writes its memory.
            self.tree.lock(node, state=True)
            self.installs.append(PendingInstall(node, fence, pages))
        else:
            self.arena.move(node.slot, SlotState.CACHED)
        if not self._slots_to_spare:
            self.donation.cap_path(node, set())

    def _complete_installs(self) -> None:
        """Unlock installed checkpoints whose launch is complete: nothing writes to them any more (T5)."""
        completed = self.arena.completed
        due = [install for install in self.installs if install.fence <= completed]
        self.installs = [install for install in self.installs if install.fence > completed]
        for install in due:
            self.arena.move(install.node.slot, SlotState.CACHED)
            self._unlock(install.node)

    def abandon(self, reception: Reception, *, writer_ended: bool) -> None:
        """End the reception without a checkpoint; quarantine its memory if the writer has not ended."""
        held = self._held(reception, SlotState.RECEIVING, SlotState.CONFIRMING)
        arena = self.arena
        if arena.slot_state(reception.slot) is SlotState.CONFIRMING:
            self._return(held, PageOwner.TRANSFER)
        elif writer_ended:
            arena.end_writer(reception.number)
            self._return(held, PageOwner.TRANSFER)
        else:
            arena.move(reception.slot, SlotState.QUARANTINED)
            arena.quarantine_pages(reception.pages)
            self._unlock_base(held)
            self.receptions[reception.number] = HeldReception(reception, None)

    def writer_ended(self, reception: Reception) -> None:
        """Free the memory of a quarantined reception, as its writer has ended (T3)."""
        held = self._held(reception, SlotState.QUARANTINED)
        self.arena.end_writer(reception.number)
        self._return(held, PageOwner.QUARANTINED)

    def _return(self, held: HeldReception, owner: int) -> None:
        """Free the memory of a reception whose writer has ended."""
        self.arena.free_slot(held.reception.slot)
        self.arena.free_pages_of(held.reception.pages, 0, owner)
        self._end(held)

    def _end(self, held: HeldReception) -> None:
        self._unlock_base(held)
        del self.receptions[held.reception.number]

    def _unlock_base(self, held: HeldReception) -> None:
        """Unlock the pages before the reception's own, and drop them if they lead to no checkpoint."""
        if held.base is not None:
            self.tree.unlock(held.base)
            if self.ghosts is not None:
                self.reclaimer.drop_upwards(held.base)

    # --- checkpoints that are wrong ------------------------------------------------------------------

    def _drop_wrong(self, node: Node) -> None:
        """Drop the wrong checkpoint of `node`; while it is exported or installed, only mark it as forgotten.

        A checkpoint that a sequence is resuming from stays.
        """
        if not node.state_lock:
            self.reclaimer.evict(node, report=False)
        elif node in self.exports.values() or any(node is install.node for install in self.installs):
            self.tree.distrust(node)

    # --- returns -------------------------------------------------------------------------------------

    def _expect_returns(self, ghosts: GhostTree, node: Node, match: GhostMatch) -> None:
        """Give a received checkpoint a ghost in the ghost tree, once the first prompt resumes from it."""
        arrival = node.ghost
        if not isinstance(arrival, Ghost) or not arrival.arrived:
            return
        ghost = ghosts.ghost_at(match, node.depth // self.tree.page_size, CheckpointKind.END)
        if ghost is not None:
            arrival.node = None
            node.ghost, ghost.node = ghost, node


class Quarantine(Transit):
    """Withdraws checkpoints that an audit found wrong, and gives audits their memory."""

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
        """Return the slot of a prefix's checkpoint if it has `lineage`; 0 = it is gone or was replaced."""
        for node in self.tree.complete_checkpoints(token_ids, salt, self.arena.completed + 1):
            if node.depth == len(token_ids):
                return node.slot if node.lineage is lineage else 0
        return 0

    # --- memory of audits ----------------------------------------------------------------------------

    def admit_audit(self, token_ids: Tokens, salt: str) -> SequenceAllocation | None:
        """Take a slot and all pages for computing `token_ids` once more from the beginning.

        Nobody gets the result. Only checkpoints from which nobody has ever resumed are evicted for it. The
        result is None if no row or too little memory is free, or if it needs more than `AUDIT_SHARE` of the
        slabs.
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
