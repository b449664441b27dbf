"""Order of starts: fair between salts and priorities, cache-aware within one, never starved."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.placement import Placement
from mamba_server.cache.sequence_allocation import SequenceAllocation
from mamba_server.engine.scheduling.queue_policy import MAX_PASSES, PRIORITY_FACTOR, Flow, WaitingQueue
from mamba_server.engine.scheduling.shared_prefix import AwaitedCheckpoint
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.wire import SamplingParams


def make(order: int, salt: str = "", priority: int = 0, prompt: int = 100, client: str = "") -> Sequence:
    return Sequence(
        f"r{order}", 0, np.ones(prompt, np.int32), SamplingParams(max_tokens=1),
        order=order, salt=salt, priority=priority, client=client,
    )  # fmt: skip


def nothing(_: Sequence) -> int:
    return 0


def start(queue: WaitingQueue, resumable=nothing) -> Sequence:
    sequence = queue.pick(resumable)
    assert sequence is not None
    queue.remove(sequence)
    queue.started(sequence, sequence.known_tokens - resumable(sequence))
    queue.prefilled(sequence)
    return sequence


def test_within_one_flow_the_oldest_goes_first() -> None:
    queue = WaitingQueue()
    for order in (2, 0, 1):
        queue.push(make(order))
    assert [start(queue).order for _ in range(3)] == [0, 1, 2]
    assert queue.pick(nothing) is None


def test_a_salt_that_sends_a_hundred_does_not_hold_up_one_that_sends_two() -> None:
    queue = WaitingQueue()
    for order in range(100):
        queue.push(make(order, salt="loud"))
    for order in (100, 101):
        queue.push(make(order, salt="quiet"))
    first = [start(queue).salt for _ in range(5)]
    assert first.count("quiet") == 2


@pytest.mark.parametrize("priority", [-8, 0, 8])
@pytest.mark.parametrize("salted", [False, True])
def test_neither_priorities_nor_salts_of_a_client_take_anything_from_another(
    priority: int, salted: bool
) -> None:
    queue = WaitingQueue()
    for order in range(100):
        queue.push(make(order, salt=f"s{order}" if salted else "", priority=priority, client="loud"))
    for order in range(100, 120):
        queue.push(make(order, client="quiet"))
    first = [start(queue).client for _ in range(20)]
    assert first.count("quiet") == 10


def test_clients_seen_once_are_forgotten() -> None:
    queue = WaitingQueue()
    for order in range(5000):
        queue.push(make(order, client=f"c{order}", prompt=1))
        start(queue)
    assert len(queue._clients.members) < 200


def test_computed_tokens_are_what_is_shared_fairly() -> None:
    queue = WaitingQueue()
    for order in range(40):
        queue.push(make(order, salt="long", prompt=1000))
        queue.push(make(1000 + order, salt="short", prompt=100))
    served = [start(queue).salt for _ in range(22)]
    assert 1 <= served.count("long") <= 3


def test_of_two_that_just_came_the_higher_priority_starts() -> None:
    queue = WaitingQueue()
    queue.push(make(0, priority=1))
    queue.push(make(1, priority=0))
    assert start(queue).priority == 0


def test_a_higher_priority_goes_first_and_a_lower_one_is_not_starved() -> None:
    queue = WaitingQueue()
    for order in range(100):
        queue.push(make(order, priority=0))
    for order in range(100, 130):
        queue.push(make(order, priority=1))
    served = [start(queue).priority for _ in range(50)]
    assert served[:1] == [0]
    low = served.count(1)
    assert 50 / (2 * (PRIORITY_FACTOR + 1)) <= low <= 50 / (PRIORITY_FACTOR - 1)


def test_the_longest_resumable_prefix_goes_first_and_the_oldest_is_passed_over_only_so_often() -> None:
    queue = WaitingQueue()
    queue.push(make(0))
    for order in range(1, 20):
        queue.push(make(order))

    def resumable(sequence: Sequence) -> int:
        return sequence.order

    served = [start(queue, resumable).order for _ in range(MAX_PASSES + 1)]
    assert served[0] == 7
    assert served.index(0) <= MAX_PASSES


def test_siblings_wait_for_the_prefill_of_their_leader() -> None:
    queue = WaitingQueue()
    leader, sibling = make(0), make(1)
    sibling.leader = leader
    queue.push(leader)
    queue.push(sibling)
    assert start(queue) is leader
    assert queue.pick(nothing) is None
    leader.prompt_done = True
    assert start(queue) is sibling


def test_a_preempted_sequence_waits_for_its_last_token_and_keeps_its_age() -> None:
    queue = WaitingQueue()
    old, young = make(0), make(1)
    old.in_flight = 1
    queue.push(young)
    queue.push(old)
    assert queue.pick(nothing) is young
    old.in_flight = 0
    assert queue.pick(nothing) is old


def test_any_priority_a_client_sends_is_ordered() -> None:
    queue = WaitingQueue()
    for order, priority in enumerate((10**9, -(10**9), 0)):
        queue.push(make(order, priority=priority))
    assert len([start(queue) for _ in range(3)]) == 3


def test_a_stream_of_new_salts_does_not_starve_one_that_has_to_wait() -> None:
    queue = WaitingQueue()
    for order in range(3):
        queue.push(make(order, salt="patient", prompt=1000))
    served = []
    for order in range(3, 60):
        queue.push(make(order, salt=f"new{order}", prompt=1000))
        served.append(start(queue).salt)
    assert served.count("patient") == 3


def test_salts_seen_once_are_forgotten() -> None:
    queue = WaitingQueue()
    for order in range(5000):
        queue.push(make(order, salt=f"s{order}", prompt=1))
        start(queue)
    assert len(queue._clients.of("").flows.members) < 200


def test_a_salt_in_debt_is_remembered_however_many_others_come() -> None:
    queue = WaitingQueue()
    queue.push(make(0, salt="greedy", prompt=100_000))
    for order in range(1, 71):
        queue.push(make(order, salt=f"s{order}", prompt=16))
    assert start(queue).salt == "greedy"
    assert start(queue).salt != "greedy"
    queue.push(make(100, salt="greedy"))
    queue.push(make(101, salt="later"))
    served = [start(queue).salt for _ in range(71)]
    assert served[-2:] == ["later", "greedy"]


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from("abc"), st.integers(0, 50)), max_size=60))
def test_everyone_starts_exactly_once(pushes: list[tuple[int, str, int]]) -> None:
    queue = WaitingQueue()
    for order, (priority, salt, _) in enumerate(pushes):
        queue.push(make(order, salt=salt, priority=priority))
    assert len(queue) == len(pushes)

    def resumable(sequence: Sequence) -> int:
        return pushes[sequence.order][2]

    served = [start(queue, resumable).order for _ in pushes]
    assert sorted(served) == list(range(len(pushes)))
    assert len(queue) == 0


def test_who_is_put_off_keeps_its_place_and_can_be_taken_away() -> None:
    queue = WaitingQueue()
    first, second, third, leader = (make(order) for order in range(4))
    for each in (first, second, third):
        queue.push(each)
    leader.allocation = SequenceAllocation(PersistentBatch(1, 1), 0, "", [], Placement((8,), ()))
    awaited = AwaitedCheckpoint(leader, leader.allocation, 8)
    queue.defer(first, awaited)
    queue.defer(second, awaited)
    assert (len(queue), set(queue), queue.pick(nothing)) == (3, {first, second, third}, third)
    queue.release()
    assert queue.pick(nothing) is third
    queue.remove(second)
    assert (len(queue), set(queue)) == (2, {first, third})
    leader.allocation = None
    queue.release()
    assert (len(queue), queue.pick(nothing)) == (2, first)
    queue.remove(first)
    assert set(queue) == {third}


def test_a_long_prompt_pays_as_it_is_computed_and_a_newcomer_gets_the_next_turn() -> None:
    queue = WaitingQueue()
    long, urgent, other = make(0, prompt=120_000), make(1, salt="b", priority=-1), make(2, salt="c")
    queue.push(long)
    assert queue.pick(nothing) is long
    queue.remove(long)
    queue.started(long, 2048)
    queue.charge(long, 2048)
    queue.push(urgent)
    assert queue.pick(nothing, queue.turn(long)) is urgent
    queue.remove(urgent)
    queue.started(urgent, 100)
    queue.prefilled(urgent)
    queue.push(other)
    queue.charge(long, 2048)
    assert queue.pick(nothing, queue.turn(long)) is other


def test_a_prompt_in_progress_keeps_its_claim_against_a_salt_that_never_rests() -> None:
    queue = WaitingQueue()
    long = make(0, salt="z", prompt=10_000)
    queue.push(long)
    queue.remove(long)
    queue.started(long, 100)
    turns = []
    for order in range(1, 41):
        queue.push(make(order, salt="a"))
        if queue.pick(nothing, queue.turn(long)) is None:
            turns.append(order)
            queue.charge(long, 100)
        else:
            start(queue)
    assert 15 <= len(turns) <= 25


@pytest.mark.parametrize("flows", [10, 1000])
def test_a_start_looks_at_as_many_flows_however_many_wait(
    flows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = WaitingQueue()
    for order in range(flows):
        queue.push(make(order, salt=f"s{order}"))
    looked: list[Flow] = []
    ready = Flow.ready
    monkeypatch.setattr(Flow, "ready", lambda flow, limit: looked.append(flow) or ready(flow, limit))
    for _ in range(10):
        start(queue)
    assert len(looked) == 10
