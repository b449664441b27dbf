"""States that leave the cache and come in: receptions, exports, quarantine, installs, reported evictions."""

from collections.abc import Callable

import numpy as np
import pytest

from cache_bench import CacheBench, flush_and_sweep, ids
from mamba_planner.strategy import reservation
from mamba_server.cache.arena import AllocationSite, PageOwner
from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.ghost_tree import Ghost
from mamba_server.cache.node import Node, Tokens
from mamba_server.cache.protocol import EvictedCheckpoint, Reception
from mamba_server.cache.slot_state import SlotState

TEXT = ids(range(16))
PROMPT = ids(range(17))


def received(bench: CacheBench, tokens: Tokens = TEXT, salt: str = "") -> Reception:
    """Return a reception that has begun."""
    reception = bench.cache.receive(tokens, salt)
    assert reception is not None
    bench.check()
    return reception


def installed(bench: CacheBench, tokens: Tokens = TEXT, salt: str = "") -> Reception:
    """Return a reception that was installed."""
    reception = received(bench, tokens, salt)
    bench.cache.confirm(reception)
    bench.check()
    assert bench.cache.install(reception, bench.step + 1)
    bench.check()
    return reception


def resumable(bench: CacheBench, tokens: Tokens = PROMPT) -> int:
    """Return the depth at which `tokens` resume in the next step."""
    return bench.cache.match(tokens, "", bench.step + 1).resumable


def node_at(bench: CacheBench, slot: int) -> Node:
    return next(node for node in bench.cache.tree.walk() if node.slot == slot)


# --- receptions --------------------------------------------------------------------------------------


def test_a_received_state_is_an_ordinary_hit_once_it_is_installed_and_not_before() -> None:
    bench = CacheBench.make()
    reception = received(bench)
    assert resumable(bench) == 0
    bench.cache.confirm(reception)
    assert resumable(bench) == 0
    assert bench.cache.install(reception, bench.step + 1)
    allocation = bench.admit(PROMPT)
    assert allocation is not None
    assert (allocation.resumed, allocation.slot_in) == (16, reception.slot)
    assert allocation.pages[:4].tolist() == reception.pages.tolist()


def test_a_reception_takes_one_slot_and_the_pages_that_the_tree_lacks() -> None:
    bench = CacheBench.make()
    bench.serve(ids(range(9)))
    reception = received(bench, ids(range(6), range(50, 60)))
    assert (reception.base, reception.depth, len(reception.pages)) == (4, 16, 3)
    account, capacity = bench.cache.account(), bench.cache.capacity
    assert (account.slots_receiving, account.pages_receiving) == (1, 3)
    assert capacity.receiving == 1


def test_a_reception_of_part_of_a_page_is_refused() -> None:
    with pytest.raises(LedgerViolation, match="P5"):
        CacheBench.make().cache.receive(ids(range(15)), "")


def test_a_state_that_the_tree_has_is_not_received() -> None:
    bench = CacheBench.make()
    installed(bench)
    assert bench.cache.receive(TEXT, "") is None
    assert bench.cache.receive(TEXT, "x") is not None
    assert bench.cache.tree.locked_pages == 0


def test_a_text_that_leaves_the_tree_within_a_node_is_received_although_the_node_ends_as_deep() -> None:
    bench = CacheBench.make()
    installed(bench)
    reception = received(bench, ids(range(12), range(70, 74)))
    assert (reception.base, reception.depth) == (12, 16)


@pytest.mark.parametrize("caching", [True, False])
def test_a_refused_reception_changes_nothing(caching: bool) -> None:
    bench = CacheBench.make(prefix_caching=caching)
    bench.serve(ids(range(9)))
    bench.arena.refuse = lambda site: site is AllocationSite.RECEIVE
    before = bench.cache.account()
    assert bench.cache.receive(TEXT, "") is None
    assert bench.cache.account() == before
    assert bench.cache.tree.locked_pages == 0
    bench.check()


def test_a_reception_evicts_for_its_memory_but_not_the_pages_that_it_continues() -> None:
    bench = CacheBench.make(slabs=4, per_slab=0, strategy="NoBuffer", cap=9)
    for first in (0, 100, 200):
        installed(bench, ids(range(first, first + 16)))
    assert bench.arena.free_slots == 0
    reception = received(bench, ids(range(16), range(50, 54)))
    assert reception.base == 16
    assert bench.cache.counters.evicted == 1
    bench.cache.abandon(reception, writer_ended=True)
    bench.check()


