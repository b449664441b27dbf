"""State of one sequence besides its row: every tracking slot counted once, its progress read from the row."""

from __future__ import annotations

from cache_bench import CacheBench, ids
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.placement import Placement
from mamba_server.cache.sequence_allocation import Checkpoint, PendingCheckpoint, SequenceAllocation


def allocation(spare: list[int] | None = None) -> SequenceAllocation:
    batch = PersistentBatch(1, 8)
    return SequenceAllocation(batch, batch.add(1, 0), "", spare or [], Placement((), ()))


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


def test_the_pages_it_shows_are_those_of_its_row_and_no_copy() -> None:
    bench = CacheBench.make()
    held = bench.prefill(ids(range(17)))
    batch = bench.cache.batch
    assert held.pages.tolist() == batch.pages[held.row, : held.page_count].tolist()
    assert len(held.pages) == 5
    assert held.pages.base is batch.pages
