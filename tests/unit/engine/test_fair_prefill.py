"""A prompt that is being computed: neither starved by those who came later, nor in the way of the urgent."""

import random

import pytest

from mamba_server.engine.scheduling.admission import Admission
from mamba_server.engine.scheduling.answer_lengths import MAX_ANSWERS
from mamba_server.engine.sequences.sequence import Phase
from matrix_size import LARGE
from step_load import LoadSetup, StepLoad

ALONE = 3
"""Steps that 5,500 tokens take with 2,048 a step."""


def amid_short_traffic(seed: int, *, foreseen: bool) -> tuple[int, int]:
    """Return the steps of a 5,500-token prompt until its first token and until the end of earlier ones."""
    load, rng = StepLoad(LoadSetup(prefix_caching=bool(seed % 2))), random.Random(seed)
    if not foreseen:
        for _ in range(MAX_ANSWERS):
            load.scheduler.answers.ended(1)
            load.scheduler.answers.ended = lambda *_, **__: None
    count = 0
    while "long" not in load.first:
        while len(load.scheduler.waiting) < 6:
            count += 1
            load.add(f"s{count}", rng.randint(10, 60), rng.randint(100, 400))
        if load.steps == 30:
            load.add("long", 5500, 4)
            older = [name for name in load.core.sequences if name != "long"]
        load.step()
        assert load.steps < 3000, "starved"
    return load.first["long"] - 30, max(load.ended.get(each, load.steps) for each in older) - 30


@pytest.mark.parametrize("seed", range(20 if LARGE else 6))
def test_a_long_prompt_waits_for_those_before_it_and_then_takes_three_times_its_own_time(seed: int) -> None:
    waited, before = amid_short_traffic(seed, foreseen=True)
    assert waited <= before + 3 * ALONE


@pytest.mark.parametrize("seed", range(4 if LARGE else 2))
def test_where_memory_was_foreseen_wrongly_the_younger_make_room(seed: int) -> None:
    waited, before = amid_short_traffic(seed, foreseen=False)
    assert waited <= before + 3 * ALONE


def test_a_prefill_that_is_short_of_memory_takes_what_there_is_and_nobody_younger_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Admission, "_fits_forecast", lambda *_: True)
    load = StepLoad(LoadSetup(slabs=21))
    load.add("old", 100, 20)
    load.step()
    load.add("long", 2200, 4)
    load.step()
    load.add("young", 20, 4)
    load.step()
    (long,), (young,) = load.core.sequences["long"], load.core.sequences["young"]
    # 160 pages: two slots are 16, the old one has 7 and may want one more, the first piece took 124.
    assert long.allocation is not None
    assert long.allocation.depth == 1984 + 3 * 64
    while long.phase is Phase.PREFILL:
        assert young.phase is Phase.WAITING
        load.step()
    assert load.ended["old"] <= load.steps <= load.ended["old"] + 2


def test_what_a_short_prefill_leaves_to_older_ones_is_not_given_to_a_younger_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Admission, "_fits_forecast", lambda *_: True)
    load = StepLoad(LoadSetup(slabs=161, pages_per_slab=1))
    for name in "abcd":
        load.add(name, 100, 12)
    load.step()
    load.add("long", 2050, 4)
    load.step()
    load.add("young", 20, 4)
    (long,), (young,) = load.core.sequences["long"], load.core.sequences["young"]
    load.step()
    # Four of the pages are for those that were there before it.
    assert long.phase is Phase.PREFILL
    assert (young.phase, load.cache.arena.free_pages >= 3) == (Phase.WAITING, True)


def test_younger_ones_that_fill_the_memory_make_room_for_an_older_prefill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Admission, "_fits_forecast", lambda *_: True)
    load = StepLoad(LoadSetup(slabs=161, pages_per_slab=1, step_tokens=512))
    load.add("long", 2200, 4, salt="a")
    load.step()
    for name in "bcd":
        load.add(name, 150, 300, salt=name)
    while "long" not in load.first:
        load.step()
    assert load.steps <= 15
    assert load.scheduler.counters.preemptions >= 1


def test_an_urgent_prompt_beside_one_of_120_000_tokens_answers_within_three_steps() -> None:
    load = StepLoad(LoadSetup(slabs=3000, pages_per_slab=64, longest=131_072))
    load.add("long", 120_000, 4, salt="a")
    load.step()
    load.step()
    load.add("urgent", 20, 4, priority=-5, salt="b")
    load.add("other", 100, 4, salt="c")
    arrived = load.steps
    while len(load.first) < 2:
        load.step()
    assert load.first["urgent"] - arrived <= 3
    assert load.first["other"] - arrived <= 3
