"""The ledger: every slab, page and slot has exactly one owner, and the sums are the capacity.

`check` recounts everything from its holders and compares with the arena's account; tests call it after every
event, the engine when it is idle, in slices. Metrics and the admin call show `account`. A call that breaks an
invariant raises LedgerViolation.
"""

import itertools
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mamba_server.cache.arena import SLABS_PER_SLICE, Arena, PageOwner, Pages
from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.node import Node
from mamba_server.cache.protocol import LedgerAccount
from mamba_server.cache.sequence_allocation import SequenceAllocation
from mamba_server.cache.slot_state import SlotState
from mamba_server.cache.transit import HeldReception, PendingInstall
from mamba_server.cache.tree import RadixTree

Nodes = npt.NDArray[np.object_]
"""Slice of the tree's nodes: an array, because the garbage collector would search a young list with all it
holds."""
PAGES_PER_COUNT = 1 << 12
"""Pages, a few from each node, that a check counts in one call before it yields."""


class Books(Protocol):
    """Cache whose memory is counted: the arena that keeps the account, and all holders of its memory."""

    arena: Arena
    tree: RadixTree
    allocations: dict[int, SequenceAllocation]
    """Memory of sequences, by the row of each."""
    exports: dict[int, Node]
    """Node of each exported checkpoint, by the number of the export."""
    receptions: dict[int, HeldReception]
    """Receptions that have not ended, by number."""
    installs: list[PendingInstall]
    """Received checkpoints whose copy may not be complete."""


_TREE_STATES = (SlotState.CACHED, SlotState.INSTALLED, SlotState.EXPORTED)
_RECEPTION_STATES = (SlotState.RECEIVING, SlotState.CONFIRMING, SlotState.QUARANTINED)


def account(cache: Books) -> LedgerAccount:
    """Return the number of slots and pages of each owner, from the arena's counters."""
    arena = cache.arena
    slots, pages = arena.slots_by_state, arena.pages_by_owner
    return LedgerAccount(
        slots_total=arena.slabs - 1,
        slots_free=arena.free_slots,
        slots_live=slots[SlotState.LIVE],
        slots_tracking=slots[SlotState.TRACK_PENDING] + slots[SlotState.TRACK_READY],
        slots_cached=slots[SlotState.CACHED] + slots[SlotState.INSTALLED],
        slots_fenced=slots[SlotState.FENCED],
        slots_receiving=slots[SlotState.RECEIVING] + slots[SlotState.CONFIRMING],
        slots_exported=slots[SlotState.EXPORTED],
        slots_quarantined=slots[SlotState.QUARANTINED],
        slabs_of_pages=arena.slabs - 1 - arena.free_slots - sum(slots.values()),
        pages_free=arena.free_pages,
        pages_sequence=pages[PageOwner.SEQUENCE],
        pages_tree=pages[PageOwner.TREE],
        pages_fenced=pages[PageOwner.FENCED],
        pages_receiving=pages[PageOwner.TRANSFER],
        pages_quarantined=pages[PageOwner.QUARANTINED],
    )


def check(cache: Books) -> None:
    """Recount everything.

    Raises LedgerViolation for wrong owners (W1, W8, T1), locks (W4, T4), sums (W5), depths (P1, P5), writers
    (T3), installs (T5), readers (T6) or pins (K1), and for a row that records wrongly whether it awaits a
    commit.
    """
    for _ in audit(cache):
        pass


def audit(cache: Books) -> Iterator[None]:
    """Run `check` in slices of a few milliseconds at most; not valid if anything changes in between."""
    yield from cache.arena.check_slabs()
    nodes: list[Nodes] = []
    walk = cache.tree.walk()
    while part := list(itertools.islice(walk, SLABS_PER_SLICE)):
        nodes.append(np.array(part, np.object_))
        yield
    yield from _check_slots(cache, nodes)
    _check_transit(cache)
    if cache.arena.pages_per_slab:
        yield from _check_pages(cache, nodes)
    yield from _check_tree(cache, nodes)


