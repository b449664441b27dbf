"""The table of slot transitions."""

import itertools

import pytest

from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.slot_state import STEP, TRANSITIONS, WRITER, SlotState, check_transition


@pytest.mark.parametrize(("old", "new"), list(itertools.product(SlotState, SlotState)))
def test_only_the_moves_of_the_table_are_legal(old: SlotState, new: SlotState) -> None:
    if (old, new) in TRANSITIONS:
        check_transition(1, old, new, fence=3, completed=3)
    else:
        with pytest.raises(LedgerViolation, match="no transition"):
            check_transition(1, old, new, fence=0, completed=9)


@pytest.mark.parametrize(("move", "needed"), list(TRANSITIONS.items()))
def test_a_move_after_a_write_waits_for_its_fence(move: tuple[SlotState, SlotState], needed: int) -> None:
    if needed & STEP:
        with pytest.raises(LedgerViolation, match="before the fence of step 4"):
            check_transition(1, *move, fence=4, completed=3)
    else:
        check_transition(1, *move, fence=4, completed=3)


@pytest.mark.parametrize(("move", "needed"), list(TRANSITIONS.items()))
def test_a_move_after_a_write_from_outside_waits_for_the_end_of_its_writer(
    move: tuple[SlotState, SlotState], needed: int
) -> None:
    if needed & WRITER:
        with pytest.raises(LedgerViolation, match=r"T3: .* before the end of the writer of reception 7"):
            check_transition(1, *move, fence=0, completed=9, writer=7)
    else:
        check_transition(1, *move, fence=0, completed=9, writer=7)


def test_memory_is_free_only_by_way_of_a_fence() -> None:
    assert [old for old, new in TRANSITIONS if new is SlotState.FREE] == [SlotState.FENCED]
    assert TRANSITIONS[SlotState.FENCED, SlotState.FREE] == STEP + WRITER


def test_a_writer_outside_the_stream_gets_only_memory_that_nobody_writes_any_more() -> None:
    assert {old: needed for (old, new), needed in TRANSITIONS.items() if new is SlotState.RECEIVING} == {
        SlotState.FREE: STEP + WRITER
    }


def test_the_memory_of_a_reception_leaves_it_only_after_the_end_of_its_writer() -> None:
    written = (SlotState.RECEIVING, SlotState.QUARANTINED, SlotState.CONFIRMING)
    left = {move: needed for move, needed in TRANSITIONS.items() if move[0] in written}
    assert {move for move, needed in left.items() if not needed & WRITER} == {
        (SlotState.RECEIVING, SlotState.QUARANTINED)
    }
    assert not any(new is SlotState.FREE for _, new in left)


def test_what_the_tree_gets_is_complete() -> None:
    reached = {old: needed for (old, new), needed in TRANSITIONS.items() if new is SlotState.CACHED}
    # The writes of an exported checkpoint were complete when it was exported.
    assert {old for old, needed in reached.items() if not needed & STEP} == {SlotState.EXPORTED}
    assert TRANSITIONS[SlotState.CACHED, SlotState.EXPORTED] & STEP


def test_what_somebody_outside_reads_is_not_freed() -> None:
    assert [new for old, new in TRANSITIONS if old is SlotState.EXPORTED] == [SlotState.CACHED]


def test_every_state_is_reached_from_free_and_leads_back() -> None:
    for start, end in itertools.product(SlotState, SlotState):
        seen, todo = {start}, [start]
        while todo:
            at = todo.pop()
            for old, new in TRANSITIONS:
                if old is at and new not in seen:
                    seen.add(new)
                    todo.append(new)
        assert end in seen


def test_these_moves_follow_a_device_write_and_no_others() -> None:
    fenced = {(old.name, new.name) for (old, new), needed in TRANSITIONS.items() if needed & STEP}
    assert fenced == {
        ("LIVE", "CACHED"),
        ("TRACK_PENDING", "TRACK_READY"),
        ("TRACK_READY", "CACHED"),
        ("INSTALLED", "CACHED"),
        ("CACHED", "EXPORTED"),
        ("FENCED", "FREE"),
        ("FREE", "RECEIVING"),
    }
