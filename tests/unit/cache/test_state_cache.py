"""The state cache: admission, checkpoints, ends, room, strategies."""

import pytest

from cache_bench import CacheBench, ids
from mamba_server.cache.arena import AllocationSite
from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.holding import Checkpoint
from mamba_server.cache.node import Tokens
from mamba_server.cache.strategy import reservation

PROMPT = ids(range(17))


# --- admission ---------------------------------------------------------------------------------------


def test_the_second_identical_prompt_resumes_from_the_first() -> None:
    bench = CacheBench.make()
    bench.serve(PROMPT)
    holding = bench.admit(PROMPT)
    assert holding is not None
    assert (holding.resumed, holding.depth) == (16, 16)


def test_a_hit_reads_the_checkpoint_in_place_under_lock_until_its_fence() -> None:
    bench = CacheBench.make()
    bench.serve(PROMPT)
    holding = bench.admit(PROMPT)
    assert holding is not None
    node = holding.match_node
    assert node is not None
    assert holding.slot_in == node.slot != holding.live
    assert node.state_lock == 1
    step = bench.launch(holding, 17)
    assert (node.state_lock, holding.slot_in) == (1, holding.live)
    bench.commit(holding, PROMPT, step)
    assert (node.state_lock, node.kv_lock) == (0, 1)


def test_the_third_request_of_a_branch_resumes_at_the_branch_point() -> None:
    bench = CacheBench.make(page_size=4, slabs=80)
    stem = range(257)
    for suffix in (1000, 2000):
        bench.serve(ids(stem, range(suffix, suffix + 20)))
    holding = bench.admit(ids(stem, range(3000, 3020)))
    assert holding is not None
    assert holding.resumed == 256


def test_the_second_turn_resumes_before_the_generation_prompt() -> None:
    bench = CacheBench.make(slabs=40, interval=400)
    bench.serve(ids(range(50), 900, 901), boundary=48)
    holding = bench.admit(ids(range(50), range(100, 120)))
    assert holding is not None
    assert holding.resumed == 48


def test_a_refused_admission_leaves_no_lock() -> None:
    bench = CacheBench.make()
    bench.serve(PROMPT)
    bench.arena.refuse = lambda site: site is AllocationSite.ADMIT
    assert bench.admit(PROMPT) is None
    bench.check()
    assert bench.cache.tree.locked_states == bench.cache.tree.locked_pages == 0
    assert not bench.cache.holdings


def test_room_is_never_made_of_what_the_same_admission_matched() -> None:
    bench = CacheBench.make(slabs=6, strategy="NoBuffer", cap=1)
    bench.serve(PROMPT)
    other = bench.prefill(ids(range(100, 140)))
    holding = bench.admit(ids(range(30)))
    if holding is not None:
        assert holding.match_node is not None
        assert holding.match_node.slot == holding.slot_in
    assert other.live
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
    assert bench.cache.never_fits(tokens) is never
    assert not bench.cache.never_fits(tokens, reservation("NoBuffer", overlap=True))


def test_without_prefix_caching_nothing_is_kept() -> None:
    bench = CacheBench.make(prefix_caching=False)
    bench.serve(PROMPT)
    assert bench.arena.free_slots == 15
    assert bench.admit(PROMPT) is not None


# --- checkpoints ------------------------------------------------------------------------------------


def test_a_prefill_checkpoint_is_cached_once_its_step_is_complete() -> None:
    bench = CacheBench.make()
    holding = bench.admit(PROMPT)
    assert holding is not None
    step = bench.launch(holding, 17)
    assert bench.checkpoints(PROMPT) == []
    bench.commit(holding, PROMPT, step)
    assert 16 in bench.checkpoints(PROMPT)


def test_a_pending_slot_is_not_donated_before_its_fence() -> None:
    bench = CacheBench.make()
    holding = bench.admit(PROMPT)
    assert holding is not None
    bench.launch(holding, 17)
    with pytest.raises(LedgerViolation, match="before the fence"):
        bench.cache.commit(holding, PROMPT, bench.step)


def test_a_checkpoint_off_the_page_grid_is_refused() -> None:
    bench = CacheBench.make()
    holding = bench.prefill(PROMPT)
    with pytest.raises(LedgerViolation, match="P5"):
        bench.cache._donate(holding, PROMPT, Checkpoint(15, holding.live), bench.step)


