"""The ledger: every slab, page and slot has exactly one owner, and the sums are the capacity.

`check` recounts everything from its holders and compares with the arena's account; tests call it after every
event, the engine when it is idle. `account` is what metrics and the admin call show.
"""

from dataclasses import asdict, dataclass

import numpy as np

from mamba_server.cache.arena import PageOwner
from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.slot_life import SlotState
from mamba_server.cache.state_cache import StateCache


@dataclass(frozen=True, slots=True)
class Account:
    """Slots and pages by owner. `free` slots are free slabs: they could be pages instead."""

    slots_total: int
    slots_free: int
    slots_live: int
    slots_tracking: int
    slots_cached: int
    slots_fenced: int
    slabs_of_pages: int
    pages_free: int
    pages_sequence: int
    pages_tree: int
    pages_fenced: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def account(cache: StateCache) -> Account:
    """Who owns what just now."""
    arena = cache.arena
    by_state = {state: len(arena.slots_in((state,))) for state in SlotState}
    slots = sum(by_state.values())
    owners = np.bincount(arena.page_owner, minlength=5) if arena.pages_per_slab else np.zeros(5, int)
    return Account(
        slots_total=arena.slabs - 1,
        slots_free=arena.free_slots,
        slots_live=by_state[SlotState.LIVE],
        slots_tracking=by_state[SlotState.TRACK_PENDING] + by_state[SlotState.TRACK_READY],
        slots_cached=by_state[SlotState.CACHED],
        slots_fenced=by_state[SlotState.FENCED],
        slabs_of_pages=arena.slabs - 1 - arena.free_slots - slots,
        pages_free=arena.free_pages,
        pages_sequence=int(owners[PageOwner.SEQUENCE]),
        pages_tree=int(owners[PageOwner.TREE]),
        pages_fenced=int(owners[PageOwner.FENCED]),
    )


def check(cache: StateCache) -> None:
    """Recount. Raises LedgerViolation: owners (W1, W8), locks (W4), sums (W5), depths (P1, P5)."""
    cache.arena.check_slabs()
    _check_slots(cache)
    if cache.arena.pages_per_slab:
        _check_pages(cache)
    _check_tree(cache)


def _check_slots(cache: StateCache) -> None:
    arena = cache.arena
    held: list[int] = []
    for allocation in cache.allocations.values():
        held.append(allocation.live)
        held.extend(allocation.tracking_slots)
    cached = [node.slot for node in cache.tree.walk() if node.slot]
    states = (SlotState.LIVE, SlotState.TRACK_PENDING, SlotState.TRACK_READY)
    _same("W1 slots of sequences", sorted(held), arena.slots_in(states))
    _same("W1 slots of the tree", sorted(cached), arena.slots_in((SlotState.CACHED,)))


def _check_pages(cache: StateCache) -> None:
    arena = cache.arena
    tree_pages = [node.pages for node in cache.tree.walk()]
    of_tree = np.sort(np.concatenate(tree_pages)) if tree_pages else np.empty(0, np.int32)
    _same(
        "W1 pages of the tree", of_tree.tolist(), np.flatnonzero(arena.page_owner == PageOwner.TREE).tolist()
    )
    own = []
    for allocation in cache.allocations.values():
        pages = allocation.pages
        own.append(pages[arena.page_owner[pages] == PageOwner.SEQUENCE])
        shared = pages[arena.page_owner[pages] == PageOwner.TREE]
        locked = np.concatenate([n.pages for n in allocation.node.path()]) if allocation.node else shared[:0]
        if len(np.setdiff1d(shared, locked)):
            raise LedgerViolation("W8: a sequence uses a page of the tree that it has not locked")
    of_sequences = np.sort(np.concatenate(own)) if own else np.empty(0, np.int32)
    _same(
        "W1 pages of sequences",
        of_sequences.tolist(),
        np.flatnonzero(arena.page_owner == PageOwner.SEQUENCE).tolist(),
    )


def _check_tree(cache: StateCache) -> None:
    tree = cache.tree
    checkpoints = pages = locked_pages = locked_states = nodes = 0
    kv_locks: dict[int, int] = {}
    state_locks: dict[int, int] = {}
    for allocation in cache.allocations.values():
        for node in allocation.node.path() if allocation.node else []:
            kv_locks[id(node)] = kv_locks.get(id(node), 0) + 1
        if allocation.match_node is not None:
            state_locks[id(allocation.match_node)] = state_locks.get(id(allocation.match_node), 0) + 1
    for node in tree.walk():
        nodes += 1
        assert node.parent is not None
        if node.depth != node.parent.depth + len(node.token_ids) or len(node.token_ids) % tree.page_size:
            raise LedgerViolation(f"P1: node depth {node.depth} is not its key length")
        if len(node.pages) * tree.page_size != len(node.token_ids):
            raise LedgerViolation(f"P5: node at depth {node.depth} has {len(node.pages)} pages")
        if (node.kv_lock, node.state_lock) != (kv_locks.get(id(node), 0), state_locks.get(id(node), 0)):
            raise LedgerViolation(f"W4: locks of node at depth {node.depth} do not match its users")
        if not 0 <= node.state_lock <= node.kv_lock:
            raise LedgerViolation(f"W4: state lock above page lock at depth {node.depth}")
        checkpoints += bool(node.slot)
        pages += len(node.pages)
        locked_pages += len(node.pages) if node.kv_lock else 0
        locked_states += bool(node.state_lock)
    counted = (nodes, checkpoints, pages, locked_pages, locked_states)
    kept = (tree.nodes, tree.checkpoints, tree.pages, tree.locked_pages, tree.locked_states)
    if counted != kept:
        raise LedgerViolation(f"W5: tree counts {counted}, kept {kept}")


def _same(what: str, left: list[int], right: list[int]) -> None:
    if left != right:
        odd = sorted(set(left) ^ set(right)) or [x for x in set(left) if left.count(x) > 1]
        raise LedgerViolation(f"{what}: held {len(left)}, account {len(right)}, differ at {odd[:5]}")
