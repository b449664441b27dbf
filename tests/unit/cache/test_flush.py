"""A flush forgets at once and gives back a little at a time; what comes after it stays."""

import numpy as np
import pytest

from cache_bench import CacheBench, flush_and_sweep, ids
from mamba_server.cache.node import Tokens
from operations import operations

PROMPT = ids(range(17))


def resumable(bench: CacheBench, prompt: Tokens) -> int:
    return bench.cache.match(prompt, "", bench.step + 1).resumable


def full(prompts: int, slabs: int = 4000) -> CacheBench:
    """Return a cache with a few checkpoints of each of that many prompts."""
    bench = CacheBench.make(slabs=slabs, policy="RecomputeCost")
    bench.check = lambda: None  # type: ignore[method-assign]
    rng = np.random.default_rng(0)
    for _ in range(prompts):
        bench.serve(rng.integers(1, 1000, 41).astype(np.int32))
    return bench


@pytest.mark.parametrize("policy", ["LRU", "RecomputeCost"])
def test_nothing_is_resumed_from_the_moment_of_a_flush(policy: str) -> None:
    bench = CacheBench.make(policy=policy)
    bench.serve(PROMPT)
    there = bench.cache.tree.checkpoints
    assert resumable(bench, PROMPT) == 16
    assert bench.cache.flush() == there
    bench.check()
    match = bench.cache.match(PROMPT, "", bench.step + 1)
    assert (match.resumable, match.node, match.cause) == (0, None, "evicted")
    assert bench.cache.tree.checkpoints == there


@pytest.mark.parametrize("per_slab", [0, 4])
@pytest.mark.parametrize("policy", ["LRU", "RecomputeCost"])
def test_sweeping_gives_all_of_it_back(policy: str, per_slab: int) -> None:
    bench = CacheBench.make(slabs=60, policy=policy, per_slab=per_slab)
    for start in range(0, 60, 5):
        bench.serve(ids(range(start, start + 17)))
        bench.serve(ids(range(start, start + 9), range(200, 230)))
    bench.cache.flush()
    while bench.cache.reclaimer.sweeping:
        bench.cache.reclaimer.sweep()
        bench.check()
    assert (bench.cache.tree.checkpoints, bench.cache.tree.nodes, bench.cache.tree.roots) == (0, 0, {})
    assert bench.arena.free_slots == 59


def test_no_call_takes_longer_for_more_that_is_cached() -> None:
    def work(bench: CacheBench) -> tuple[int, int, int]:
        asked = operations(bench.cache.flush)
        swept = []
        while bench.cache.reclaimer.sweeping:
            swept.append(operations(bench.cache.reclaimer.sweep))
        assert bench.arena.free_slots == bench.arena.slabs - 1
        return asked, max(swept), len(swept)

    few, many = work(full(10)), work(full(150))
    assert many[0] < few[0] + 5
    assert many[1] < 1.5 * few[1]
    assert many[2] > 10 * few[2]


def test_what_is_computed_anew_while_the_old_is_swept_stays() -> None:
    bench = CacheBench.make(slabs=60, policy="RecomputeCost")
    longer = ids(range(12), range(300, 330))
    for prompt in (PROMPT, longer, ids(range(500, 560))):
        bench.serve(prompt)
    lost = bench.cache.flush()
    # The same tokens again: a duplicate of what is forgotten; and others below pages that are still there.
    bench.serve(PROMPT)
    beyond = ids(range(12), range(400, 430))
    bench.serve(beyond)
    assert (resumable(bench, PROMPT), resumable(bench, beyond), resumable(bench, longer)) == (16, 40, 12)
    while bench.cache.reclaimer.sweeping:
        bench.cache.reclaimer.sweep()
        bench.check()
    assert lost > bench.cache.tree.forgotten == 0
    assert (resumable(bench, PROMPT), resumable(bench, beyond), resumable(bench, longer)) == (16, 40, 12)
    assert resumable(bench, ids(range(500, 560))) == 0


def test_what_a_forward_reads_is_spared_and_matched_further() -> None:
    bench = CacheBench.make(slabs=40)
    bench.serve(PROMPT)
    running = bench.admit(PROMPT)
    assert running is not None
    there = bench.cache.tree.checkpoints
    assert flush_and_sweep(bench.cache) == there - 1
    assert resumable(bench, PROMPT) == 16
    bench.launch(running, 17)
    bench.commit(running, PROMPT)
    bench.cache.retire(running, lambda: PROMPT)
    assert flush_and_sweep(bench.cache) == 1
    bench.check()
    assert bench.arena.free_slots == 39


def test_a_flush_in_the_middle_of_sweeping_counts_what_is_lost_once() -> None:
    bench = full(30)
    there = bench.cache.tree.checkpoints
    assert bench.cache.flush() == there
    bench.cache.reclaimer.sweep()
    assert 0 < bench.cache.tree.forgotten < there
    bench.serve(PROMPT)
    new = bench.cache.tree.checkpoints - bench.cache.tree.forgotten
    assert flush_and_sweep(bench.cache) == new > 0
    assert bench.cache.tree.checkpoints == bench.cache.tree.forgotten == 0


@pytest.mark.parametrize(("policy", "slabs"), [("LRU", 11), ("RecomputeCost", 17)])
def test_who_needs_memory_takes_what_was_flushed_before_anything_else(policy: str, slabs: int) -> None:
    bench = CacheBench.make(slabs=slabs, policy=policy)
    bench.serve(ids(range(100, 141)))
    bench.cache.flush()
    bench.serve(PROMPT)
    forgotten, evicted = bench.cache.tree.forgotten, bench.cache.counters.evicted
    bench.prefill(ids(range(300, 330)))
    assert bench.cache.tree.forgotten < forgotten, "the memory was needed"
    assert resumable(bench, PROMPT) == 16
    assert bench.cache.counters.evicted == evicted
