"""The table of slot transitions."""

import itertools

import pytest

from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.slot_state import TRANSITIONS, SlotState, check_transition


@pytest.mark.parametrize(("old", "new"), list(itertools.product(SlotState, SlotState)))
def test_only_the_moves_of_the_table_are_legal(old: SlotState, new: SlotState) -> None:
    if (old, new) in TRANSITIONS:
        check_transition(1, old, new, fence=3, completed=3)
    else:
        with pytest.raises(LedgerViolation, match="no transition"):
            check_transition(1, old, new, fence=0, completed=9)


@pytest.mark.parametrize(("move", "fenced"), list(TRANSITIONS.items()))
def test_a_move_after_a_write_waits_for_its_fence(move: tuple[SlotState, SlotState], fenced: bool) -> None:
    if fenced:
        with pytest.raises(LedgerViolation, match="before the fence of step 4"):
            check_transition(1, *move, fence=4, completed=3)
    else:
        check_transition(1, *move, fence=4, completed=3)


def test_memory_is_free_only_by_way_of_a_fence() -> None:
    assert [old for old, new in TRANSITIONS if new is SlotState.FREE] == [SlotState.FENCED]
    assert TRANSITIONS[SlotState.FENCED, SlotState.FREE]


def test_what_the_tree_gets_is_complete() -> None:
    assert all(fenced for (_, new), fenced in TRANSITIONS.items() if new is SlotState.CACHED)


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
    fenced = {(old.name, new.name) for (old, new), needed in TRANSITIONS.items() if needed}
    assert fenced == {
        ("LIVE", "CACHED"),
        ("TRACK_PENDING", "TRACK_READY"),
        ("TRACK_READY", "CACHED"),
        ("FENCED", "FREE"),
    }
