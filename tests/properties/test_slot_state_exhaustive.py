"""Every order of launches, completions, commits, failures, ends and preemptions in the smallest world.

Two sequences with one prompt, three slots beside the padding, one step of lookahead, four engine steps (six
with `MAMBASERVE_PROPS=large`). The same with one sequence, fewer steps, and a network: every order in which
states are received, confirmed, installed, given up and exported. Each reachable state is visited once, by
replay of the events before it.
"""

from collections.abc import Callable

import pytest

from mamba_server.cache.slot_state import TRANSITIONS, SlotState
from property_runs import BUDGET
from slot_transit_world import SlotTransitWorld
from slot_world import Action, SlotWorld

pytestmark = pytest.mark.slow

STEPS = {"large": 6}.get(BUDGET, 4)
WITH_NETWORK = ((2, 1), (1, 2)) if BUDGET == "large" else ((1, 1), (0, 2))
"""Engine steps and receptions of the worlds with a network."""
Move = tuple[SlotState, SlotState]
OUTSIDE = {
    SlotState.RECEIVING, SlotState.CONFIRMING, SlotState.INSTALLED, SlotState.EXPORTED, SlotState.QUARANTINED
}  # fmt: skip


def explore(make: Callable[[], SlotWorld]) -> tuple[int, set[Move]]:
    """Visit every state that the events of a world lead to; return their number, and the moves of slots."""

    def replay(path: tuple[Action, ...]) -> SlotWorld:
        world = make()
        for action in path:
            world.repeat(action)
        return world

    start = make()
    seen, moves = {start.key()}, set[Move]()
    # Depth first: a world goes on with one of its actions, and only the others need a replay.
    todo: list[tuple[tuple[Action, ...], SlotWorld | None, Action]] = []

    def visit(world: SlotWorld, path: tuple[Action, ...]) -> None:
        actions = world.actions()
        if not actions:
            world.settle_down()
            return
        todo.extend((path, None, action) for action in actions[:-1])
        todo.append((path, world, actions[-1]))

    visit(start, ())
    while todo:
        path, world, action = todo.pop()
        world = world or replay(path)
        world.do(action)
        moves |= world.moves
        key = world.key()
        if key not in seen:
            seen.add(key)
            path = (*path, action)
            visit(world, path)
            if len(seen) % 7 == 0:
                replay(path).settle_down()
    assert moves <= set(TRANSITIONS)
    return len(seen), moves


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("strategy", ["ExtraBuffer", "ExtraBufferLazy"])
def test_no_order_of_events_breaks_a_slot(strategy: str) -> None:
    states, moves = explore(lambda: SlotWorld.make(strategy, STEPS))
    print(f"\n{strategy}: {states} states, {len(moves)} of {len(TRANSITIONS)} moves")
    # Two tracking slots take turns; a lazy sequence borrows instead.
    only_in_turns = (
        {(SlotState.TRACK_READY, SlotState.TRACK_PENDING)} if strategy == "ExtraBufferLazy" else set()
    )
    inside = {move for move in TRANSITIONS if not OUTSIDE.intersection(move)}
    assert moves == inside - only_in_turns
    assert states > 1000


@pytest.mark.timeout(1800)
def test_no_order_of_receptions_and_exports_breaks_a_slot() -> None:
    states, moves = 0, set[Move]()
    for steps, receptions in WITH_NETWORK:
        reached, used = explore(lambda: world_with_network(steps, receptions))  # noqa: B023
        states, moves = states + reached, moves | used
    print(f"\nwith a network: {states} states, {len(moves)} of {len(TRANSITIONS)} moves")
    assert {move for move in TRANSITIONS if OUTSIDE.intersection(move)} <= moves
    assert states > 1000


def world_with_network(steps: int, receptions: int) -> SlotTransitWorld:
    """Return the start of an exploration with a network."""
    world = SlotTransitWorld.make("NoBuffer", steps, 1)
    world.receptions = receptions
    return world