def test_the_pages_that_need_not_travel_stay_until_the_reception_ends() -> None:
    bench = CacheBench.make(slabs=6, per_slab=2)
    bench.serve(ids(range(9)))
    reception = received(bench, ids(range(8), range(50, 58)))
    assert reception.base == 8
    flush_and_sweep(bench.cache)
    bench.check()
    assert bench.cache.tree.pages == bench.cache.tree.locked_pages == 2
    assert bench.cache.receive(ids(range(300, 340)), "") is None
    bench.cache.confirm(reception)
    assert bench.cache.install(reception, 1)
    bench.check()
    assert resumable(bench, ids(range(8), range(50, 60))) == 16


def test_a_confirmed_reception_that_is_wrong_is_free_at_once() -> None:
    bench = CacheBench.make()
    reception = received(bench)
    bench.cache.confirm(reception)
    bench.cache.abandon(reception, writer_ended=False)
    bench.check()
    assert bench.arena.free_slots == 15


def test_an_abandoned_reception_is_free_at_once_if_the_end_of_its_writer_was_seen() -> None:
    bench = CacheBench.make()
    bench.cache.abandon(received(bench), writer_ended=True)
    bench.check()
    assert bench.arena.free_slots == 15


def test_no_time_and_no_step_frees_what_a_writer_may_still_write() -> None:
    bench = CacheBench.make()
    reception = received(bench)
    bench.cache.abandon(reception, writer_ended=False)
    bench.check()
    account = bench.cache.account()
    assert (account.slots_quarantined, account.pages_quarantined) == (1, 4)
    for step in range(1, 100):
        bench.cache.advance(step)
    flush_and_sweep(bench.cache)
    bench.check()
    assert bench.cache.account().slots_quarantined == 1
    bench.cache.writer_ended(reception)
    bench.check()
    assert bench.arena.free_slots == 15


@pytest.mark.parametrize(
    "call",
    [
        lambda cache, it: cache.install(it, 1),
        lambda cache, it: cache.writer_ended(it),
        lambda cache, it: [cache.confirm(it), cache.confirm(it)],
        lambda cache, it: [cache.abandon(it, writer_ended=True), cache.abandon(it, writer_ended=True)],
        lambda cache, it: [cache.abandon(it, writer_ended=False), cache.confirm(it)],
    ],
)
def test_a_step_of_a_reception_that_was_not_reached_is_refused(call: Callable[..., object]) -> None:
    bench = CacheBench.make()
    reception = received(bench)
    with pytest.raises(LedgerViolation, match="T1"):
        call(bench.cache, reception)


def test_pages_of_an_open_writer_go_to_nobody() -> None:
    bench = CacheBench.make()
    reception = received(bench)
    with pytest.raises(LedgerViolation, match="T3"):
        bench.arena.free_pages_of(reception.pages, 0, PageOwner.TRANSFER)
    with pytest.raises(LedgerViolation, match="T3"):
        bench.arena.give_pages_to_tree(reception.pages, PageOwner.TRANSFER)
    with pytest.raises(LedgerViolation, match="T3"):
        bench.arena.free_slot(reception.slot)


# --- installs ----------------------------------------------------------------------------------------


def test_of_two_receptions_of_one_text_the_second_returns_its_memory() -> None:
    bench = CacheBench.make()
    first, second = received(bench), received(bench)
    for reception in (first, second):
        bench.cache.confirm(reception)
    assert bench.cache.install(first, 1)
    assert not bench.cache.install(second, 1)
    bench.check()
    assert (bench.cache.counters.created, bench.cache.counters.duplicates) == (1, 1)
    assert bench.cache.account().slots_receiving == bench.cache.account().pages_receiving == 0
    assert bench.cache.account().pages_tree == 4


def test_pages_that_the_tree_got_during_a_reception_are_returned_once() -> None:
    bench = CacheBench.make()
    reception = received(bench, ids(range(24)))
    bench.serve(ids(range(13)))
    bench.cache.confirm(reception)
    free = bench.arena.free_pages
    assert bench.cache.install(reception, bench.step + 1)
    bench.check()
    assert bench.arena.free_pages == free + 3
    assert resumable(bench, ids(range(25))) == 24


