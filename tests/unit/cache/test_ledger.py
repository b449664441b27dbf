"""The ledger finds each kind of violation, and shows the account."""

from collections.abc import Callable

import pytest

from cache_bench import CacheBench, ids
from mamba_server.cache import arena, ledger
from mamba_server.cache.arena import PageOwner
from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.node import Node
from mamba_server.cache.protocol import Export, Reception
from mamba_server.cache.sequence_allocation import SequenceAllocation
from mamba_server.cache.slot_state import SlotState


def busy() -> tuple[CacheBench, SequenceAllocation, Node]:
    """Return one sequence that resumed from a checkpoint of another, and that checkpoint."""
    bench = CacheBench.make()
    bench.serve(ids(range(17)))
    allocation = bench.admit(ids(range(30)))
    assert allocation is not None
    bench.launch(allocation, 30)
    assert allocation.match_node is not None
    bench.check()
    return bench, allocation, allocation.match_node


def forget_a_slot(bench: CacheBench, allocation: SequenceAllocation, _: Node) -> None:
    allocation.spare.pop()


def own_a_slot_twice(bench: CacheBench, allocation: SequenceAllocation, _: Node) -> None:
    allocation.spare.append(allocation.live)


def share_a_slot_with_the_tree(bench: CacheBench, allocation: SequenceAllocation, node: Node) -> None:
    allocation.spare.append(node.slot)


def lose_a_checkpoint(bench: CacheBench, _: SequenceAllocation, node: Node) -> None:
    node.slot = 0


def forget_a_page(bench: CacheBench, allocation: SequenceAllocation, _: Node) -> None:
    bench.cache.batch.page_count[allocation.row] -= 1


def give_a_page_twice(bench: CacheBench, allocation: SequenceAllocation, _: Node) -> None:
    allocation.pages[-1] = allocation.pages[-2]


def use_a_page_without_a_lock(bench: CacheBench, allocation: SequenceAllocation, node: Node) -> None:
    bench.cache.tree.unlock_state(node)
    bench.cache.tree.unlock(node)
    allocation.match_node = allocation.node = None


def account_a_tree_page_to_a_sequence(bench: CacheBench, _: SequenceAllocation, node: Node) -> None:
    bench.arena.page_owner[node.pages[:1]] = PageOwner.SEQUENCE


def shift_a_depth(bench: CacheBench, _: SequenceAllocation, node: Node) -> None:
    node.depth += 1


def leave_a_lock(bench: CacheBench, _: SequenceAllocation, node: Node) -> None:
    bench.cache.tree.lock(node, state=False)


def drop_a_lock(bench: CacheBench, _: SequenceAllocation, node: Node) -> None:
    bench.cache.tree.unlock_state(node)


def miscount_the_tree(bench: CacheBench, _: SequenceAllocation, node: Node) -> None:
    bench.cache.tree.checkpoints += 1


def miscount_the_slots(bench: CacheBench, _: SequenceAllocation, node: Node) -> None:
    bench.arena.slots_by_state[SlotState.CACHED] += 1


def miscount_the_pages(bench: CacheBench, _: SequenceAllocation, node: Node) -> None:
    bench.arena.pages_by_owner[PageOwner.TREE] += 1


def miscount_the_pins(bench: CacheBench, _: SequenceAllocation, node: Node) -> None:
    bench.arena.pin(node.pages, 1)


def miscount_the_kept_slabs(bench: CacheBench, _: SequenceAllocation, node: Node) -> None:
    bench.arena._kept_slabs -= 1


def miscount_what_was_flushed(bench: CacheBench, _: SequenceAllocation, node: Node) -> None:
    bench.cache.tree.forgotten += 1


def leak_a_slab(bench: CacheBench, _: SequenceAllocation, node: Node) -> None:
    bench.arena._free_slabs.pop()


def list_a_free_slab_twice(bench: CacheBench, _: SequenceAllocation, node: Node) -> None:
    bench.arena._free_slabs[0] = bench.arena._free_slabs[1]


def free_a_slot_that_is_held(bench: CacheBench, allocation: SequenceAllocation, _: Node) -> None:
    bench.arena._slot_state[allocation.live] = SlotState.FREE


@pytest.mark.parametrize(
    ("damage", "invariant"),
    [
        (forget_a_slot, "W1 slots of sequences"), (own_a_slot_twice, "W1 slots of sequences"),
        (share_a_slot_with_the_tree, "W1 slots of sequences"), (lose_a_checkpoint, "W1 slots of the tree"),
        (forget_a_page, "W1 pages of sequences"), (give_a_page_twice, "W1 pages of sequences"),
        (use_a_page_without_a_lock, "W8"), (account_a_tree_page_to_a_sequence, "W1 pages of the tree"),
        (shift_a_depth, "P1"), (leave_a_lock, "W4"), (drop_a_lock, "W4"), (miscount_the_tree, "W5"),
        (miscount_the_slots, "W5"), (miscount_the_pages, "W5"), (miscount_the_pins, "W5"),
        (miscount_the_kept_slabs, "W5"), (miscount_what_was_flushed, "W5"),
        (leak_a_slab, "W5"), (list_a_free_slab_twice, "W5"), (free_a_slot_that_is_held, "W5"),
    ],
)  # fmt: skip
def test_the_ledger_names_what_is_wrong(
    damage: Callable[[CacheBench, SequenceAllocation, Node], None], invariant: str
) -> None:
    bench, allocation, node = busy()
    damage(bench, allocation, node)
    with pytest.raises(LedgerViolation, match=invariant):
        bench.check()


