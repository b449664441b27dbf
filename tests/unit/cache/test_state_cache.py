"""The state cache: admission, checkpoints, ends, room, strategies."""

import pytest

from cache_bench import CacheBench, flush_and_sweep, ids
from mamba_planner.strategy import reservation
from mamba_server.cache.arena import AllocationSite
from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.node import Tokens
from mamba_server.cache.sequence_allocation import Checkpoint

PROMPT = ids(range(17))


# --- admission ---------------------------------------------------------------------------------------


def test_the_second_identical_prompt_resumes_from_the_first() -> None:
    bench = CacheBench.make()
    bench.serve(PROMPT)
    allocation = bench.admit(PROMPT)
    assert allocation is not None
    assert (allocation.resumed, allocation.depth) == (16, 16)


def test_a_hit_reads_the_checkpoint_in_place_under_lock_until_its_fence() -> None:
    bench = CacheBench.make()
    bench.serve(PROMPT)
    allocation = bench.admit(PROMPT)
    assert allocation is not None
    node = allocation.match_node
    assert node is not None
    assert allocation.slot_in == node.slot != allocation.live
    assert node.state_lock == 1
    step = bench.launch(allocation, 17)
    assert (node.state_lock, allocation.slot_in) == (1, allocation.live)
    bench.commit(allocation, PROMPT, step)
    assert (node.state_lock, node.kv_lock) == (0, 1)


def test_the_third_request_of_a_branch_resumes_at_the_branch_point() -> None:
    bench = CacheBench.make(page_size=4, slabs=80)
    stem = range(257)
    for suffix in (1000, 2000):
        bench.serve(ids(stem, range(suffix, suffix + 20)))
    allocation = bench.admit(ids(stem, range(3000, 3020)))
    assert allocation is not None
    assert allocation.resumed == 256


def test_the_second_turn_resumes_before_the_generation_prompt() -> None:
    bench = CacheBench.make(slabs=40, interval=400)
    bench.serve(ids(range(50), 900, 901), boundary=48)
    allocation = bench.admit(ids(range(50), range(100, 120)))
    assert allocation is not None
    assert allocation.resumed == 48


def test_a_refused_admission_leaves_no_lock() -> None:
    bench = CacheBench.make()
    bench.serve(PROMPT)
    bench.arena.refuse = lambda site: site is AllocationSite.ADMIT
    assert bench.admit(PROMPT) is None
    bench.check()
    assert bench.cache.tree.locked_states == bench.cache.tree.locked_pages == 0
    assert not bench.cache.allocations


def test_room_is_never_made_of_what_the_same_admission_matched() -> None:
    # Full of two checkpoints; the older one, the first to go, is the one that is matched.
    bench = CacheBench.make(slabs=3, per_slab=0, strategy="NoBuffer", cap=1, interval=400)
    matched, other = ids(range(17)), ids(range(100, 116))
    for tokens in (matched, other):
        bench.serve(tokens)
    assert bench.arena.free_slots == 0
    allocation = bench.admit(ids(range(30)))
    assert allocation is not None
    assert (allocation.resumed, bench.cache.counters.evicted) == (16, 1)
    assert allocation.match_node is not None
    assert allocation.match_node.slot == allocation.slot_in != allocation.live
    assert (bench.checkpoints(matched), bench.checkpoints(other)) == ([16], [])
    bench.check()


def test_nothing_is_evicted_in_vain() -> None:
    bench = CacheBench.make(slabs=8)
    bench.serve(PROMPT)
    before = bench.checkpoints(PROMPT)
    assert bench.admit(ids(range(1000, 1200))) is None
    assert bench.checkpoints(PROMPT) == before != []


@pytest.mark.parametrize(("tokens", "never"), [(48, False), (49, True)])
def test_a_sequence_larger_than_the_arena_is_known_before_it_waits(tokens: int, never: bool) -> None:
    bench = CacheBench.make(slabs=7, per_slab=4, page_size=4, strategy="ExtraBuffer")
    assert bench.cache.capacity.never_fits(tokens) is never
    assert not bench.cache.capacity.never_fits(
        tokens, reservation("NoBuffer", overlap=True).slots_per_sequence
    )


def test_without_prefix_caching_nothing_is_kept() -> None:
    bench = CacheBench.make(prefix_caching=False)
    bench.serve(PROMPT)
    assert bench.arena.free_slots == 15
    assert bench.admit(PROMPT) is not None