def test_a_state_that_a_launch_still_copies_is_resumed_and_neither_evicted_nor_exported() -> None:
    bench = CacheBench.make(slabs=3, per_slab=0, strategy="NoBuffer")
    other = bench.admit(ids(range(100, 117)))
    assert other is not None
    reception = received(bench)
    bench.cache.confirm(reception)
    step = bench.launch(other, 17)
    assert bench.cache.install(reception, step + 1)
    bench.check()
    assert bench.arena.slot_state(reception.slot) is SlotState.INSTALLED
    assert resumable(bench) == 16
    assert bench.cache.match(PROMPT, "", step).resumable == 0
    assert bench.cache.export(TEXT, "", step + 1) is None
    assert bench.cache.capacity.evictable_slots == 0
    assert bench.cache.capacity.returning
    assert bench.admit(ids(range(200, 217))) is None
    bench.commit(other, ids(range(100, 117)), step)
    assert bench.arena.slot_state(reception.slot) is SlotState.CACHED
    assert not bench.cache.capacity.returning
    assert bench.cache.export(TEXT, "", step + 1) is not None


def test_a_shallower_state_on_pages_that_a_launch_still_copies_is_neither_exported_nor_reported() -> None:
    bench = CacheBench.make(slabs=20, strategy="NoBuffer", interval=4)
    reported: list[int] = []
    bench.cache.on_eviction(lambda evicted: reported.append(evicted.depth))
    reception = received(bench)
    bench.cache.confirm(reception)
    shorter = bench.admit(ids(range(9)))
    assert shorter is not None
    first = bench.launch(shorter, 9)
    second = bench.step = first + 1
    assert bench.cache.install(reception, second + 1)
    bench.cache.advance(first)
    bench.cache.commit(shorter, ids(range(9)), first)
    bench.check()
    node = next(node for node in bench.cache.tree.walk() if node.depth == 8)
    assert node.slot
    assert bench.cache.export(ids(range(8)), "", second + 1) is None
    bench.cache.reclaimer.evict(node)
    assert not reported
    bench.cache.advance(second)
    bench.check()


def test_what_a_launch_may_still_write_to_is_free_after_it() -> None:
    bench = CacheBench.make()
    first, second = received(bench), received(bench)
    for reception in (first, second):
        bench.cache.confirm(reception)
    assert bench.cache.install(first, 8)
    assert not bench.cache.install(second, 8)
    bench.check()
    assert (bench.cache.account().slots_fenced, bench.cache.account().pages_fenced) == (1, 4)
    bench.cache.advance(7)
    bench.check()
    assert (bench.cache.account().slots_fenced, bench.cache.account().pages_fenced) == (0, 0)


def test_a_state_that_was_flushed_while_a_launch_copied_it_is_freed_after_the_launch() -> None:
    bench = CacheBench.make()
    reception = received(bench)
    bench.cache.confirm(reception)
    assert bench.cache.install(reception, 8)
    assert flush_and_sweep(bench.cache) == 1
    bench.check()
    assert resumable(bench) == 0
    assert bench.arena.free_slots < 15
    bench.cache.advance(7)
    bench.check()
    assert bench.arena.free_slots == 15


def test_an_install_keeps_the_cap_while_slots_are_short() -> None:
    bench = CacheBench.make(slabs=5, per_slab=0, strategy="NoBuffer", cap=1)
    for depth in (4, 8, 12):
        installed(bench, ids(range(depth)))
    assert bench.checkpoints(ids(range(12))) == [12]


def test_a_received_state_is_worth_as_much_as_one_that_a_prompt_has_just_used() -> None:
    bench = CacheBench.make(policy="RecomputeCost", slabs=40)
    other = ids(range(100, 116))
    for last in (900, 901):
        bench.serve(ids(range(16), last))
    reception = installed(bench, other)
    weigh = bench.cache.tree.eviction.weigh
    by_prompt = next(
        node for node in bench.cache.tree.walk() if node.depth == 16 and node.slot != reception.slot
    )
    arrived = node_at(bench, reception.slot)
    assert weigh(arrived) >= weigh(by_prompt) > 0


