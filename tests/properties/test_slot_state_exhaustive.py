"""Every order of launches, completions, commits, failures, ends and preemptions in the smallest world.

Two sequences with one prompt, three slots beside the padding, one step of lookahead, five engine steps (six
with `MAMBASERVE_PROPS=large`). Each reachable state is visited once, by replay of the events before it.
"""

import pytest

from mamba_server.cache.slot_state import TRANSITIONS, SlotState
from property_runs import BUDGET
from slot_world import Action, SlotWorld

STEPS = {"small": 4, "large": 6}.get(BUDGET, 5)


def replay(strategy: str, path: tuple[Action, ...]) -> SlotWorld:
    world = SlotWorld.make(strategy, STEPS)
    for action in path:
        world.repeat(action)
    return world


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("strategy", ["ExtraBuffer", "ExtraBufferLazy"])
def test_no_order_of_events_breaks_a_slot(strategy: str) -> None:
    start = SlotWorld.make(strategy, STEPS)
    seen, moves = {start.key()}, set()
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
        world = world or replay(strategy, path)
        world.do(action)
        moves |= world.moves
        key = world.key()
        if key not in seen:
            seen.add(key)
            path = (*path, action)
            visit(world, path)
            if len(seen) % 7 == 0:
                replay(strategy, path).settle_down()
    print(f"\n{strategy}: {len(seen)} states, {len(moves)} of {len(TRANSITIONS)} moves")
    assert moves <= set(TRANSITIONS)
    # Two tracking slots take turns; a lazy sequence borrows instead.
    only_in_turns = (
        {(SlotState.TRACK_READY, SlotState.TRACK_PENDING)} if strategy == "ExtraBufferLazy" else set()
    )
    assert moves == set(TRANSITIONS) - only_in_turns
    assert len(seen) > 1000
