"""The churn measurement: where the arena's bytes go, and that the default policy wastes few of them."""

from dataclasses import astuple

import numpy as np
import pytest
from benchmarks.cache.fragmentation import SlabShares, WatchedArena, churn, load, markdown, shares, summary
from benchmarks.cache.replay import CachePolicy

from cache_bench import CacheBench, ids
from mamba_cli.fleet.engine_profile import CacheSize
from mamba_server.cache.arena import AllocationSite

SIZE = CacheSize(120, 0, 8_758)


def test_shares_say_who_has_the_bytes() -> None:
    bench = CacheBench.make(slabs=11, per_slab=4, strategy="NoBuffer", interval=100)
    assert shares(bench.cache) == SlabShares(0, 0, 0, 0, 1)
    # A live slot and one page of four; the prompt's checkpoint and its four pages are the tree's already.
    allocation = bench.prefill(ids(range(17)))
    assert astuple(shares(bench.cache)) == pytest.approx((0.125, 0.2, 0, 0.075, 0.6))
    bench.cache.retire(allocation, lambda: ids(range(17)))
    assert shares(bench.cache) == SlabShares(0, 0.2, 0, 0, 0.8)


def test_shares_add_up_at_any_moment() -> None:
    bench = CacheBench.make(slabs=40, per_slab=3, strategy="ExtraBuffer")
    rng = np.random.default_rng(0)
    for _ in range(30):
        allocation = bench.admit(ids(*rng.integers(0, 3, int(rng.integers(2, 60))).tolist()))
        if allocation is None:
            break
        now = shares(bench.cache)
        assert sum(astuple(now)) == pytest.approx(1)
        assert all(part >= 0 for part in astuple(now))
        bench.launch(allocation, allocation.page_count * 4)
        bench.cache.advance(bench.step)


def test_a_refusal_that_free_pages_would_have_covered_is_told_apart() -> None:
    arena = WatchedArena(3, 4)
    assert arena.allocate(AllocationSite.EXTEND, pages=2) is not None
    assert arena.allocate(AllocationSite.EXTEND, pages=5) is not None
    assert (arena.free_slots, arena.free_pages) == (0, 1)
    assert arena.allocate(AllocationSite.BORROW, tracking=1) is None
    assert (arena.refused, arena.refused_for_shape) == (1, 0)
    arena = WatchedArena(3, 4)
    first = arena.allocate(AllocationSite.EXTEND, pages=4)
    second = arena.allocate(AllocationSite.EXTEND, pages=4)
    assert first is not None
    assert second is not None
    for grant in (first, second):
        arena.free_pages_of(grant.pages[:2], 0, 1)
    assert arena.allocate(AllocationSite.BORROW, tracking=1) is None
    assert (arena.refused, arena.refused_for_shape) == (1, 1)


def test_the_load_is_the_same_for_the_same_seed_and_swings() -> None:
    made = list(load(1, 120, phase=30))
    assert made == list(load(1, 120, phase=30))
    assert made != list(load(2, 120, phase=30))
    chats = [len(prompt) for prompt, _ in made[:30]]
    documents = [len(prompt) for prompt, _ in made[30:60]]
    assert max(chats) < min(documents)


def test_under_churn_the_default_policy_strands_little_and_refuses_nothing() -> None:
    run = churn(SIZE, CachePolicy("RecomputeCost", "ExtraBuffer"), 500)
    assert run["refused"] == run["preemptions"] == 0
    assert run["mean"]["stranded"] < 0.15
    assert run["mean"]["useless"] < 0.05
    assert sum(run["mean"].values()) == pytest.approx(1, abs=1e-3)


def test_rows_are_means_of_the_seeds_with_the_worst_of_what_was_stranded() -> None:
    runs = [churn(SIZE, CachePolicy("LRU", "NoBuffer"), 300, seed) for seed in (0, 1)]
    row = summary(runs)
    assert row["hit_rate"] == pytest.approx((runs[0]["hit_rate"] + runs[1]["hit_rate"]) / 2)
    assert row["most_stranded"] == max(run["most_stranded"] for run in runs)
    table = markdown([row], 300, 2)
    assert table[-1].count("|") == table[-2].count("|")
