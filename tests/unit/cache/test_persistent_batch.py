"""Rows of the persistent batch: one owner each, and what a row says is what its sequence holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.placement import Placement
from mamba_server.cache.sequence_allocation import SequenceAllocation
from mamba_server.engine.sequence import Sequence
from mamba_server.wire import SamplingParams


def sequence(order: int = 0, *, pages: tuple[int, ...] = (), live: int = 3, outputs: int = 9) -> Sequence:
    """A sequence that was admitted with these pages."""
    made = Sequence(
        f"r{order}", 0, np.arange(5, dtype=np.int32), SamplingParams(max_tokens=outputs), order=order
    )
    made.allocation = SequenceAllocation("", live, [], Placement((), ()))
    made.allocation.append_pages(np.array(pages, np.int32))
    return made


def test_every_row_is_given_once_and_the_first_ones_first() -> None:
    rows = PersistentBatch(3, 4)
    assert [rows.take(sequence(order)) for order in range(3)] == [0, 1, 2]
    assert rows.free == 0


def test_a_row_knows_its_sequence_until_it_is_given_back() -> None:
    rows = PersistentBatch(2, 4)
    owner = sequence()
    row = rows.take(owner)
    assert (owner.row, rows.sequences[row]) == (row, owner)
    rows.give_back(owner)
    assert (owner.row, rows.sequences[row], rows.free) == (-1, None, 2)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 7), max_size=40))
def test_any_order_of_coming_and_going_leaves_every_row_with_one_owner(events: list[int]) -> None:
    rows = PersistentBatch(4, 1)
    there: dict[int, Sequence] = {}
    for order, event in enumerate(events):
        if event < 4 and event in there:
            rows.give_back(there.pop(event))
        elif rows.free:
            newcomer = sequence(order)
            there[rows.take(newcomer)] = newcomer
        assert rows.free == 4 - len(there)
        assert {row: rows.sequences[row] for row in range(4) if rows.sequences[row]} == there
        assert all(each.row == row for row, each in there.items())


def test_loading_takes_over_depth_slot_pages_and_what_may_still_be_sampled() -> None:
    rows = PersistentBatch(2, 8)
    other, owner = sequence(0, pages=(90, 91), live=1), sequence(1, pages=(7, 5, 6), live=4, outputs=9)
    for each in (other, owner):
        rows.take(each)
    assert owner.allocation is not None
    owner.allocation.depth, owner.allocation.last_step, owner.sampled = 11, 42, 2
    rows.load(owner)
    row = owner.row
    assert (rows.depth[row], rows.live[row], rows.left[row], rows.last_step[row]) == (11, 4, 7, 42)
    assert rows.pages[row, : rows.page_count[row]].tolist() == [7, 5, 6]
    assert not rows.page_count[other.row]


def test_of_the_row_of_a_longer_sequence_only_the_own_pages_count() -> None:
    rows = PersistentBatch(1, 8)
    first = sequence(0, pages=(1, 2, 3, 4, 5))
    rows.take(first)
    rows.load(first)
    rows.give_back(first)
    second = sequence(1, pages=(6,))
    rows.take(second)
    rows.load(second)
    assert rows.pages[0, : rows.page_count[0]].tolist() == [6]


def test_pages_that_were_exchanged_are_read_again_and_nothing_else_is() -> None:
    rows = PersistentBatch(1, 8)
    owner = sequence(pages=(1, 2))
    assert owner.allocation is not None
    rows.take(owner)
    rows.load(owner)
    rows.depth[0] = 17
    owner.allocation.pages[0] = 60
    owner.allocation.append_pages(np.array([3], np.int32))
    rows.load_pages(owner)
    assert rows.pages[0, : rows.page_count[0]].tolist() == [60, 2, 3]
    assert rows.depth[0] == 17


def test_storing_brings_the_holding_to_where_the_row_is_in_plain_numbers() -> None:
    rows = PersistentBatch(1, 8)
    owner = sequence(pages=(1, 2))
    assert owner.allocation is not None
    rows.take(owner)
    rows.load(owner)
    rows.depth[0], rows.last_step[0] = 6, 1 << 40
    rows.store(owner)
    assert (owner.allocation.depth, owner.allocation.last_step) == (6, 1 << 40)
    assert type(owner.allocation.depth) is type(owner.allocation.last_step) is int


def test_the_longest_sequence_fits_its_row_and_a_longer_one_is_no_silent_loss() -> None:
    rows = PersistentBatch(1, 3)
    owner = sequence(pages=(1, 2, 3))
    rows.take(owner)
    rows.load(owner)
    assert rows.page_count[0] == 3
    assert owner.allocation is not None
    owner.allocation.append_pages(np.array([4], np.int32))
    with pytest.raises(ValueError, match="could not broadcast"):
        rows.load_pages(owner)


def test_a_model_without_attention_needs_no_pages() -> None:
    rows = PersistentBatch(2, 0)
    owner = sequence()
    rows.take(owner)
    rows.load(owner)
    assert rows.page_count[owner.row] == 0
