"""The engine does without full searches for garbage: none comes, and it leaves none to be found."""

import gc
import random
from collections import deque
from collections.abc import Iterator

import pytest

from engine_trial import EngineTrial, TrialSetup
from living_objects import ObjectRounds
from mamba_server.engine.process_memory.garbage import never_search_old_objects, search_new_objects


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    threshold, enabled = gc.get_threshold(), gc.isenabled()
    # A new process has these; another test may have served something in this one.
    gc.set_threshold(700, 10, 10)
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
    (gc.enable if enabled else gc.disable)()


def test_young_objects_are_searched_and_old_ones_never_again() -> None:
    never_search_old_objects()
    assert gc.get_freeze_count() > 0
    before = [generation["collections"] for generation in gc.get_stats()]
    kept: list[list[int]] = [[] for _ in range(200_000)]
    young, middle, full = (
        now["collections"] - then for now, then in zip(gc.get_stats(), before, strict=True)
    )
    assert len(kept) == 200_000
    assert young > 50
    assert middle > 5
    assert full == 0


def young() -> int:
    return len(gc.get_objects(0)) + len(gc.get_objects(1))


@pytest.mark.slow
def test_objects_grow_old_with_the_step_that_made_them_however_many_go_as_they_come() -> None:
    never_search_old_objects()
    cached: deque[list[int]] = deque([] for _ in range(10_000))
    search_new_objects()
    before = young()
    for _ in range(100):
        for _ in range(100):
            cached.popleft()
            cached.append([])
        search_new_objects()
    assert len(cached) == 10_000
    assert young() < before + 500


@pytest.mark.slow
def test_a_busy_engine_leaves_no_cycles() -> None:
    rounds = ObjectRounds()
    gc.disable()
    # The engines live on: only what requests leave counts, and not the engine itself.
    engines = []
    for _ in range(3):
        engines.append(busy_engine())
        rounds.end()
    assert rounds.cycles == 0


def busy_engine() -> EngineTrial:
    setup = TrialSetup(slabs=24, pages_per_slab=4, rows=3, step_tokens=32, policy="RecomputeCost")
    engine = EngineTrial(setup, random.Random(0))
    for start in range(12):
        engine.add([start % 5 + 1] * 9 + list(range(start, start + 20)), 9, n=1 + start % 2)
    for turn in range(40):
        engine.step()
        if turn % 7 == 3:
            engine.preempt()
    while not engine.core.idle:
        engine.step()
    assert engine.cache.counters.evicted > 0
    engine.close()
    return engine
