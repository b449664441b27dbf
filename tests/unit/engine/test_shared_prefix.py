"""A prefix that several waiting prompts share is computed once."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_bench import CacheBench
from engine_trial import STRATEGIES, EngineTrial, TrialSetup
from mamba_server.cache.arena import AllocationSite
from mamba_server.engine.scheduling.admission import MAX_DEFERRED
from mamba_server.engine.scheduling.shared_prefix import common_depth, deepest
from mamba_server.engine.sequences.sequence import Phase, Sequence
from mamba_server.wire import AbortRequest, AddRequest, SamplingParams

STEM = list(range(1, 101))


def trial(**changes: object) -> EngineTrial:
    setup = {"slabs": 400, "rows": 8, "overlap": False, "step_tokens": 1000, "intervals": 64, **changes}
    return EngineTrial(TrialSetup(**setup), random.Random(0))


def cached(engine: EngineTrial, name: str) -> int:
    return engine.core.sequences[name][0].cached_tokens


def computed(engine: EngineTrial) -> int:
    counters = engine.core.scheduler.counters
    return counters.prompt_tokens - counters.cached_tokens


def sequence(tokens: list[int], salt: str = "") -> Sequence:
    return Sequence("r", 0, np.array(tokens, np.int32), SamplingParams(max_tokens=1), order=0, salt=salt)


PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=30)


@given(PROMPTS, PROMPTS, st.sampled_from([1, 2, 4]))
def test_what_two_prompts_share_is_whole_pages_and_leaves_the_first_a_token(
    one: list[int], other: list[int], page: int
) -> None:
    depth = common_depth(sequence(one), sequence(other), page)
    assert depth % page == 0
    assert depth < len(one)
    assert one[:depth] == other[:depth]
    more = depth + page
    assert more > min(len(one) - 1, len(other)) or one[:more] != other[:more]


def test_prompts_of_two_salts_share_nothing() -> None:
    assert common_depth(sequence(STEM, "a"), sequence(STEM, "b"), 4) == 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_burst_with_one_stem_computes_it_once(strategy: str, overlap: bool) -> None:
    engine = trial(strategy=strategy, overlap=overlap)
    for index in range(6):
        engine.add([*STEM, 200 + index, 5, 5, 5, 5], 3)
    while not engine.core.idle:
        engine.step()
    assert computed(engine) == 105 + 5 * 5
    engine.close()


def test_one_step_later_all_of_a_burst_run() -> None:
    engine = trial()
    for index in range(6):
        engine.add([*STEM, 200 + index], 9)
    engine.step()
    assert engine.core.scheduler.running == 1
    engine.step()
    assert engine.core.scheduler.running == 6
    engine.close()


def test_who_comes_while_a_long_prompt_is_computed_resumes_where_they_part() -> None:
    engine = trial(step_tokens=32, chunk=16)
    long = [*STEM, *range(300, 500)]
    engine.add(long, 2)
    engine.step()
    engine.add([*long[:90], 7, 7, 7], 2)
    while engine.core.sequences["r1"][0].phase is Phase.WAITING:
        engine.step()
    assert cached(engine, "r1") == 88
    engine.close()


def test_a_prompt_behind_the_parting_takes_the_nearest_checkpoint_on_its_way() -> None:
    engine = trial(overlap=True, intervals=4, cap=8)
    engine.add([*STEM, *range(300, 400)], 2)
    engine.step()
    engine.add([*STEM[:70], 9, 9], 2)
    for _ in range(3):
        engine.step()
    # The whole prompt was launched before the second came: no checkpoint at 68, but one at 64.
    assert cached(engine, "r1") == 64
    engine.close()


def test_an_unlike_prompt_does_not_wait_with_the_others() -> None:
    engine = trial()
    engine.add(STEM, 2)
    engine.add([*STEM, 8], 2)
    engine.add(list(range(400, 440)), 2)
    engine.step()
    phases = {name: group[0].phase for name, group in engine.core.sequences.items()}
    assert phases == {"r0": Phase.DECODE, "r1": Phase.WAITING, "r2": Phase.DECODE}
    engine.close()


def test_a_short_shared_prefix_is_not_worth_waiting_for() -> None:
    engine = trial(chunk=16)
    for index in range(3):
        engine.add([*STEM[:12], 200 + index, 5], 2)
    engine.step()
    assert engine.core.scheduler.running == 3
    engine.close()


@pytest.mark.parametrize("end", ["abort", "preempt", "fail"])
def test_when_the_leader_goes_the_others_do_not_wait_for_it(end: str) -> None:
    engine = trial(step_tokens=32, chunk=16)
    engine.add([*STEM, *range(300, 400)], 2)
    engine.add([*STEM, 8], 2)
    engine.step()
    leader = engine.core.sequences["r0"][0]
    assert engine.core.sequences["r1"][0].phase is Phase.WAITING
    if end == "abort":
        engine.core.abort(AbortRequest("r0"))
        engine.ended[leader.key] = "abort"
    elif end == "preempt":
        engine.core.scheduler.preempt(leader)
    else:
        engine.fail_next_step()
    for _ in range(30):
        engine.step()
    assert engine.core.idle
    engine.close()


def test_where_no_slot_is_free_for_the_checkpoint_only_planned_ones_are_waited_for() -> None:
    engine = trial(strategy="NoBuffer", step_tokens=32, chunk=16)
    engine.add([*STEM, *range(300, 400)], 2)
    engine.step()
    leader = engine.core.sequences["r0"][0]
    follower = sequence([*STEM[:60], 8])
    with_slots = deepest(follower, [leader], 4, new_checkpoints=True)
    assert with_slots is not None
    assert with_slots.depth == 60
    assert deepest(follower, [leader], 4, new_checkpoints=False) is None
    engine.close()


def test_only_a_strategy_that_may_evict_counts_on_a_slot_in_a_full_arena() -> None:
    for strategy, expected in (("NoBuffer", False), ("ExtraBufferLazy", True), ("ExtraBuffer", True)):
        bench = CacheBench.make(strategy=strategy, slabs=4)
        assert bench.cache.capacity.accepts_checkpoints
        bench.arena.allocate(AllocationSite.EXTEND, pages=bench.arena.free_pages)
        assert bench.cache.capacity.accepts_checkpoints is expected


def test_one_step_puts_off_no_more_than_so_many_and_the_next_goes_on() -> None:
    engine = trial(step_tokens=32, chunk=16)
    engine.add([*STEM, *range(300, 500)], 2)
    engine.step()
    for index in range(MAX_DEFERRED + 6):
        engine.add([*STEM, 600 + index], 1)
    held = []
    for _ in range(2):
        engine.step()
        held.append(sum(each.deferred for (each,) in engine.core.sequences.values()))
    assert held == [MAX_DEFERRED, MAX_DEFERRED + 6]
    engine.close()


def test_prompt_logprobs_wait_for_nobody() -> None:
    engine = trial()
    engine.add(STEM, 2)
    engine.add(STEM, 2)
    second = engine.core.sequences["r1"][0]
    second.prompt_logprobs = [None]
    engine.step()
    assert second.phase is not Phase.WAITING
    second.prompt_logprobs = None
    engine.close()


def test_no_sequence_is_put_off_twice() -> None:
    engine = trial(step_tokens=32, chunk=16)
    engine.add([*STEM, *range(300, 400)], 2)
    engine.add([*STEM[:60], 8], 2)
    engine.step()
    waiting = engine.core.sequences["r1"][0]
    queue = engine.core.scheduler.waiting
    assert waiting.deferred
    assert queue.pick(lambda _: 0) is None
    # Preempted, the leader starts anew ahead of the other, which would have to wait again.
    engine.core.scheduler.preempt(engine.core.sequences["r0"][0])
    for _ in range(2):
        engine.step()
    assert queue.pick(lambda _: 0) is waiting
    engine.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_of_many_that_part_from_one_prompt_nobody_recomputes_what_it_waited_for(strategy: str) -> None:
    engine = trial(strategy=strategy, step_tokens=64, chunk=16, rows=50, cap=4, slabs=2000)
    base = [1 + (at * at) % 89 for at in range(500)]
    engine.add(base, 2)
    engine.step()
    parts = range(72, 432, 9)
    for depth in parts:
        engine.add([*base[:depth], *range(90, 97)], 2)
    followers = [engine.core.sequences[f"r{1 + index}"][0] for index in range(len(parts))]
    steps = 0
    while not engine.core.idle:
        engine.step()
        steps += 1
    assert [each.cached_tokens for each in followers] == [depth // 4 * 4 for depth in parts]
    assert engine.cache.counters.evicted == 0
    # What is left of the prompt and of forty followers, and the answers.
    assert steps <= 500 // 64 + len(parts) * 11 / 64 + 6
    engine.close()


def test_sequences_that_ended_are_not_kept_as_leaders() -> None:
    engine = trial()
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    for index in range(3):
        engine.core.add(AddRequest(f"echo{index}", STEM, params))
        engine.core.step()
    engine.close()
    assert engine.core.scheduler.admission.leading == []
