"""Every order of launches, completions, commits, failures, ends and preemptions in the smallest world.

Two sequences with one prompt, three slots beside the padding, one step of lookahead, five engine steps (six
with `MAMBASERVE_PROPS=large`). Each reachable state is visited once, by replay of the events before it.
"""

import pytest

from mamba_server.cache.slot_life import TRANSITIONS, SlotState
from property_runs import BUDGET
from slot_world import Action, SlotWorld

STEPS = {"small": 4, "large": 6}.get(BUDGET, 5)


def replay(strategy: str, path: tuple[Action, ...]) -> SlotWorld:
    world = SlotWorld.make(strategy, STEPS)
    for action in path:
        world.do(action)
    return world


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("strategy", ["ExtraBuffer", "ExtraBufferLazy"])
def test_no_order_of_events_breaks_a_slot(strategy: str) -> None:
    start = SlotWorld.make(strategy, STEPS)
    seen, todo, moves = {start.key()}, [()], set()
    at = 0
    while at < len(todo):
        path = todo[at]
        world = replay(strategy, path)
        actions = world.actions()
        for index, action in enumerate(actions):
            here = world if index == len(actions) - 1 else replay(strategy, path)
            here.do(action)
            moves |= here.moves
            key = here.key()
            if key not in seen:
                seen.add(key)
                todo.append((*path, action))
                if len(seen) % 7 == 0:
                    here.settle_down()
        if not actions:
            world.settle_down()
        at += 1
    print(f"\n{strategy}: {len(seen)} states, {len(moves)} of {len(TRANSITIONS)} moves")
    assert moves <= set(TRANSITIONS)
    # Two tracking slots take turns; a lazy sequence borrows instead.
    only_in_turns = (
        {(SlotState.TRACK_READY, SlotState.TRACK_PENDING)} if strategy == "ExtraBufferLazy" else set()
    )
    assert moves == set(TRANSITIONS) - only_in_turns
    assert len(seen) > 1000
