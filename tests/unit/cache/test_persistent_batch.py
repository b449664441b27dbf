"""The persistent batch: one owner for each row, and a row starts anew with each of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_bench import CacheBench, ids
from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.persistent_batch import PersistentBatch

PROMPT = ids(range(17))
EVENT = st.tuples(
    st.integers(0, 5), st.sampled_from(["append", "replace", "send", "end"]), st.integers(0, 2**31 - 1)
)


def pages(*each: int) -> np.ndarray:
    return np.array(each, np.int32)


def row_pages(batch: PersistentBatch, row: int) -> list[int]:
    return batch.pages[row, : batch.page_count[row]].tolist()


def test_every_row_is_given_once_and_the_first_ones_first() -> None:
    batch = PersistentBatch(2, 4)
    assert [batch.add(live, 0) for live in (7, 8, 9, 10)] == [0, 1, 2, 3]
    assert batch.free == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 7), max_size=40))
def test_any_order_of_coming_and_going_leaves_every_row_with_one_owner(events: list[int]) -> None:
    batch = PersistentBatch(2, 1)
    there: set[int] = set()
    for event in events:
        if event < 4 and event in there:
            batch.remove(event)
            there.remove(event)
        elif batch.free:
            row = batch.add(1, 0)
            assert row not in there
            there.add(row)
        assert batch.free == 4 - len(there)


def test_a_row_knows_where_its_sequence_starts_and_how_far_launched_steps_took_it() -> None:
    batch = PersistentBatch(2, 8)
    other, row = batch.add(1, 0), batch.add(4, 16)
    assert (batch.depth[row], batch.live[row], batch.last_step[row]) == (16, 4, 0)
    batch.launch(row, 20, 1 << 40)
    assert (batch.depth[row], batch.last_step[row]) == (20, 1 << 40)
    assert (batch.depth[other], batch.last_step[other]) == (0, 0)


def test_a_step_of_many_rows_moves_each_of_them_and_no_other() -> None:
    batch = PersistentBatch(2, 8)
    rows = np.array([batch.add(slot, depth) for slot, depth in ((1, 5), (2, 6), (3, 7))], np.int32)
    batch.launch(rows[[0, 2]], batch.depth[rows[[0, 2]]] + 1, 9)
    assert batch.depth[rows].tolist() == [6, 6, 8]
    assert batch.last_step[rows].tolist() == [9, 0, 9]


def test_of_the_row_of_a_longer_sequence_nothing_is_left_for_the_next() -> None:
    batch = PersistentBatch(1, 8)
    row = batch.add(3, 0)
    batch.append_pages(row, pages(1, 2, 3, 4, 5))
    batch.launch(row, 17, 4)
    batch.remove(row)
    assert batch.add(6, 0) == row
    batch.append_pages(row, pages(6))
    assert row_pages(batch, row) == [6]
    assert (batch.depth[row], batch.last_step[row], batch.live[row]) == (0, 0, 6)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=20), max_size=12))
def test_pages_are_kept_in_the_order_they_came(portions: list[list[int]]) -> None:
    batch = PersistentBatch(1, 12 * 20)
    row = batch.add(1, 0)
    for portion in portions:
        batch.append_pages(row, pages(*portion))
    assert row_pages(batch, row) == [page for portion in portions for page in portion]


def test_the_pages_given_in_may_change_afterwards() -> None:
    batch, grant = PersistentBatch(1, 4), pages(4, 5)
    row = batch.add(1, 0)
    batch.append_pages(row, grant)
    grant[:] = 0
    assert row_pages(batch, row) == [4, 5]


def test_the_longest_sequence_fits_its_row_and_a_longer_one_is_no_silent_loss() -> None:
    batch = PersistentBatch(1, 3)
    row = batch.add(1, 0)
    batch.append_pages(row, pages(1, 2, 3))
    assert batch.page_count[row] == 3
    with pytest.raises(LedgerViolation, match="4 pages"):
        batch.append_pages(row, pages(4))
    assert row_pages(batch, row) == [1, 2, 3]


def test_a_model_without_attention_needs_no_pages() -> None:
    batch = PersistentBatch(2, 0)
    row = batch.add(1, 0)
    batch.append_pages(row, pages())
    assert batch.page_count[row] == 0


def test_a_sequence_that_ends_keeps_its_row_until_its_last_launched_step_is_complete() -> None:
    bench = CacheBench.make()
    batch = bench.cache.batch
    allocation = bench.admit(PROMPT)
    assert allocation is not None
    bench.launch(allocation, len(PROMPT))
    taken = batch.free
    bench.cache.retire(allocation, lambda: PROMPT)
    assert batch.free == taken
    bench.cache.advance(bench.step)
    bench.cache.release_retired()
    assert batch.free == taken + 1 == batch.rows


def test_without_a_free_row_an_admission_waits_and_changes_nothing() -> None:
    bench = CacheBench.make(slabs=80)
    bench.serve(PROMPT)
    held = [bench.prefill(ids(range(at, at + 9))) for at in range(100, 100 + 20 * bench.cache.batch.rows, 20)]
    before = (bench.arena.free_slots, bench.arena.free_pages)
    assert bench.admit(PROMPT) is None
    assert (bench.arena.free_slots, bench.arena.free_pages) == before
    assert bench.cache.tree.locked_states == 0
    bench.cache.retire(held[0], lambda: PROMPT[:0])
    assert bench.admit(PROMPT) is not None
    bench.check()


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENT, max_size=60))
def test_a_table_that_was_sent_what_changed_has_the_pages_of_every_row(
    events: list[tuple[int, str, int]],
) -> None:
    batch = PersistentBatch(3, 7)
    table = np.full_like(batch.pages, -1)
    there = {batch.add(1, 0) for _ in range(3)}
    for row, event, page in events:
        if row not in there:
            if event == "append":
                there.add(batch.add(1, 0))
            continue
        count = int(batch.page_count[row])
        if event == "append" and count < 7:
            batch.append_pages(row, pages(page))
        elif event == "replace" and count:
            first = batch.pages[row, : 1 + page % count].copy()
            first[page % len(first)] = page
            batch.replace_pages(row, first)
            assert batch.pages[row, : len(first)].tolist() == first.tolist()
        elif event == "end":
            batch.remove(row)
            there.remove(row)
        elif event == "send":
            rows = np.array(sorted(there), np.int32)
            places, values = batch.unsent_pages(rows)
            table.reshape(-1)[places] = values
            for each in there:
                assert table[each, : batch.page_count[each]].tolist() == row_pages(batch, each)
            assert not len(batch.unsent_pages(rows)[0]), "nothing is sent twice"


def test_of_a_long_row_only_the_page_that_came_is_sent() -> None:
    batch = PersistentBatch(2, 9000)
    rows = np.array([batch.add(1, 0), batch.add(2, 0)], np.int32)
    batch.append_pages(0, np.arange(1, 8193, dtype=np.int32))
    batch.append_pages(1, pages(9))
    assert len(batch.unsent_pages(rows)[0]) == 8193
    batch.append_pages(0, pages(77))
    places, values = batch.unsent_pages(rows)
    assert (places.tolist(), values.tolist()) == ([8192], [77])