# --- checkpoints ------------------------------------------------------------------------------------


def test_a_prefill_checkpoint_is_cached_once_its_step_is_complete() -> None:
    bench = CacheBench.make()
    allocation = bench.admit(PROMPT)
    assert allocation is not None
    step = bench.launch(allocation, 17)
    assert bench.checkpoints(PROMPT) == []
    bench.commit(allocation, PROMPT, step)
    assert 16 in bench.checkpoints(PROMPT)


def test_a_pending_slot_is_not_donated_before_its_fence() -> None:
    bench = CacheBench.make()
    allocation = bench.admit(PROMPT)
    assert allocation is not None
    bench.launch(allocation, 17)
    with pytest.raises(LedgerViolation, match="before the fence"):
        bench.cache.commit(allocation, PROMPT, bench.step)


def test_a_checkpoint_off_the_page_grid_is_refused() -> None:
    bench = CacheBench.make()
    allocation = bench.prefill(PROMPT)
    with pytest.raises(LedgerViolation, match="P5"):
        bench.cache._donate(allocation, PROMPT, Checkpoint(15, allocation.live), bench.step)


@pytest.mark.parametrize(("strategy", "slots"), [("NoBuffer", 0), ("ExtraBufferLazy", 1), ("ExtraBuffer", 2)])
def test_a_strategy_holds_its_tracking_slots_between_boundaries(strategy: str, slots: int) -> None:
    bench = CacheBench.make(strategy=strategy, slabs=20)
    tokens = ids(range(60))
    allocation = bench.prefill(tokens[:17])
    for _ in range(30):
        bench.decode(allocation)
        bench.commit(allocation, tokens)
        assert len(allocation.tracking_slots) == slots
    assert [each.depth for each in allocation.ready] == {0: [], 1: [40], 2: [32, 40]}[slots]


def test_a_failed_borrow_skips_the_boundary_and_keeps_the_older_checkpoint() -> None:
    bench = CacheBench.make(strategy="ExtraBufferLazy")
    tokens = ids(range(40))
    allocation = bench.prefill(tokens[:17])
    while allocation.depth < 24:
        bench.decode(allocation)
        bench.commit(allocation, tokens)
    bench.arena.refuse = lambda site: site is AllocationSite.BORROW
    skipped = bench.cache.counters.skipped
    while allocation.depth < 34:
        bench.decode(allocation)
        bench.commit(allocation, tokens)
    assert bench.cache.counters.skipped == skipped + 1
    assert [each.depth for each in allocation.ready] == [24]
    bench.cache.retire(allocation, lambda: tokens[:34])
    bench.check()
    assert max(bench.checkpoints(tokens)) == 24


def test_a_failed_prefill_checkpoint_costs_the_checkpoint_alone() -> None:
    bench = CacheBench.make()
    bench.arena.refuse = lambda site: site is AllocationSite.PREFILL_CHECKPOINT
    bench.serve(PROMPT)
    assert bench.cache.counters.skipped
    assert bench.checkpoints(PROMPT) == []


@pytest.mark.parametrize(("cap", "kept"), [(2, 2), (20, 13)])
def test_a_path_is_cut_to_the_capped_number_of_checkpoints_once_slots_are_short(cap: int, kept: int) -> None:
    bench = CacheBench.make(cap=cap, slabs=60)
    bench.prefill(ids(range(1000, 1260)))
    tokens = ids(range(200))
    for length in range(17, 190, 20):
        bench.serve(tokens[:length])
    assert len(bench.checkpoints(tokens)) == kept


def test_a_checkpoint_that_somebody_waits_for_stays_although_its_path_is_over_the_cap() -> None:
    bench = CacheBench.make(cap=2, slabs=18, interval=400)
    stem = range(8)
    for suffix in (100, 200):
        bench.serve(ids(stem, range(suffix, suffix + 30)))
    longer = ids(stem, range(200, 230), range(300, 360))
    allocation = bench.admit(longer)
    assert allocation is not None
    bench.cache.keep_checkpoint_at(allocation, 36)
    bench.launch(allocation, len(longer))
    bench.commit(allocation, longer)
    assert bench.checkpoints(longer) == [8, 36, 96]


