"""Pinned checkpoints: eviction, the cap and thinning spare them; sequences come first; a flush ends them."""

import pytest

from cache_bench import CacheBench, ids
from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.node import Pin

PINNED, OTHER = ids(range(1, 18)), ids(range(101, 118))


def pin(bench: CacheBench, depth: int = 16) -> Pin:
    held = bench.cache.pin(PINNED, "", bench.step + 1, depth=depth)
    assert held is not None
    return held


@pytest.mark.parametrize("policy", ["LRU", "RecomputeCost"])
def test_a_pinned_checkpoint_outlives_all_that_come_after_it(policy: str) -> None:
    bench = CacheBench.make(slabs=12, policy=policy)
    allocation = bench.admit(PINNED)
    assert allocation is not None
    bench.cache.keep_checkpoint_at(allocation, 16, forced=True)
    bench.commit(allocation, PINNED, bench.launch(allocation, 17))
    bench.cache.retire(allocation, lambda: PINNED)
    held = pin(bench)
    for first in range(200, 1000, 40):
        bench.serve(ids(range(first, first + 17)))
    assert held.node is not None
    assert 16 in bench.checkpoints(PINNED)


def test_a_checkpoint_that_is_pinned_no_longer_is_evicted_in_its_turn() -> None:
    bench = CacheBench.make(slabs=12)
    bench.serve(PINNED)
    bench.cache.unpin(pin(bench))
    for first in range(200, 1000, 40):
        bench.serve(ids(range(first, first + 17)))
    assert 16 not in bench.checkpoints(PINNED)


def test_a_sequence_that_needs_the_memory_gets_it_and_the_loss_is_counted() -> None:
    bench = CacheBench.make(slabs=12)
    bench.serve(PINNED)
    held = pin(bench)
    large = ids(range(1000, 1000 + 4 * 4 * 8))
    assert bench.admit(large) is not None
    assert held.node is None
    assert bench.cache.counters.pins_given_up == 1
    bench.cache.unpin(held)
    bench.check()


def test_a_checkpoint_takes_no_memory_of_a_pin() -> None:
    bench = CacheBench.make(slabs=6, strategy="NoBuffer", interval=4)
    bench.serve(PINNED)
    for depth in bench.checkpoints(PINNED):
        pin(bench, depth)
    before = bench.checkpoints(PINNED)
    allocation = bench.admit(OTHER)
    assert allocation is not None
    for depth in (4, 8, 12, 16):
        bench.cache.keep_checkpoint_at(allocation, depth, forced=True)
    bench.launch(allocation, 17)
    bench.commit(allocation, OTHER)
    assert bench.cache.counters.pins_given_up == 0
    assert bench.checkpoints(PINNED) == before


def test_the_cap_of_a_path_spares_pins() -> None:
    bench = CacheBench.make(slabs=8, cap=1, interval=4)
    bench.serve(PINNED[:9])
    held = pin(bench, 8)
    bench.serve(PINNED)
    assert held.node is not None
    assert 8 in bench.checkpoints(PINNED)


def test_a_flush_ends_pins() -> None:
    bench = CacheBench.make()
    bench.serve(PINNED)
    held = pin(bench)
    bench.cache.flush()
    assert (held.node, bench.cache.capacity.pinned, bench.cache.counters.pins_given_up) == (None, 0, 0)
    # The same text is cached again, and the old pin holds nothing of it.
    bench.serve(PINNED)
    assert bench.cache.capacity.pinned == 0
    bench.cache.unpin(held)
    bench.check()


def test_a_checkpoint_stays_until_its_last_holder_has_ended() -> None:
    bench = CacheBench.make()
    bench.serve(PINNED)
    first, second = pin(bench), pin(bench)
    assert first is second
    bench.cache.unpin(first)
    assert bench.cache.capacity.pinned == 1
    bench.cache.unpin(second)
    assert bench.cache.capacity.pinned == 0
    with pytest.raises(LedgerViolation, match="K1"):
        bench.cache.unpin(second)


def test_without_a_checkpoint_there_the_next_deeper_one_is_pinned_and_else_the_next_shallower() -> None:
    bench = CacheBench.make()
    assert bench.cache.pin(PINNED, "", 1, depth=8) is None
    bench.serve(PINNED)
    [shallow, *_] = bench.checkpoints(PINNED)
    assert pin(bench, shallow - 4).depth == shallow
    assert pin(bench, 17).depth == 16