def test_the_worth_of_a_received_state_falls_while_nobody_uses_it() -> None:
    bench = CacheBench.make(policy="RecomputeCost", slabs=200)
    node = node_at(bench, installed(bench).slot)
    before = node.priority
    for number in range(40):
        bench.serve(ids(range(1000 * number + 500, 1000 * number + 509)))
    assert node.priority < before


def test_the_request_for_which_a_state_is_received_is_no_return_to_it() -> None:
    bench = CacheBench.make(policy="RecomputeCost")
    reception = installed(bench)
    bench.serve(PROMPT)
    node = node_at(bench, reception.slot)
    assert isinstance(node.ghost, Ghost)
    assert not node.ghost.arrived
    assert node.ghost.uses == 0


# --- exports -----------------------------------------------------------------------------------------


def test_the_deepest_checkpoint_within_the_bound_is_exported() -> None:
    bench = CacheBench.make(slabs=40)
    for depth in (4, 8, 16):
        installed(bench, ids(range(depth)))
    for most, depth in ((None, 16), (16, 16), (15, 8), (8, 8), (4, 4)):
        export = bench.cache.export(TEXT, "", 1, most=most)
        assert export is not None
        assert export.depth == depth == len(export.pages) * 4
        assert export.pages.tolist() == node_pages(bench, export.slot)
        bench.cache.end_export(export)
    assert bench.cache.export(TEXT, "", 1, most=3) is None
    assert bench.cache.export(TEXT, "x", 1) is None


def node_pages(bench: CacheBench, slot: int) -> list[int]:
    return np.concatenate([node.pages for node in node_at(bench, slot).path()]).tolist()


def test_an_exported_checkpoint_is_spared_until_its_last_reader_ends() -> None:
    bench = CacheBench.make(slabs=3, per_slab=0, strategy="NoBuffer")
    slot = installed(bench).slot
    first, second = bench.cache.export(TEXT, "", 1), bench.cache.export(TEXT, "", 1)
    assert first is not None
    assert second is not None
    assert bench.cache.capacity.exported == bench.cache.account().slots_exported == 1
    for export in (first, second):
        assert bench.cache.receive(ids(range(100, 104)), "") is not None or export is second
        assert bench.cache.receive(ids(range(200, 204)), "") is None
        bench.check()
        bench.cache.end_export(export)
    assert bench.arena.slot_state(slot) is SlotState.CACHED
    assert bench.cache.receive(ids(range(200, 204)), "") is not None
    bench.check()


def test_an_export_survives_a_flush_forgotten_and_is_freed_at_its_end() -> None:
    bench = CacheBench.make()
    installed(bench)
    export = bench.cache.export(TEXT, "", 1)
    assert export is not None
    assert flush_and_sweep(bench.cache) == 1
    bench.check()
    assert resumable(bench) == 0
    assert bench.cache.export(TEXT, "", 1) is None
    assert bench.arena.slot_state(export.slot) is SlotState.EXPORTED
    assert flush_and_sweep(bench.cache) == 0
    bench.cache.end_export(export)
    bench.check()
    assert bench.arena.free_slots == 15
    assert not bench.cache.tree.roots


def test_an_export_survives_the_cap_and_a_change_of_strategy() -> None:
    bench = CacheBench.make(slabs=6, per_slab=0, strategy="NoBuffer", cap=1)
    installed(bench, ids(range(4)))
    export = bench.cache.export(ids(range(4)), "", 1)
    assert export is not None
    for depth in (8, 12):
        installed(bench, ids(range(depth)))
    assert bench.checkpoints(TEXT) == [4, 12]
    assert bench.cache.change_strategy(reservation("ExtraBuffer", overlap=True)) is None
    bench.check()
    assert bench.checkpoints(TEXT) == [4, 12]
    bench.cache.end_export(export)
    bench.check()


def test_an_export_ends_once() -> None:
    bench = CacheBench.make()
    installed(bench)
    export = bench.cache.export(TEXT, "", 1)
    assert export is not None
    bench.cache.end_export(export)
    with pytest.raises(LedgerViolation, match="T6"):
        bench.cache.end_export(export)