def test_a_path_keeps_all_its_checkpoints_while_slots_are_free() -> None:
    bench = CacheBench.make(cap=2, slabs=60, interval=400)
    tokens = ids(range(200))
    for length in range(17, 190, 40):
        bench.serve(tokens[:length])
    assert len(bench.checkpoints(tokens)) == 5
    assert bench.cache.counters.evicted == 0
    assert max(bench.checkpoints(tokens)) == 176


def test_of_a_path_over_its_cap_the_branch_point_stays_however_cheap() -> None:
    bench = CacheBench.make(cap=2, slabs=18, interval=400)
    stem = range(8)
    for suffix in (100, 200):
        bench.serve(ids(stem, range(suffix, suffix + 30)))
    longer = ids(stem, range(200, 230), range(300, 360))
    assert bench.checkpoints(longer) == [8, 36]
    bench.serve(longer)
    # 28 tokens would be lost with the one at 36, and 8 with the branch point.
    assert bench.checkpoints(longer) == [8, 96]


def test_grid_checkpoints_leave_slots_for_the_next_admission() -> None:
    bench = CacheBench.make(strategy="NoBuffer", slabs=8, per_slab=0, interval=8, cap=20)
    allocation = bench.admit(ids(range(64)))
    assert allocation is not None
    assert len(allocation.placement.optional) == 7
    bench.launch(allocation, 64)
    # Seven slots: the live one, the checkpoint near the end, three on the grid.
    assert max(each.checkpoint.depth for each in allocation.pending) == 60
    assert len(allocation.pending) == 4
    assert bench.arena.free_slots == 2 * bench.cache.strategy.slots_per_sequence
    assert bench.admit(ids(range(500, 510))) is not None


# --- the end ----------------------------------------------------------------------------------------


def test_the_live_slot_is_donated_when_the_end_is_on_the_page_grid() -> None:
    bench = CacheBench.make(strategy="NoBuffer")
    tokens = ids(range(20))
    bench.serve(tokens)
    assert max(bench.checkpoints(tokens)) == 20
    assert bench.arena.free_slots + bench.cache.tree.checkpoints < 16


def test_a_slot_that_a_launched_step_may_still_write_waits_for_it() -> None:
    bench = CacheBench.make()
    tokens = ids(range(20))
    allocation = bench.prefill(tokens[:17])
    for _ in range(3):
        bench.decode(allocation)
    bench.cache.retire(allocation, lambda: tokens)
    assert bench.cache.capacity.retiring == 1
    assert 20 not in bench.checkpoints(tokens)
    bench.cache.release_retired()
    assert bench.cache.capacity.retiring == 1
    bench.cache.advance(bench.step)
    bench.cache.release_retired()
    assert bench.cache.capacity.retiring == 0
    assert max(bench.checkpoints(tokens)) == 20


def test_a_stop_string_donates_an_older_checkpoint_that_fits_or_none() -> None:
    tokens = ids(range(60))
    for keep, deepest in ((41, 40), (39, 32), (31, 16)):
        bench = CacheBench.make(slabs=30, interval=8, cap=9)
        allocation = bench.prefill(tokens[:17])
        while allocation.depth < 43:
            bench.decode(allocation)
            bench.commit(allocation, tokens)
        assert [each.depth for each in allocation.ready] == [32, 40]
        bench.cache.retire(allocation, lambda keep=keep: tokens[:keep])
        bench.check()
        assert max(bench.checkpoints(tokens)) == deepest


def test_an_end_of_nothing_gives_everything_back() -> None:
    bench = CacheBench.make()
    allocation = bench.admit(PROMPT)
    assert allocation is not None
    bench.launch(allocation, 17)
    bench.cache.retire(allocation, lambda: PROMPT[:0])
    bench.cache.advance(bench.step)
    bench.cache.release_retired()
    bench.check()
    assert bench.arena.free_slots == 15


def test_of_two_equal_prompts_the_second_takes_the_trees_pages_and_frees_its_own() -> None:
    bench = CacheBench.make(slabs=30)
    one, two = bench.admit(PROMPT), bench.admit(PROMPT)
    assert one is not None
    assert two is not None
    bench.launch(one, 17)
    bench.launch(two, 17)
    bench.commit(one, PROMPT, 1)
    bench.commit(two, PROMPT, 2)
    assert bench.cache.counters.duplicates == 2
    assert two.pages[:4].tolist() == one.pages[:4].tolist()
    assert two.pages[4] != one.pages[4]


