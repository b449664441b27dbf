"""Eviction when memory is short: the order, and the amount at once."""

from cache_bench import CacheBench, ids
from mamba_server.cache.arena import AllocationSite
from mamba_server.cache.node import Node


def leaves(bench: CacheBench) -> list[Node]:
    """Return the ends of the tree without a checkpoint that are not in use."""
    return [
        each
        for each in bench.cache.tree.walk()
        if not (each.children or each.slot or each.kv_lock or each.parent is None)
    ]


def full() -> CacheBench:
    """Return six prompts without a checkpoint and three with one; the rest of the arena is in use."""
    bench = CacheBench.make(slabs=32, per_slab=4)
    bench.cache.min_checkpoint_depth = 100
    for number in range(6):
        bench.serve(ids(range(1000 * number, 1000 * number + 9)))
    bench.cache.min_checkpoint_depth = 0
    for number in range(6, 9):
        bench.serve(ids(range(1000 * number, 1000 * number + 9)))
    assert len(leaves(bench)) == 6
    bench.arena.allocate(AllocationSite.ADMIT, live=bench.arena.free_slots)
    return bench


def test_leaves_go_until_the_pages_do_and_no_longer() -> None:
    bench = full()
    pages = bench.arena.partial_pages + 2
    before = bench.cache.tree.checkpoints
    bench.cache.reclaimer.make_room(1, pages)
    assert bench.arena.fits(1, pages)
    # The slab is had from checkpoints: not all leaves are dropped in the hope that it comes of them.
    assert bench.cache.tree.checkpoints < before
    assert leaves(bench)


def test_leaves_stay_while_slots_alone_are_short() -> None:
    bench = full()
    bench.cache.reclaimer.make_room(1, 0)
    assert bench.arena.fits(1, 0)
    assert len(leaves(bench)) == 6


def test_leaves_go_for_slots_when_nothing_else_is_left() -> None:
    bench = full()
    bench.cache.reclaimer.make_room(32, 0)
    assert not leaves(bench)
    assert not bench.cache.tree.checkpoints


def test_pages_that_lost_their_checkpoint_while_in_use_go_with_their_sequence() -> None:
    bench = CacheBench.make(policy="RecomputeCost")
    tokens = ids(range(18))
    allocation = bench.prefill(tokens)
    while (node := bench.cache.tree.eviction.pop_checkpoint()) is not None:
        bench.cache.reclaimer.evict(node)
    bench.check()
    assert bench.cache.tree.pages == 4
    bench.cache.retire(allocation, lambda: tokens[:0])
    bench.check()
    assert bench.cache.tree.pages == 0
    assert bench.arena.free_slots == bench.arena.slabs - 1
