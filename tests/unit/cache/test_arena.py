"""The arena: roles of slabs, packing, all-or-nothing, fences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_server.cache.arena import AllocationSite, Arena, PageOwner
from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.slot_state import SlotState
from operations import operations

ADMIT, EXTEND = AllocationSite.ADMIT, AllocationSite.EXTEND


def test_the_padding_slab_is_given_to_nobody() -> None:
    arena = Arena(4, 2)
    first = arena.allocate(ADMIT, live=1, pages=4)
    assert first is not None
    assert 0 not in first.slots
    assert not {0, 1}.intersection(first.pages.tolist())
    assert arena.allocate(EXTEND, pages=1) is None


def test_live_slots_come_before_tracking_slots() -> None:
    grant = Arena(6, 2).allocate(ADMIT, live=1, tracking=2)
    assert grant is not None
    arena = Arena(6, 2)
    grant = arena.allocate(ADMIT, live=1, tracking=2)
    assert grant is not None
    states = [arena.slot_state(slot) for slot in grant.slots]
    assert states == [SlotState.LIVE, SlotState.TRACK_PENDING, SlotState.TRACK_PENDING]


@pytest.mark.parametrize(("live", "tracking", "pages"), [(4, 0, 0), (1, 2, 1), (0, 0, 7), (2, 0, 3)])
def test_a_shortage_changes_nothing(live: int, tracking: int, pages: int) -> None:
    arena = Arena(4, 2)
    assert not arena.fits(live + tracking, pages)
    assert arena.allocate(ADMIT, live=live, tracking=tracking, pages=pages) is None
    assert (arena.free_slots, arena.free_pages) == (3, 6)
    list(arena.check_slabs())


def test_an_injected_refusal_changes_nothing() -> None:
    arena = Arena(4, 2, lambda site: site is EXTEND)
    assert arena.allocate(EXTEND, pages=1) is None
    assert arena.allocate(ADMIT, live=1) is not None
    assert arena.free_slots == 2


def test_pages_fill_the_fullest_slab_first_so_that_others_can_become_slots() -> None:
    arena = Arena(5, 4)
    one, two = arena.allocate(EXTEND, pages=4), arena.allocate(EXTEND, pages=4)
    assert one is not None
    assert two is not None
    arena.free_pages_of(one.pages[:3], 0, PageOwner.SEQUENCE)
    arena.free_pages_of(two.pages[:1], 0, PageOwner.SEQUENCE)
    third = arena.allocate(EXTEND, pages=1)
    assert third is not None
    assert third.pages[0] // 4 == two.pages[0] // 4
    arena.free_pages_of(one.pages[3:], 0, PageOwner.SEQUENCE)
    assert arena.free_slots == 3
    list(arena.check_slabs())


def test_an_empty_slab_of_pages_becomes_a_slot() -> None:
    arena = Arena(2, 4)
    pages = arena.allocate(EXTEND, pages=2)
    assert pages is not None
    assert arena.allocate(ADMIT, live=1) is None
    arena.free_pages_of(pages.pages, 0, PageOwner.SEQUENCE)
    slot = arena.allocate(ADMIT, live=1)
    assert slot is not None
    assert slot.slots == (1,)
    assert arena.allocate(EXTEND, pages=1) is None


def test_a_freed_slot_waits_for_the_last_step_that_names_it() -> None:
    arena = Arena(2, 0)
    grant = arena.allocate(ADMIT, live=1)
    assert grant is not None
    arena.name_in_step(grant.slots[0], 7)
    arena.free_slot(grant.slots[0], fence=5)
    for step in (4, 5, 6):
        arena.advance(step)
        assert arena.has_fenced
        assert arena.allocate(ADMIT, live=1) is None
    arena.advance(7)
    assert not arena.has_fenced
    assert arena.allocate(ADMIT, live=1) is not None


def test_a_slot_given_anew_has_no_fence_of_its_past() -> None:
    arena = Arena(2, 0)
    for _ in range(2):
        grant = arena.allocate(ADMIT, live=1)
        assert grant is not None
        arena.name_in_step(grant.slots[0], 3)
        arena.free_slot(grant.slots[0])
        arena.advance(3)
    assert arena.free_slots == 1


def test_freed_pages_wait_for_their_fence() -> None:
    arena = Arena(2, 2)
    grant = arena.allocate(EXTEND, pages=2)
    assert grant is not None
    arena.free_pages_of(grant.pages, 4, PageOwner.SEQUENCE)
    for completed in (0, 3):
        arena.advance(completed)
        assert arena.allocate(EXTEND, pages=1) is None
    arena.advance(4)
    assert arena.allocate(EXTEND, pages=2) is not None


def test_giving_back_costs_no_more_for_what_waits_for_a_fence() -> None:
    def work(waiting: int) -> tuple[int, int]:
        arena = Arena(400, 4)
        for _ in range(waiting):
            grant = arena.allocate(ADMIT, live=1, pages=2)
            assert grant is not None
            arena.free_slot(grant.slots[0], 9)
            arena.free_pages_of(grant.pages, 9, PageOwner.SEQUENCE)
        grant = arena.allocate(ADMIT, live=1, pages=2)
        assert grant is not None
        slot = operations(lambda: arena.free_slot(grant.slots[0]))
        return slot, operations(lambda: arena.free_pages_of(grant.pages, 0, PageOwner.SEQUENCE))

    assert all(abs(many - one) < 5 for one, many in zip(work(1), work(200), strict=True))


def test_a_slab_can_be_emptied_while_nobody_uses_a_page_of_it() -> None:
    arena = Arena(50, 4)
    grant = arena.allocate(EXTEND, pages=10)
    assert grant is not None
    assert arena.emptiable_slabs == 46
    arena.give_pages_to_tree(grant.pages)
    assert arena.emptiable_slabs == 49
    arena.pin(grant.pages[:5], 1)
    arena.pin(grant.pages[3:6], 1)
    assert arena.emptiable_slabs == 47
    arena.pin(grant.pages[:5], -1)
    assert arena.emptiable_slabs == 47
    arena.pin(grant.pages[3:6], -1)
    assert arena.emptiable_slabs == 49


def test_a_page_is_given_back_once_and_by_its_owner() -> None:
    arena = Arena(3, 2)
    grant = arena.allocate(EXTEND, pages=2)
    assert grant is not None
    with pytest.raises(LedgerViolation, match="W1"):
        arena.free_pages_of(grant.pages, 0, PageOwner.TREE)
    arena.give_pages_to_tree(grant.pages)
    with pytest.raises(LedgerViolation, match="W1"):
        arena.give_pages_to_tree(grant.pages)
    arena.free_pages_of(grant.pages, 0, PageOwner.TREE)
    with pytest.raises(LedgerViolation, match="W1"):
        arena.free_pages_of(grant.pages, 0, PageOwner.TREE)


def test_pages_of_a_pure_recurrent_model_take_no_memory() -> None:
    arena = Arena(3, 0)
    grant = arena.allocate(ADMIT, live=1, pages=1000)
    assert grant is not None
    assert not grant.pages.any()
    assert len(grant.pages) == 1000
    assert arena.free_slots == 1
    assert arena.fits(1, 10**9)


def test_a_slab_can_be_emptied_once_nobody_uses_its_pages() -> None:
    arena = Arena(5, 2)
    tree, own = arena.allocate(EXTEND, pages=4), arena.allocate(EXTEND, pages=1)
    assert tree is not None
    assert own is not None
    assert arena.emptiable_slabs == 1
    arena.give_pages_to_tree(tree.pages)
    assert arena.emptiable_slabs == 3
    arena.pin(tree.pages[:1], 1)
    assert arena.emptiable_slabs == 2
    arena.pin(tree.pages[:1], -1)
    arena.free_pages_of(own.pages, 3, PageOwner.SEQUENCE)
    assert arena.emptiable_slabs == 3
    arena.advance(3)
    assert arena.emptiable_slabs == 4
    assert Arena(5, 0).emptiable_slabs == 4


def test_what_can_be_emptied_is_known_without_looking_at_each_slab() -> None:
    small, large = Arena(5, 2), Arena(5000, 2)
    assert operations(lambda: large.emptiable_slabs) == operations(lambda: small.emptiable_slabs)


def test_the_account_of_slabs_finds_a_page_that_nobody_counts() -> None:
    arena = Arena(3, 2)
    grant = arena.allocate(EXTEND, pages=1)
    assert grant is not None
    arena.page_owner[grant.pages] = PageOwner.FREE
    with pytest.raises(LedgerViolation, match="W5"):
        list(arena.check_slabs())


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 7)), max_size=40))
def test_any_order_of_taking_and_giving_back_keeps_the_sums(events: list[tuple[int, int, int]]) -> None:
    arena, held, step = Arena(7, 3), [], 0
    for kind, slots, pages in events:
        step += 1
        if kind < 3:
            fits = arena.fits(slots, pages)
            grant = arena.allocate(ADMIT, tracking=slots, pages=pages)
            assert (grant is not None) == fits
            if grant is not None:
                assert len(set(grant.pages.tolist())) == pages
                held.append(grant)
        elif kind < 5 and held:
            grant = held.pop(slots % len(held))
            for slot in grant.slots:
                arena.free_slot(slot, step)
            arena.free_pages_of(grant.pages, step, PageOwner.SEQUENCE)
        else:
            arena.advance(step)
        list(arena.check_slabs())
    for grant in held:
        for slot in grant.slots:
            arena.free_slot(slot)
        arena.free_pages_of(grant.pages, 0, PageOwner.SEQUENCE)
    arena.advance(step + 1)
    assert arena.free_slots == 6
