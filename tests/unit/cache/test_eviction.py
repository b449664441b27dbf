"""Which checkpoint goes first."""

from cache_bench import CacheBench, ids
from mamba_server.cache.eviction import Eviction
from mamba_server.cache.node import Node


def chain(*depths: int) -> list[Node]:
    """Return nodes with checkpoints at `depths` on one path."""
    out, at = [], Node(None, ids(), ids(), "")
    for slot, depth in enumerate(depths, 1):
        at = Node(at, ids(range(at.depth, depth)), ids(), "")
        at.slot = slot
        out.append(at)
    return out


def order(eviction: Eviction) -> list[int]:
    out = []
    while (node := eviction.pop_checkpoint()) is not None:
        out.append(node.depth)
    return out


def test_the_least_recently_used_goes_first() -> None:
    eviction, (a, b, c) = Eviction("LRU"), chain(4, 8, 12)
    for node in (a, b, c, a):
        eviction.touch(node)
    assert order(eviction) == [8, 12, 4]


def test_what_is_cheapest_to_recompute_goes_first() -> None:
    eviction, nodes = Eviction("RecomputeCost"), chain(100, 104, 400)
    for node in nodes:
        eviction.touch(node)
    assert order(eviction) == [104, 100, 400]


def test_what_was_withdrawn_is_no_victim() -> None:
    eviction, (a, b) = Eviction("LRU"), chain(4, 8)
    eviction.touch(a)
    eviction.touch(b)
    eviction.withdraw(a)
    assert order(eviction) == [8]


def test_what_a_search_passes_over_is_found_by_the_next() -> None:
    eviction, (a, b, c) = Eviction("RecomputeCost"), chain(4, 12, 36)
    for node in (a, b, c):
        eviction.touch(node)
    a.state_lock = 1
    # Past the locked one it looks at the next, and takes neither.
    assert eviction.lowest_worth() == 8
    a.state_lock = 0
    eviction.offer(a)
    assert order(eviction) == [4, 12, 36]


def test_the_heap_does_not_grow_with_hits() -> None:
    eviction, (node,) = Eviction("LRU"), chain(4)
    for _ in range(20_000):
        eviction.touch(node)
    assert len(eviction._checkpoints) == 1
    assert order(eviction) == [4]


def test_a_hit_refreshes_the_checkpoint_it_used_and_no_other() -> None:
    bench = CacheBench.make(slabs=16, per_slab=4, cap=8, interval=100)
    shared, other = ids(range(9)), ids(range(50, 59))
    bench.serve(shared)
    bench.serve(ids(range(17)))
    bench.serve(other)
    # A hit of the deep checkpoint leaves the shallow one, the oldest by now, where it was.
    bench.serve(ids(range(17), 99))
    first = bench.cache.tree.eviction.pop_checkpoint()
    assert first is not None
    assert (first.depth, first.token_ids[0]) == (8, 0)


def test_a_change_of_policy_orders_what_is_cached_anew() -> None:
    eviction, (a, b, c) = Eviction("RecomputeCost"), chain(4, 12, 36)
    for node in (c, b, a):
        eviction.touch(node)
    eviction.change("LRU")
    assert order(eviction) == [36, 12, 4]
    for node in (c, b, a):
        eviction.touch(node)
    eviction.change("RecomputeCost")
    assert order(eviction) == [4, 12, 36]


def test_a_change_while_serving_keeps_what_is_cached_and_counts_from_then_on() -> None:
    bench = CacheBench.make(slabs=24, per_slab=4, cap=8, interval=100, policy="RecomputeCost")
    long, short = ids(range(41)), ids(range(60, 69))
    bench.serve(long)
    running = bench.prefill(ids(range(80, 97)))
    bench.cache.change_eviction("LRU")
    bench.serve(short)
    assert bench.cache.match(long, "", bench.step + 1).resumable == 40
    # Under RecomputeCost the short one would go; the long one was used before it.
    first = bench.cache.tree.eviction.pop_checkpoint()
    assert first is not None
    assert first.token_ids[0] == 0
    bench.cache.tree.eviction.offer(first)
    bench.cache.change_eviction("RecomputeCost")
    assert running.ghost_match is None
    bench.serve(ids(range(41), 7))
    assert len(bench.cache.ghosts or ()) > 0
    bench.check()