@pytest.mark.parametrize(("strategy", "slots"), [("NoBuffer", 0), ("ExtraBufferLazy", 1), ("ExtraBuffer", 2)])
def test_a_strategy_holds_its_tracking_slots_between_boundaries(strategy: str, slots: int) -> None:
    bench = CacheBench.make(strategy=strategy, slabs=20)
    tokens = ids(range(60))
    holding = bench.prefill(tokens[:17])
    for _ in range(30):
        bench.decode(holding)
        bench.commit(holding, tokens)
        assert len(holding.tracking_slots) == slots
    assert [each.depth for each in holding.ready] == {0: [], 1: [40], 2: [32, 40]}[slots]


def test_a_failed_borrow_skips_the_boundary_and_keeps_the_older_checkpoint() -> None:
    bench = CacheBench.make(strategy="ExtraBufferLazy")
    tokens = ids(range(40))
    holding = bench.prefill(tokens[:17])
    while holding.depth < 24:
        bench.decode(holding)
        bench.commit(holding, tokens)
    bench.arena.refuse = lambda site: site is AllocationSite.BORROW
    skipped = bench.cache.counters.skipped
    while holding.depth < 34:
        bench.decode(holding)
        bench.commit(holding, tokens)
    assert bench.cache.counters.skipped == skipped + 1
    assert [each.depth for each in holding.ready] == [24]
    bench.cache.retire(holding, lambda: tokens[:34])
    bench.check()
    assert max(bench.checkpoints(tokens)) == 24


def test_a_failed_prefill_checkpoint_costs_the_checkpoint_alone() -> None:
    bench = CacheBench.make()
    bench.arena.refuse = lambda site: site is AllocationSite.PREFILL_CHECKPOINT
    bench.serve(PROMPT)
    assert bench.cache.counters.skipped
    assert bench.checkpoints(PROMPT) == []


def test_a_path_keeps_at_most_the_capped_number_of_checkpoints() -> None:
    bench = CacheBench.make(cap=2, slabs=60)
    tokens = ids(range(200))
    for length in range(17, 190, 20):
        bench.serve(tokens[:length])
        assert len(bench.checkpoints(tokens)) <= 2
    assert max(bench.checkpoints(tokens)) == 176


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
    holding = bench.prefill(tokens[:17])
    for _ in range(3):
        bench.decode(holding)
    bench.cache.retire(holding, lambda: tokens)
    assert bench.cache.retiring == 1
    assert 20 not in bench.checkpoints(tokens)
    bench.cache.settle()
    assert bench.cache.retiring == 1
    bench.cache.advance(bench.step)
    bench.cache.settle()
    assert bench.cache.retiring == 0
    assert max(bench.checkpoints(tokens)) == 20


def test_a_stop_string_donates_an_older_checkpoint_that_fits_or_none() -> None:
    tokens = ids(range(60))
    for keep, deepest in ((41, 40), (39, 32), (31, 16)):
        bench = CacheBench.make(slabs=30, interval=8, cap=9)
        holding = bench.prefill(tokens[:17])
        while holding.depth < 43:
            bench.decode(holding)
            bench.commit(holding, tokens)
        assert [each.depth for each in holding.ready] == [32, 40]
        bench.cache.retire(holding, lambda keep=keep: tokens[:keep])
        bench.check()
        assert max(bench.checkpoints(tokens)) == deepest


def test_an_end_of_nothing_gives_everything_back() -> None:
    bench = CacheBench.make()
    holding = bench.admit(PROMPT)
    assert holding is not None
    bench.launch(holding, 17)
    bench.cache.retire(holding, lambda: PROMPT[:0])
    bench.cache.advance(bench.step)
    bench.cache.settle()
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
    assert two.pages_changed
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
    bench.cache.room.make(bench.arena.free_slots + 1, 0)
    bench.check()
    assert bench.checkpoints(other) == []
    assert bench.cache.match(PROMPT, "", 99).kv_depth == 16


def leaf(bench: CacheBench, tokens: Tokens) -> None:
    """Pages of `tokens` in the tree, with no checkpoint."""
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
    holding = bench.prefill(tokens[:30])
    for _ in range(5):
        bench.decode(holding)
        bench.commit(holding, tokens)
    bench.cache.retire(holding, lambda: tokens)
    assert (bench.checkpoints(tokens), bench.cache.tree.pages) == ([28], 8)
    bench.cache.room.make(bench.arena.free_slots + 1, 0)
    bench.check()
    assert bench.cache.tree.pages == 0