def _check_slots(cache: Books, nodes: list[Nodes]) -> Iterator[None]:
    arena = cache.arena
    of_sequences, of_tree, of_receptions = (np.zeros(arena.slabs, np.int32) for _ in range(3))
    for first in range(1, arena.slabs, SLABS_PER_SLICE):
        for slot, state in arena.slots_of(range(first, min(first + SLABS_PER_SLICE, arena.slabs))):
            if state in _TREE_STATES:
                of_tree[slot] = 1
            elif state in _RECEPTION_STATES:
                of_receptions[slot] = 1
            elif state is not SlotState.FENCED:
                of_sequences[slot] = 1
        yield
    held = np.zeros(arena.slabs, np.int32)
    for allocation in cache.allocations.values():
        np.add.at(held, [allocation.live, *allocation.tracking_slots], 1)
    _compare("W1 slots of sequences", held, of_sequences)
    held[:] = 0
    np.add.at(held, [each.reception.slot for each in cache.receptions.values()], 1)
    _compare("T1 slots of receptions", held, of_receptions)
    held[:] = 0
    for part in nodes:
        np.add.at(held, [node.slot for node in part], 1)
        yield
    # Slot 0 stands for a node without a checkpoint.
    held[0] = 0
    _compare("W1 slots of the tree", held, of_tree)


def _check_transit(cache: Books) -> None:
    """Check that writers, exports and installs agree with the states of their slots."""
    arena = cache.arena
    states = {number: arena.slot_state(each.reception.slot) for number, each in cache.receptions.items()}
    written = {number for number, state in states.items() if state is not SlotState.CONFIRMING}
    if written != arena.open_writers():
        raise LedgerViolation(f"T3: receptions {sorted(written)} are written, writers {arena.open_writers()}")
    read = {node.slot for node in cache.exports.values()}
    if len(read) != arena.slots_by_state[SlotState.EXPORTED] or any(
        arena.slot_state(slot) is not SlotState.EXPORTED for slot in read
    ):
        raise LedgerViolation(f"T6: slots {sorted(read)} are read outside, their states say otherwise")
    installed = {install.node.slot for install in cache.installs}
    if len(installed) != arena.slots_by_state[SlotState.INSTALLED] or any(
        arena.slot_state(slot) is not SlotState.INSTALLED for slot in installed
    ):
        raise LedgerViolation(
            f"T5: slots {sorted(installed)} are being installed, their states say otherwise"
        )


def _check_pages_of_receptions(cache: Books, held: npt.NDArray[np.int32]) -> None:
    """Check the owners of the pages of receptions. `held`: array of a number per page, overwritten."""
    arena = cache.arena
    for owner, quarantined in ((PageOwner.TRANSFER, False), (PageOwner.QUARANTINED, True)):
        held[:] = 0
        for each in cache.receptions.values():
            reception = each.reception
            if (arena.slot_state(reception.slot) is SlotState.QUARANTINED) is quarantined:
                np.add.at(held, reception.pages, 1)
        _compare("T1 pages of receptions", held, arena.page_owner == owner)


def _check_pages(cache: Books, nodes: list[Nodes]) -> Iterator[None]:
    arena = cache.arena
    held = np.zeros(len(arena.page_owner), np.int32)
    pinned: list[Pages] = []
    for part in nodes:
        batch: list[Pages] = []
        batch_pages = 0
        for node in part:
            batch.append(node.pages)
            batch_pages += len(node.pages)
            if node.kv_lock:
                pinned.append(node.pages)
            if batch_pages > PAGES_PER_COUNT:
                held += np.bincount(np.concatenate(batch), minlength=len(held))
                batch, batch_pages = [], 0
                yield
        if batch:
            held += np.bincount(np.concatenate(batch), minlength=len(held))
        yield
    _compare("W1 pages of the tree", held, arena.page_owner == PageOwner.TREE)
    yield
    held[:] = 0
    locked = np.zeros(len(held), bool)
    for allocation in cache.allocations.values():
        pages = allocation.pages
        np.add.at(held, pages[arena.page_owner[pages] == PageOwner.SEQUENCE], 1)
        shared = pages[arena.page_owner[pages] == PageOwner.TREE]
        path = [node.pages for node in allocation.node.path()] if allocation.node else []
        for shared_pages in path:
            locked[shared_pages] = True
        if not locked[shared].all():
            raise LedgerViolation("W8: a sequence uses a page of the tree that it has not locked")
        for shared_pages in path:
            locked[shared_pages] = False
        yield
    _compare("W1 pages of sequences", held, arena.page_owner == PageOwner.SEQUENCE)
    yield
    _check_pages_of_receptions(cache, held)
    yield
    yield from arena.check_pages()
    yield from arena.check_pins(pinned)


