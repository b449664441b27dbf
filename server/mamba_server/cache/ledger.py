"""The ledger: every slab, page and slot has exactly one owner, and the sums are the capacity.

`check` recounts everything from its holders and compares with the arena's account; tests call it after every
event, the engine when it is idle, in slices. `account` is what metrics and the admin call show.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from mamba_server.cache.arena import SLICE, PageOwner
from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.node import Node
from mamba_server.cache.slot_life import SlotState
from mamba_server.cache.state_cache import StateCache

PAGES_AT_ONCE = 1 << 15
"""Pages that a check counts before others may have their turn."""


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
    """Who owns what just now, from the arena's counts."""
    arena = cache.arena
    slots, pages = arena.slots_by_state, arena.pages_by_owner
    return Account(
        slots_total=arena.slabs - 1,
        slots_free=arena.free_slots,
        slots_live=slots[SlotState.LIVE],
        slots_tracking=slots[SlotState.TRACK_PENDING] + slots[SlotState.TRACK_READY],
        slots_cached=slots[SlotState.CACHED],
        slots_fenced=slots[SlotState.FENCED],
        slabs_of_pages=arena.slabs - 1 - arena.free_slots - sum(slots.values()),
        pages_free=arena.free_pages,
        pages_sequence=pages[PageOwner.SEQUENCE],
        pages_tree=pages[PageOwner.TREE],
        pages_fenced=pages[PageOwner.FENCED],
    )


def check(cache: StateCache) -> None:
    """Recount. Raises LedgerViolation: owners (W1, W8), locks (W4), sums (W5), depths (P1, P5)."""
    for _ in audit(cache):
        pass


def audit(cache: StateCache) -> Iterator[None]:
    """`check` in slices of milliseconds; to be dropped when anything changes between two of them."""
    yield from cache.arena.check_slabs()
    nodes: list[Node] = []
    for node in cache.tree.walk():
        nodes.append(node)
        if not len(nodes) % SLICE:
            yield
    yield from _check_slots(cache, nodes)
    if cache.arena.pages_per_slab:
        yield from _check_pages(cache, nodes)
    yield from _check_tree(cache, nodes)


def _check_slots(cache: StateCache, nodes: list[Node]) -> Iterator[None]:
    arena = cache.arena
    held: list[int] = []
    for allocation in cache.allocations.values():
        held.append(allocation.live)
        held.extend(allocation.tracking_slots)
    cached = [node.slot for node in nodes if node.slot]
    of_sequences: list[int] = []
    of_tree: list[int] = []
    for first in range(1, arena.slabs, SLICE):
        for slot, state in arena.slots_of(range(first, min(first + SLICE, arena.slabs))):
            if state is SlotState.CACHED:
                of_tree.append(slot)
            elif state is not SlotState.FENCED:
                of_sequences.append(slot)
        yield
    _same("W1 slots of sequences", sorted(held), of_sequences)
    _same("W1 slots of the tree", sorted(cached), of_tree)


def _check_pages(cache: StateCache, nodes: list[Node]) -> Iterator[None]:
    arena = cache.arena
    held = np.zeros(len(arena.page_owner), np.int32)
    seen = 0
    for node in nodes:
        held[node.pages] += 1
        seen += len(node.pages) + 16
        if seen > PAGES_AT_ONCE:
            seen = 0
            yield
    twice = sum(len(node.pages) for node in nodes) - int(held.sum())
    if twice:
        raise LedgerViolation(f"W1 pages of the tree: {twice} are held twice by one node")
    yield
    _same_pages("W1 pages of the tree", held, arena.page_owner == PageOwner.TREE)
    yield
    held[:] = 0
    for allocation in cache.allocations.values():
        pages = allocation.pages
        np.add.at(held, pages[arena.page_owner[pages] == PageOwner.SEQUENCE], 1)
        shared = pages[arena.page_owner[pages] == PageOwner.TREE]
        locked = np.concatenate([n.pages for n in allocation.node.path()]) if allocation.node else shared[:0]
        if len(np.setdiff1d(shared, locked)):
            raise LedgerViolation("W8: a sequence uses a page of the tree that it has not locked")
        yield
    _same_pages("W1 pages of sequences", held, arena.page_owner == PageOwner.SEQUENCE)
    yield
    arena.check_pages()


def _check_tree(cache: StateCache, nodes: list[Node]) -> Iterator[None]:
    tree = cache.tree
    checkpoints = pages = locked_pages = locked_states = 0
    kv_locks: dict[int, int] = {}
    state_locks: dict[int, int] = {}
    for allocation in cache.allocations.values():
        for node in allocation.node.path() if allocation.node else []:
            kv_locks[id(node)] = kv_locks.get(id(node), 0) + 1
        if allocation.match_node is not None:
            state_locks[id(allocation.match_node)] = state_locks.get(id(allocation.match_node), 0) + 1
    for number, node in enumerate(nodes, 1):
        assert node.parent is not None
        if not number % SLICE:
            yield
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
    counted = (len(nodes), checkpoints, pages, locked_pages, locked_states)
    kept = (tree.nodes, tree.checkpoints, tree.pages, tree.locked_pages, tree.locked_states)
    if counted != kept:
        raise LedgerViolation(f"W5: tree counts {counted}, kept {kept}")


def _same_pages(what: str, held: npt.NDArray[np.int32], account: npt.NDArray[np.bool_]) -> None:
    odd = np.flatnonzero(held != account)
    if len(odd):
        raise LedgerViolation(
            f"{what}: held {held.sum()}, account {account.sum()}, differ at {odd[:5].tolist()}"
        )


def _same(what: str, left: list[int], right: list[int]) -> None:
    if left != right:
        odd = sorted(set(left) ^ set(right)) or [x for x in set(left) if left.count(x) > 1]
        raise LedgerViolation(f"{what}: held {len(left)}, account {len(right)}, differ at {odd[:5]}")