def in_transit() -> tuple[CacheBench, Reception, Export]:
    """Return a cache with one open reception on pages of the tree, one quarantined and one export."""
    bench = CacheBench.make(slabs=24)
    bench.serve(ids(range(17)))
    export = bench.cache.export(ids(range(16)), "", 2)
    reception = bench.cache.receive(ids(range(8), range(50, 62)), "")
    given_up = bench.cache.receive(ids(range(8)), "x")
    assert export is not None
    assert reception is not None
    assert given_up is not None
    bench.cache.abandon(given_up, writer_ended=False)
    bench.check()
    return bench, reception, export


def forget_a_reception(bench: CacheBench, reception: Reception, _: Export) -> None:
    del bench.cache.receptions[reception.number]


def share_a_slot_with_a_reception(bench: CacheBench, reception: Reception, _: Export) -> None:
    bench.arena._slot_state[reception.slot] = SlotState.LIVE
    bench.arena.slots_by_state[SlotState.RECEIVING] -= 1
    bench.arena.slots_by_state[SlotState.LIVE] += 1


def account_a_received_page_to_the_quarantine(bench: CacheBench, reception: Reception, _: Export) -> None:
    bench.arena.page_owner[reception.pages[:1]] = PageOwner.QUARANTINED


def end_a_writer_that_writes(bench: CacheBench, reception: Reception, _: Export) -> None:
    bench.arena.end_writer(reception.number)


def unlock_the_pages_that_need_not_travel(bench: CacheBench, reception: Reception, _: Export) -> None:
    base = bench.cache.receptions[reception.number].base
    assert base is not None
    bench.cache.tree.unlock(base)


def forget_an_export(bench: CacheBench, _: Reception, export: Export) -> None:
    del bench.cache.exports[export.number]


def call_an_exported_slot_cached(bench: CacheBench, _: Reception, export: Export) -> None:
    bench.arena.move(export.slot, SlotState.CACHED)


def call_a_cached_slot_installed(bench: CacheBench, _: Reception, export: Export) -> None:
    node = next(n for n in bench.cache.tree.walk() if n.slot not in (0, export.slot))
    bench.arena._slot_state[node.slot] = SlotState.INSTALLED
    bench.arena.slots_by_state[SlotState.CACHED] -= 1
    bench.arena.slots_by_state[SlotState.INSTALLED] += 1


@pytest.mark.parametrize(
    ("damage", "invariant"),
    [
        (forget_a_reception, "T1 slots of receptions"),
        (share_a_slot_with_a_reception, "W1 slots of sequences"),
        (account_a_received_page_to_the_quarantine, "T1 pages of receptions"),
        (end_a_writer_that_writes, "T3"), (unlock_the_pages_that_need_not_travel, "W4"),
        (forget_an_export, "T6"), (call_an_exported_slot_cached, "T6"), (call_a_cached_slot_installed, "T5"),
    ],
)  # fmt: skip
def test_the_ledger_names_what_is_wrong_with_states_in_transit(
    damage: Callable[[CacheBench, Reception, Export], None], invariant: str
) -> None:
    bench, reception, export = in_transit()
    damage(bench, reception, export)
    with pytest.raises(LedgerViolation, match=invariant):
        bench.check()


@pytest.mark.parametrize("at_once", [1, 8, 1000])
def test_a_recount_is_cut_however_few_hold_the_pages(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _, _ = busy()
    whole = sum(1 for _ in ledger.audit(bench.cache))
    monkeypatch.setattr(arena, "PAGES_PER_SLICE", at_once)
    monkeypatch.setattr(ledger, "PAGES_PER_COUNT", at_once)
    pages = len(bench.arena.page_owner)
    assert sum(1 for _ in ledger.audit(bench.cache)) - whole >= 2 * (pages // max(4, at_once) - 1)


def test_the_account_adds_up_while_sequences_run() -> None:
    bench, allocation, _ = busy()
    account = ledger.account(bench.cache)
    slots = (
        account.slots_free + account.slots_live + account.slots_tracking + account.slots_cached
        + account.slots_fenced + account.slots_receiving + account.slots_exported + account.slots_quarantined
        + account.slabs_of_pages
    )  # fmt: skip
    assert slots == account.slots_total == 15
    assert account.slots_live == 1
    assert account.slots_tracking == len(allocation.tracking_slots)
    assert account.as_dict()["pages_tree"] == account.pages_tree == bench.cache.tree.pages


def test_the_account_adds_up_while_states_are_in_transit() -> None:
    bench, _, _ = in_transit()
    account = ledger.account(bench.cache)
    assert (account.slots_receiving, account.slots_exported, account.slots_quarantined) == (1, 1, 1)
    assert (account.pages_receiving, account.pages_quarantined) == (3, 2)
    in_use = account.slots_cached + account.slots_fenced + 3
    assert account.slots_free + in_use + account.slabs_of_pages == account.slots_total
    pages = account.pages_tree + account.pages_sequence + account.pages_fenced + 3 + 2
    slots_as_pages = (in_use + account.slots_live + account.slots_tracking) * 4
    assert pages + account.pages_free + slots_as_pages == account.slots_total * 4


def test_what_waits_for_a_fence_is_counted_apart() -> None:
    bench, _, _ = busy()
    bench.arena.free_slot(bench.cache.allocations.popitem()[1].spare.pop(), fence=9)
    assert ledger.account(bench.cache).slots_fenced == 1