def _locks(cache: Books) -> tuple[dict[int, int], dict[int, int]]:
    """Count the page locks and the state locks of sequences, exports and receptions, by `id` of the node."""
    kv_locks: dict[int, int] = {}
    state_locks: dict[int, int] = {}
    for allocation in cache.allocations.values():
        if allocation.awaits_commit != (bool(allocation.pending) or allocation.match_node is not None):
            raise LedgerViolation(f"row {allocation.row}: awaits_commit contradicts its pending checkpoints")
        for node in allocation.node.path() if allocation.node else []:
            kv_locks[id(node)] = kv_locks.get(id(node), 0) + 1
        if allocation.match_node is not None:
            state_locks[id(allocation.match_node)] = state_locks.get(id(allocation.match_node), 0) + 1
    used_outside = [*cache.exports.values(), *(install.node for install in cache.installs)]
    for node in used_outside:
        state_locks[id(node)] = state_locks.get(id(node), 0) + 1
    bases = [each.base for each in cache.receptions.values() if each.base is not None]
    for node in itertools.chain.from_iterable(last.path() for last in (*used_outside, *bases)):
        kv_locks[id(node)] = kv_locks.get(id(node), 0) + 1
    for each in cache.receptions.values():
        if each.base is not None and each.base.depth != each.reception.base:
            raise LedgerViolation(f"T4: reception {each.reception.number} locks {each.base.depth} tokens")
    return kv_locks, state_locks


def _check_tree(cache: Books, nodes: list[Nodes]) -> Iterator[None]:
    tree = cache.tree
    number = checkpoints = pages = locked_pages = locked_states = forgotten = 0
    kv_locks, state_locks = _locks(cache)
    for number, node in enumerate(itertools.chain.from_iterable(nodes), 1):
        assert node.parent is not None
        if not number % SLABS_PER_SLICE:
            yield
        if node.depth != node.parent.depth + len(node.token_ids) or len(node.token_ids) % tree.page_size:
            raise LedgerViolation(f"P1: node depth {node.depth} is not its key length")
        if len(node.pages) * tree.page_size != len(node.token_ids):
            raise LedgerViolation(f"P5: node at depth {node.depth} has {len(node.pages)} pages")
        if (node.kv_lock, node.state_lock) != (kv_locks.get(id(node), 0), state_locks.get(id(node), 0)):
            raise LedgerViolation(f"W4: locks of node at depth {node.depth} do not match its users")
        if not 0 <= node.state_lock <= node.kv_lock:
            raise LedgerViolation(f"W4: state lock above page lock at depth {node.depth}")
        _check_pin(tree, node)
        checkpoints += bool(node.slot)
        forgotten += bool(node.slot) and node.epoch != tree.epoch
        pages += len(node.pages)
        locked_pages += len(node.pages) if node.kv_lock else 0
        locked_states += bool(node.state_lock)
    counted = (number, checkpoints, pages, locked_pages, locked_states, forgotten)
    recorded = (
        tree.nodes, tree.checkpoints, tree.pages, tree.locked_pages, tree.locked_states, tree.forgotten
    )  # fmt: skip
    _check_pins(tree)
    if counted != recorded:
        raise LedgerViolation(f"W5: the tree holds {counted}, its counters say {recorded}")


def _check_pins(tree: RadixTree) -> None:
    """Check that each recorded pin holds a checkpoint."""
    if any(pin.node is None or pin.node.pin is not pin or pin.holders < 1 for pin in tree.pins.values()):
        raise LedgerViolation("K1: a pin that is recorded holds no checkpoint")


def _check_pin(tree: RadixTree, node: Node) -> None:
    """Check that a pin on a node is recorded, and that the node has a checkpoint."""
    if node.pin is not None and (tree.pins.get(node.pin.number) is not node.pin or not node.slot):
        raise LedgerViolation(f"K1: the pin at depth {node.depth} is unrecorded, or on no checkpoint")


def _compare(
    subject: str, held: npt.NDArray[np.int32], account: npt.NDArray[np.int32] | npt.NDArray[np.bool_]
) -> None:
    wrong = (held != account).nonzero()[0]
    if len(wrong):
        raise LedgerViolation(
            f"{subject}: held {held.sum()}, account {account.sum()}, differ at {wrong[:5].tolist()}"
        )