def test_pages_above_a_deeper_checkpoint_or_a_running_sequence_outlive_their_own_checkpoint() -> None:
    bench = CacheBench.make(slabs=30, strategy="NoBuffer", interval=100)
    bench.serve(ids(range(16), 99))
    deeper = ids(range(16), range(50, 59))
    running = bench.prefill(deeper)
    for depth in (16, 24):
        (node,) = (each for each in bench.cache.tree.walk() if each.depth == depth)
        bench.cache.room.evict(node)
        bench.check()
        assert bench.cache.match(ids(range(16), 97), "", 99).kv_depth == 16
    bench.cache.retire(running, lambda: deeper)
    bench.check()


def test_flush_takes_what_nobody_uses_and_nothing_else() -> None:
    bench = CacheBench.make(slabs=40)
    bench.serve(PROMPT)
    bench.serve(ids(range(500, 530)))
    holding = bench.admit(ids(range(40)))
    assert holding is not None
    bench.launch(holding, 40)
    lost = bench.cache.room.flush()
    bench.check()
    assert lost
    assert bench.checkpoints(ids(range(500, 530))) == []
    assert 16 in bench.checkpoints(PROMPT)


def test_a_change_of_strategy_is_all_or_nothing_and_says_the_numbers() -> None:
    bench = CacheBench.make(strategy="NoBuffer", slabs=7, per_slab=4)
    holdings = [bench.prefill(ids(range(at, at + 9))) for at in (0, 100)]
    bench.arena.refuse = lambda site: site is AllocationSite.STRATEGY
    refusal = bench.cache.change_strategy(reservation("ExtraBuffer", overlap=True))
    assert "ExtraBuffer needs 4 more tracking slots for 2 running" in refusal
    assert bench.cache.strategy.name == "NoBuffer"
    assert not any(holding.spare for holding in holdings)
    bench.check()


def test_a_smaller_strategy_gives_slots_back_at_once() -> None:
    bench = CacheBench.make(slabs=20)
    holding = bench.prefill(PROMPT)
    free = bench.arena.free_slots
    assert bench.cache.change_strategy(reservation("ExtraBufferLazy", overlap=True)) == ""
    assert bench.arena.free_slots == free + 1
    assert bench.cache.change_strategy(reservation("NoBuffer", overlap=True)) == ""
    assert holding.tracking_slots == []
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
    with pytest.raises(ValueError, match="unknown strategy 'Extra': use NoBuffer"):
        reservation("Extra", overlap=True)


def test_without_a_buffer_an_answer_leaves_checkpoints_in_free_slots_and_they_are_anybodys() -> None:
    bench = CacheBench.make(strategy="NoBuffer", slabs=30, interval=100)
    tokens = ids(range(60))
    holding = bench.prefill(tokens[:17])
    for _ in range(20):
        depth = holding.depth + 1
        assert bench.cache.extend(holding, depth)
        bench.step += 1
        if bench.cache.tracks_decode(depth, depth - 17):
            assert bench.cache.plan_decode(holding, bench.step)
        bench.cache.launched(holding, depth, bench.step)
        bench.commit(holding, tokens)
        assert holding.tracking_slots == []
    bench.cache.retire(holding, lambda: tokens[:37])
    bench.check()
    assert max(bench.checkpoints(tokens)) == 36
    bench.cache.room.make(bench.arena.free_slots + bench.cache.tree.checkpoints, 0)
    assert bench.cache.tree.checkpoints == 0


def test_without_a_buffer_an_answer_takes_no_slot_that_an_admission_could_need() -> None:
    bench = CacheBench.make(strategy="NoBuffer", slabs=30, interval=100)
    holding = bench.prefill(ids(range(17)))
    taken = bench.arena.allocate(AllocationSite.EXTEND, pages=4 * (bench.arena.free_slots - 2))
    assert taken is not None
    assert not bench.cache.tracks_decode(20, 3)
    bench.arena.free_pages_of(taken.pages, 0, 1)
    assert bench.cache.tracks_decode(20, 3)
    bench.cache.retire(holding, lambda: ids(range(17)))
