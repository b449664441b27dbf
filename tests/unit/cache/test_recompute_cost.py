"""Order of eviction: tokens saved, returns predicted, bytes freed."""

import numpy as np
import pytest

from cache_bench import CacheBench
from mamba_planner.strategy import reservation
from mamba_server.cache.arena import AllocationSite, Arena
from mamba_server.cache.eviction import Eviction, Policy
from mamba_server.cache.ghost_tree import GhostTree
from mamba_server.cache.node import Node
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.placement import Placement
from mamba_server.cache.slot_state import SlotState
from mamba_server.cache.state_cache import RadixStateCache
from mamba_server.cache.tree import RadixTree

PAGE = 4


def tokens(first: int, count: int) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.int32)


def pages(count: int) -> np.ndarray:
    return np.zeros(count // PAGE, np.int32)


def tree(policy: Policy = "RecomputeCost") -> RadixTree:
    return RadixTree(PAGE, Eviction(policy))


def add(to: RadixTree, prompt: np.ndarray, slot: int) -> Node:
    return to.insert(prompt, pages(len(prompt)), slot, 1, "")[0]


def seen(ghosts: GhostTree, to: RadixTree, prompt: np.ndarray, slot: int = 0) -> Node | None:
    """Record a request for `prompt`; with `slot`, it leaves a checkpoint at its end."""
    sighting, aged = ghosts.observe(prompt, "")
    for ghost in aged:
        if ghost.node is not None:
            to.eviction.offer(ghost.node)
    depth = (len(prompt) - 1) // PAGE
    if not slot:
        return None
    cut = prompt[: depth * PAGE]
    return to.insert(cut, pages(len(cut)), slot, 1, "", ghost=sighting.tip)[0]


def order(of: RadixTree) -> list[int]:
    """Return the slots from the first victim to the last, as if each were evicted in turn."""
    out = []
    while (node := of.eviction.pop_checkpoint()) is not None:
        if node.slot:
            of.eviction.evicted(node)
            out.append(of.drop_state(node))
    return out


def test_a_short_prompt_goes_before_a_long_one_that_is_older() -> None:
    it = tree()
    add(it, tokens(0, 400), 1)
    add(it, tokens(1000, 40), 2)
    assert order(it) == [2, 1]


def test_the_least_recently_used_goes_first_under_lru_whatever_it_costs() -> None:
    it = tree("LRU")
    add(it, tokens(0, 400), 1)
    add(it, tokens(1000, 40), 2)
    assert order(it) == [1, 2]


def test_a_checkpoint_is_worth_more_once_the_one_above_it_is_gone() -> None:
    it = tree()
    prompt = tokens(0, 400)
    upper = add(it, prompt[:360], 1)
    add(it, prompt, 2)
    add(it, tokens(1000, 100), 3)
    it.drop_state(upper)
    # 400 tokens to recompute now, not the 40 it was stored with.
    assert order(it) == [3, 2]


def foreseeing(pages_per_slab: int = 0) -> tuple[GhostTree, RadixTree]:
    ghosts, to = GhostTree(PAGE), tree()
    to.eviction.use_forecast(ghosts, pages_per_slab)
    return ghosts, to


def test_what_kept_coming_back_outlives_what_never_did() -> None:
    ghosts, it = foreseeing()
    asked = np.concatenate([tokens(0, 40), tokens(500, 1)])
    for number in range(200):
        # One prefix goes on ever anew; prompts of the same length come once.
        seen(ghosts, it, np.concatenate([asked[:40], tokens(10_000 + 10 * number, 9)]))
        seen(ghosts, it, tokens(50_000 + 100 * number, 60))
    seen(ghosts, it, asked, 1)
    seen(ghosts, it, tokens(90_000, 60), 2)
    assert order(it) == [2, 1]


def test_the_end_of_a_turn_that_was_answered_goes_before_the_newest_end() -> None:
    ghosts, it = foreseeing()
    for chat in range(60):
        for turn in range(1, 6):
            seen(ghosts, it, tokens(1000 * chat, 80 * turn))
    for turn in (1, 2):
        # The next turn passes the first end, so nobody comes back to that one.
        seen(ghosts, it, tokens(999_000, 80 * turn), turn)
    assert order(it)[0] == 1


def test_what_takes_more_pages_for_the_same_tokens_goes_first() -> None:
    _, it = foreseeing(pages_per_slab=2)
    stem = tokens(0, 40)
    shared = it.insert(stem, pages(40), 0, 1, "")[0]
    it.lock(shared, state=False)
    upper = it.insert(stem[:20], pages(20), 1, 1, "")[0]
    alone = it.insert(tokens(1000, 20), pages(20), 2, 1, "")[0]
    assert (upper.exclusive_span(), alone.exclusive_span()) == ((20, 0), (20, 5))
    assert order(it) == [2, 1]


def test_who_comes_back_to_an_evicted_checkpoint_makes_the_one_above_worth_more() -> None:
    ghosts, it = foreseeing()
    upper = seen(ghosts, it, tokens(0, 41), 1)
    lower = seen(ghosts, it, tokens(0, 61), 2)
    assert upper is not None
    assert lower is not None
    before = upper.priority
    it.eviction.evicted(lower)
    it.drop_state(lower)
    assert upper.priority > before


def test_looking_for_the_least_worth_changes_nothing() -> None:
    it = tree()
    add(it, tokens(0, 100), 1)
    add(it, tokens(1000, 40), 2)
    assert it.eviction.lowest_worth() == it.eviction.lowest_worth() == 40
    assert order(it) == [2, 1]


def test_nothing_is_worth_less_than_what_is_locked() -> None:
    it = tree()
    assert it.eviction.lowest_worth() == float("inf")
    it.lock(add(it, tokens(0, 100), 1), state=True)
    assert it.eviction.lowest_worth() == float("inf")


@pytest.mark.parametrize(("strategy", "evicts"), [("NoBuffer", False), ("ExtraBuffer", True)])
def test_grid_checkpoints_push_out_cheap_states_where_the_strategy_evicts(
    strategy: str, evicts: bool
) -> None:
    arena = Arena(6, 0)
    cache = RadixStateCache(
        arena,
        tree(),
        PersistentBatch(1, 1024),
        reservation(strategy, overlap=False),
        track_interval=1000,
        cap=4,
    )
    for number in range(3):
        # States of one page each: the cheapest there can be.
        grant = arena.allocate(AllocationSite.PREFILL_CHECKPOINT, tracking=1)
        assert grant is not None
        for state in (SlotState.TRACK_READY, SlotState.CACHED):
            arena.move(grant.slots[0], state)
        add(cache.tree, tokens(50_000 + 100 * number, PAGE), grant.slots[0])
    prompt = tokens(0, 4000)
    allocation = cache.admit(prompt, "", cache.match(prompt, "", 1), len(prompt), 0)
    assert allocation is not None
    assert allocation.placement == Placement((3996,), (1000, 2000, 3000))
    planned = [each.depth for each in cache.plan_prefill(allocation, len(prompt), 1)]
    assert (cache.counters.evicted > 0) is evicts
    assert any(depth in planned for depth in allocation.placement.optional) is evicts


@pytest.mark.parametrize(("length", "made"), [(9, 0), (1601, 1)])
def test_the_end_of_a_prompt_pushes_out_only_what_is_worth_less(length: int, made: int) -> None:
    bench = CacheBench.make(policy="RecomputeCost", slabs=8, per_slab=0, overlap=False, interval=10_000)
    for number in range(6):
        bench.serve(tokens(10_000 * number, 401 + 100 * number))
    # Two slots are left for the next admission, and five hold states of 400 to 900 tokens.
    assert (bench.arena.free_slots, bench.cache.tree.checkpoints) == (2, 5)
    before = bench.cache.counters.created
    prompt = tokens(90_000, length)
    bench.serve(prompt)
    assert bench.cache.counters.created - before == bench.cache.counters.evicted == made
    assert bench.checkpoints(prompt) == [length - 1] * made


def test_pages_nobody_can_resume_over_do_not_push_out_states() -> None:
    cache = RadixStateCache(
        Arena(13, 4),
        tree(),
        PersistentBatch(1, 1024),
        reservation("NoBuffer", overlap=False),
        track_interval=64,
        cap=4,
    )
    for number in range(8):
        # Four prompts with a checkpoint and four of which only the pages are left.
        tracking = int(number < 4)
        grant = cache.arena.allocate(AllocationSite.EXTEND, tracking=tracking, pages=4)
        assert grant is not None
        for slot in grant.slots:
            cache.arena.move(slot, SlotState.TRACK_READY)
            cache.arena.move(slot, SlotState.CACHED)
        slot = grant.slots[0] if grant.slots else 0
        cache.tree.insert(tokens(1000 * number, 16), grant.pages, slot, 1, "")
        cache.arena.give_pages_to_tree(grant.pages)
    prompt = tokens(90_000, 40)
    assert cache.admit(prompt, "", cache.match(prompt, "", 2), 40, 0) is not None
    assert cache.tree.checkpoints == 4
