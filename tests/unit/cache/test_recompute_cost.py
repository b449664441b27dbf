"""What goes first when room is short: cost over recency, hits over guesses, costs that follow the tree."""

import numpy as np
import pytest

from mamba_planner.strategy import reservation
from mamba_server.cache.arena import AllocationSite, Arena
from mamba_server.cache.eviction import GUESS, Eviction, Policy
from mamba_server.cache.node import Node
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.placement import Placement
from mamba_server.cache.slot_life import SlotState
from mamba_server.cache.state_cache import StateCache
from mamba_server.cache.tree import RadixTree

PAGE = 4


def tokens(first: int, count: int) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.int32)


def pages(count: int) -> np.ndarray:
    return np.zeros(count // PAGE, np.int32)


def tree(policy: Policy = "RecomputeCost") -> RadixTree:
    return RadixTree(PAGE, Eviction(policy))


def add(to: RadixTree, prompt: np.ndarray, slot: int, *, guess: bool = False) -> Node:
    return to.insert(prompt, pages(len(prompt)), slot, 1, "", guess=guess)[0]


def order(of: RadixTree) -> list[int]:
    """Slots from the first victim to the last, as if each were evicted in turn."""
    out = []
    while (node := of.eviction.checkpoint()) is not None:
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


def test_what_was_resumed_from_outlives_what_was_not() -> None:
    it = tree()
    old = add(it, tokens(0, 60), 1)
    add(it, tokens(1000, 100), 2)
    it.touch(old)
    assert order(it) == [2, 1]


def test_a_guess_goes_before_an_end_until_it_is_hit() -> None:
    it = tree()
    add(it, tokens(0, 400), 1, guess=True)
    add(it, tokens(1000, 40), 2)
    assert GUESS * 400 < 40
    assert next(iter(order(it))) == 1

    it = tree()
    guess = add(it, tokens(0, 400), 1, guess=True)
    add(it, tokens(1000, 40), 2)
    it.touch(guess)
    assert order(it) == [2, 1]


def test_a_lost_checkpoint_takes_its_hits_with_it() -> None:
    it = tree()
    node = add(it, tokens(0, 400), 1)
    it.touch(node)
    assert node.hits == 1
    it.drop_state(node)
    assert node.hits == 0


def test_a_guess_displaces_only_what_is_worth_less() -> None:
    it = tree()
    add(it, tokens(0, 100), 1)
    assert not it.eviction.displaces(int(100 / GUESS) - PAGE)
    assert it.eviction.displaces(int(100 / GUESS) + PAGE)


def test_looking_for_a_victim_changes_nothing() -> None:
    it = tree()
    add(it, tokens(0, 100), 1)
    add(it, tokens(1000, 40), 2)
    it.eviction.displaces(1)
    it.eviction.displaces(1 << 20)
    assert order(it) == [2, 1]


def test_nothing_is_displaced_in_an_empty_or_a_locked_tree() -> None:
    it = tree()
    assert not it.eviction.displaces(1 << 20)
    it.lock(add(it, tokens(0, 100), 1), state=True)
    assert not it.eviction.displaces(1 << 20)


@pytest.mark.parametrize(("strategy", "evicts"), [("NoBuffer", False), ("ExtraBuffer", True)])
def test_grid_checkpoints_push_out_cheap_states_where_the_strategy_evicts(
    strategy: str, evicts: bool
) -> None:
    arena = Arena(6, 0)
    cache = StateCache(
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


def test_pages_nobody_can_resume_over_do_not_push_out_states() -> None:
    cache = StateCache(
        Arena(13, 4),
        tree(),
        PersistentBatch(1, 1024),
        reservation("NoBuffer", overlap=False),
        track_interval=64,
        cap=4,
    )
    for number in range(8):
        # Four prompts with a checkpoint, hit once, and four of which only the pages are left.
        tracking = int(number < 4)
        grant = cache.arena.allocate(AllocationSite.EXTEND, tracking=tracking, pages=4)
        assert grant is not None
        for slot in grant.slots:
            cache.arena.move(slot, SlotState.TRACK_READY)
            cache.arena.move(slot, SlotState.CACHED)
        slot = grant.slots[0] if grant.slots else 0
        node, _, _ = cache.tree.insert(tokens(1000 * number, 16), grant.pages, slot, 1, "")
        cache.arena.give_pages_to_tree(grant.pages)
        if slot:
            cache.tree.touch(node)
    prompt = tokens(90_000, 40)
    assert cache.admit(prompt, "", cache.match(prompt, "", 2), 40, 0) is not None
    assert cache.tree.checkpoints == 4
