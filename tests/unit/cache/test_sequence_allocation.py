"""What one sequence holds: pages in order however they come, and every tracking slot counted once."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_bench import CacheBench, ids
from mamba_server.cache.placement import Placement
from mamba_server.cache.sequence_allocation import Checkpoint, PendingCheckpoint, SequenceAllocation


def allocation(spare: list[int] | None = None) -> SequenceAllocation:
    return SequenceAllocation("", 1, spare or [], Placement((), ()))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=20), max_size=12))
def test_pages_are_kept_in_the_order_they_came(portions: list[list[int]]) -> None:
    held = allocation()
    for portion in portions:
        held.append_pages(np.array(portion, np.int32))
    everything = [page for portion in portions for page in portion]
    assert held.page_count == len(everything)
    assert held.pages[: held.page_count].tolist() == everything


def test_pages_that_come_one_by_one_are_moved_seldom() -> None:
    held = allocation()
    moved, array = 0, held.pages
    for page in range(1000):
        held.append_pages(np.array([page], np.int32))
        moved += held.pages is not array
        array = held.pages
    assert moved <= 10
    assert len(held.pages) <= 2 * 1000


def test_the_pages_given_in_may_change_afterwards() -> None:
    held, grant = allocation(), np.array([4, 5], np.int32)
    held.append_pages(grant)
    grant[:] = 0
    assert held.pages[:2].tolist() == [4, 5]


def test_slots_of_prefill_checkpoints_are_held_but_not_reserved() -> None:
    held = allocation(spare=[7])
    held.ready.append(Checkpoint(8, 5))
    held.pending += [
        PendingCheckpoint(Checkpoint(12, 6), step=3, decode=True),
        PendingCheckpoint(Checkpoint(16, 9), step=3, decode=False),
    ]
    assert held.reserved == 3
    assert sorted(held.tracking_slots) == [5, 6, 7, 9]


def test_asking_for_the_tracking_slots_does_not_change_them() -> None:
    held = allocation(spare=[7])
    held.tracking_slots.append(99)
    assert held.tracking_slots == [7]


def test_a_fresh_sequence_reads_zeros_a_resumed_one_its_checkpoint_and_then_each_its_own_slot() -> None:
    bench = CacheBench.make()
    prompt = ids(range(1, 20))
    fresh = bench.admit(prompt)
    assert fresh is not None
    assert (fresh.slot_in, fresh.resumed, fresh.depth) == (-1, 0, 0)
    bench.launch(fresh, len(prompt))
    assert fresh.slot_in == fresh.live
    bench.cache.prefill_done(fresh)
    bench.commit(fresh, prompt)
    resumed = bench.admit(prompt)
    assert resumed is not None
    assert resumed.match_node is not None
    assert resumed.slot_in == resumed.match_node.slot
    assert resumed.slot_in not in (resumed.live, fresh.live)
    assert resumed.resumed == resumed.depth == 16
    bench.launch(resumed, len(prompt))
    assert resumed.slot_in == resumed.live


def test_the_slots_of_two_sequences_have_nothing_in_common() -> None:
    bench = CacheBench.make(slabs=20)
    held = [bench.admit(ids(range(start, start + 9))) for start in (1, 100, 200)]
    slots = [slot for each in held if each is not None for slot in (each.live, *each.tracking_slots)]
    assert len(slots) == len(set(slots)) == 9