# --- room, flush, change ----------------------------------------------------------------------------


def test_pages_without_a_checkpoint_stay_while_only_slots_are_wanted() -> None:
    bench = CacheBench.make(slabs=10, strategy="NoBuffer", cap=1)
    bench.arena.refuse = lambda site: site is AllocationSite.PREFILL_CHECKPOINT
    bench.serve(PROMPT)
    bench.arena.refuse = lambda _: False
    other = ids(range(100, 117))
    bench.serve(other)
    bench.cache.reclaimer.make_room(bench.arena.free_slots + 1, 0)
    bench.check()
    assert bench.checkpoints(other) == []
    assert bench.cache.match(PROMPT, "", 99).kv_depth == 16


def leaf(bench: CacheBench, tokens: Tokens) -> None:
    """Insert the pages of `tokens` into the tree without a checkpoint."""
    grant = bench.arena.allocate(AllocationSite.EXTEND, pages=len(tokens) // 4)
    assert grant is not None
    bench.cache.tree.insert(tokens, grant.pages, 0, 0, "")
    bench.arena.give_pages_to_tree(grant.pages)


def test_pages_alone_never_keep_a_sequence_from_starting() -> None:
    # Every slab has pages of two prompts that no checkpoint reaches; the one page wanted is free already.
    bench = CacheBench.make(slabs=5, per_slab=2, strategy="NoBuffer")
    for first in range(100, 107):
        leaf(bench, ids(range(first, first + 4)))
    assert (bench.arena.free_slots, bench.arena.partial_pages) == (0, 1)
    assert bench.admit(ids(1, 2, 3)) is not None
    bench.check()


def test_with_a_checkpoint_go_the_pages_that_only_it_could_resume() -> None:
    bench = CacheBench.make(slabs=10, strategy="NoBuffer", cap=1, interval=100)
    tokens = ids(range(35))
    allocation = bench.prefill(tokens[:30])
    for _ in range(5):
        bench.decode(allocation)
        bench.commit(allocation, tokens)
    bench.cache.retire(allocation, lambda: tokens)
    assert (bench.checkpoints(tokens), bench.cache.tree.pages) == ([28], 8)
    bench.cache.reclaimer.make_room(bench.arena.free_slots + 1, 0)
    bench.check()
    assert bench.cache.tree.pages == 0


def test_pages_above_a_deeper_checkpoint_or_a_running_sequence_outlive_their_own_checkpoint() -> None:
    bench = CacheBench.make(slabs=30, strategy="NoBuffer", interval=100)
    bench.serve(ids(range(16), 99))
    deeper = ids(range(16), range(50, 59))
    running = bench.prefill(deeper)
    for depth in (16, 24):
        (node,) = (each for each in bench.cache.tree.walk() if each.depth == depth)
        bench.cache.reclaimer.evict(node)
        bench.check()
        assert bench.cache.match(ids(range(16), 97), "", 99).kv_depth == 16
    bench.cache.retire(running, lambda: deeper)
    bench.check()


def test_flush_takes_what_nobody_uses_and_nothing_else() -> None:
    bench = CacheBench.make(slabs=40)
    bench.serve(PROMPT)
    bench.serve(ids(range(500, 530)))
    allocation = bench.admit(ids(range(40)))
    assert allocation is not None
    bench.launch(allocation, 40)
    lost = flush_and_sweep(bench.cache)
    bench.check()
    assert lost
    assert bench.checkpoints(ids(range(500, 530))) == []
    assert 16 in bench.checkpoints(PROMPT)


def test_a_change_of_strategy_is_all_or_nothing_and_says_the_numbers() -> None:
    bench = CacheBench.make(strategy="NoBuffer", slabs=7, per_slab=4)
    allocations = [bench.prefill(ids(range(at, at + 9))) for at in (0, 100)]
    bench.arena.refuse = lambda site: site is AllocationSite.STRATEGY
    refusal = bench.cache.change_strategy(reservation("ExtraBuffer", overlap=True))
    assert refusal is not None
    assert all(told in refusal.message for told in ("ExtraBuffer", "4 more", "2 running"))
    assert bench.cache.strategy.name == "NoBuffer"
    assert not any(allocation.spare for allocation in allocations)
    bench.check()


def test_a_smaller_strategy_gives_slots_back_at_once() -> None:
    bench = CacheBench.make(slabs=20)
    allocation = bench.prefill(PROMPT)
    free = bench.arena.free_slots
    assert bench.cache.change_strategy(reservation("ExtraBufferLazy", overlap=True)) is None
    assert bench.arena.free_slots == free + 1
    assert bench.cache.change_strategy(reservation("NoBuffer", overlap=True)) is None
    assert allocation.tracking_slots == []
    bench.check()


@pytest.mark.parametrize(
    ("name", "overlap", "slots"),
    [
        ("NoBuffer", True, 1), ("ExtraBufferLazy", True, 2), ("ExtraBuffer", True, 3),
        ("ExtraBuffer", False, 2), ("ExtraBufferLazy", False, 2),
    ],
)  # fmt: skip
def test_slots_per_running_sequence(name: str, overlap: bool, slots: int) -> None:
    assert reservation(name, overlap=overlap).slots_per_sequence == slots


def test_an_unknown_strategy_is_named() -> None:
    with pytest.raises(ValueError, match=r"'Extra'.*NoBuffer"):
        reservation("Extra", overlap=True)


def test_without_a_buffer_an_answer_leaves_checkpoints_in_free_slots_and_they_are_anybodys() -> None:
    bench = CacheBench.make(strategy="NoBuffer", slabs=30, interval=100)
    tokens = ids(range(60))
    allocation = bench.prefill(tokens[:17])
    for _ in range(20):
        depth = allocation.depth + 1
        assert bench.cache.extend(allocation, depth)
        bench.step += 1
        if bench.cache.tracks_decode(depth, depth - 17):
            assert bench.cache.take_decode_slot(allocation, bench.step)
        bench.cache.launch(allocation.row, depth, bench.step)
        bench.commit(allocation, tokens)
        assert allocation.tracking_slots == []
    bench.cache.retire(allocation, lambda: tokens[:37])
    bench.check()
    assert max(bench.checkpoints(tokens)) == 36
    bench.cache.reclaimer.make_room(bench.arena.free_slots + bench.cache.tree.checkpoints, 0)
    assert bench.cache.tree.checkpoints == 0


def test_without_a_buffer_a_checkpoint_behind_a_stop_string_serves_only_the_tokens_it_saw() -> None:
    bench = CacheBench.make(strategy="NoBuffer", slabs=30, interval=8, cap=9)
    tokens = ids(range(60))
    allocation = bench.prefill(tokens[:17])
    while allocation.depth < 43:
        bench.decode(allocation)
        bench.commit(allocation, tokens)
    bench.cache.retire(allocation, lambda: tokens[:39])
    bench.check()
    # Complete, and given to the tree, before the stop string was found.
    assert max(bench.checkpoints(tokens)) == 40
    cut = ids(range(39), range(100, 110))
    assert bench.cache.match(cut, "", bench.step + 1).resumable == 32
    assert bench.cache.match(tokens, "", bench.step + 1).resumable == 40


def test_without_a_buffer_an_answer_takes_no_slot_that_an_admission_could_need() -> None:
    bench = CacheBench.make(strategy="NoBuffer", slabs=30, interval=100)
    allocation = bench.prefill(ids(range(17)))
    taken = bench.arena.allocate(AllocationSite.EXTEND, pages=4 * (bench.arena.free_slots - 2))
    assert taken is not None
    assert not bench.cache.tracks_decode(20, 3)
    bench.arena.free_pages_of(taken.pages, 0, 1)
    assert bench.cache.tracks_decode(20, 3)
    bench.cache.retire(allocation, lambda: ids(range(17)))


@pytest.mark.parametrize("strategy", ["NoBuffer", "ExtraBufferLazy", "ExtraBuffer"])
@pytest.mark.parametrize(("fewest", "kept"), [(0, True), (16, True), (17, False)])
def test_a_prefix_below_the_least_depth_leaves_no_checkpoint_and_its_pages_stay(
    strategy: str, fewest: int, kept: bool
) -> None:
    bench = CacheBench.make(strategy=strategy, slabs=30)
    bench.cache.min_checkpoint_depth = fewest
    tokens = ids(range(17))

    bench.serve(tokens)

    found = bench.cache.match(tokens, "", bench.step + 1)
    assert (found.kv_depth, found.resumable) == (16, 16 if kept else 0)
    assert (bench.cache.tree.checkpoints > 0) is kept
    assert bench.cache.tracks_decode(16, 1) is kept