def test_a_wrong_checkpoint_that_is_exported_is_never_resumed_again() -> None:
    bench = CacheBench.make()
    slot = installed(bench).slot
    export = bench.cache.export(TEXT, "", 1)
    assert export is not None
    for attempt in range(2):
        allocation = bench.admit(PROMPT)
        assert allocation is not None
        assert allocation.resumed == (0 if attempt else 16)
        bench.launch(allocation, 17)
        bench.cache.advance(bench.step)
        if not attempt:
            bench.cache.discard_results(allocation)
            bench.cache.retire(allocation, lambda: PROMPT)
        else:
            bench.cache.commit(allocation, PROMPT, bench.step)
            bench.cache.retire(allocation, lambda: PROMPT)
        bench.check()
        match = bench.cache.match(PROMPT, "", bench.step + 1)
        assert match.node is None or match.node.slot != slot
    bench.cache.end_export(export)
    bench.check()


# --- evictions ---------------------------------------------------------------------------------------


def test_a_checkpoint_is_reported_whole_before_its_memory_is_returned() -> None:
    bench = CacheBench.make(slabs=3, per_slab=0, strategy="NoBuffer")
    seen: list[tuple[int, int, str, list[int]]] = []

    def listener(evicted: EvictedCheckpoint) -> None:
        assert bench.arena.slot_state(evicted.slot) is SlotState.CACHED
        assert bench.arena.free_slots == 0
        assert evicted.fence <= bench.arena.completed
        seen.append((evicted.depth, len(evicted.pages), evicted.salt, evicted.token_ids().tolist()))

    bench.cache.on_eviction(listener)
    for first in (0, 100, 200, 300):
        installed(bench, ids(range(first, first + 16)), salt="x")
    assert seen == [(16, 4, "x", list(range(first, first + 16))) for first in (0, 100)]
    assert bench.cache.counters.evicted == 2


def test_what_the_cap_drops_is_reported_and_what_a_flush_or_a_failure_drops_is_not() -> None:
    bench = CacheBench.make(slabs=5, per_slab=0, strategy="NoBuffer", cap=1)
    depths: list[int] = []
    bench.cache.on_eviction(lambda evicted: depths.append(evicted.depth))
    for depth in (4, 8, 12):
        installed(bench, ids(range(depth)))
    assert depths == [4, 8]
    allocation = bench.admit(ids(range(13)))
    assert allocation is not None
    bench.launch(allocation, 13)
    bench.cache.advance(bench.step)
    bench.cache.discard_results(allocation)
    bench.cache.retire(allocation, lambda: ids(range(13)))
    assert bench.checkpoints(TEXT) == []
    installed(bench, ids(range(4)))
    flush_and_sweep(bench.cache)
    assert depths == [4, 8]
    bench.cache.on_eviction(None)


# --- capacity ----------------------------------------------------------------------------------------


def test_memory_in_transit_is_not_available_and_quarantined_memory_is_not_counted_on() -> None:
    bench = CacheBench.make(slabs=7, per_slab=4, strategy="NoBuffer")
    capacity = bench.cache.capacity
    assert (capacity.available_pages, capacity.never_fits(80)) == (24, False)
    reception = received(bench)
    capacity = bench.cache.capacity
    assert (capacity.available_pages, capacity.never_fits(80)) == (16, False)
    bench.cache.abandon(reception, writer_ended=False)
    capacity = bench.cache.capacity
    assert (capacity.quarantined, capacity.quarantined_pages) == (1, 4)
    assert (capacity.available_pages, capacity.never_fits(64), capacity.never_fits(48)) == (16, True, False)
    bench.cache.writer_ended(reception)
    assert not bench.cache.capacity.never_fits(80)


def test_a_strategy_that_lacks_the_slots_of_receptions_is_refused_with_their_number() -> None:
    bench = CacheBench.make(slabs=4, per_slab=0, strategy="NoBuffer")
    allocation = bench.admit(PROMPT)
    assert allocation is not None
    reception = received(bench, ids(range(100, 104)))
    refusal = bench.cache.change_strategy(reservation("ExtraBuffer", overlap=True))
    assert refusal is not None
    assert "1 received or exported" in refusal.message
    bench.cache.abandon(reception, writer_ended=True)
    assert bench.cache.change_strategy(reservation("ExtraBuffer", overlap=True)) is None
    bench.check()
