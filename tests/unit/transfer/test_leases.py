"""Leases: they end for good, and whoever owns the memory learns it once."""

from mamba_transfer import Lease, LeaseTable
from mamba_transfer.leases import LONGEST_LIFE


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_lease_lives_as_long_as_it_is_renewed_in_time() -> None:
    clock = Clock()
    lease = Lease("a", 30, clock)
    for _ in range(3):
        clock.seconds += 29
        assert lease.renew()
    assert lease.remaining == 30
    clock.seconds += 30
    assert (lease.live, lease.remaining) == (False, 0)


def test_a_lease_that_has_ended_never_lives_again() -> None:
    clock = Clock()
    lease = Lease("a", 30, clock)
    clock.seconds += 30
    assert not lease.renew()
    clock.seconds -= 30
    assert not lease.live
    other = Lease("b", 30, clock)
    other.end()
    assert not other.renew()


def test_no_reader_can_renew_a_lease_for_ever() -> None:
    clock = Clock()
    lease = Lease("a", 30, clock)
    renewals = 0
    while lease.renew():
        clock.seconds += 20
        renewals += 1
        assert renewals < 100
    assert clock.seconds - 100 <= (LONGEST_LIFE + 1) * 30


def test_a_lease_is_taken_by_one_reader() -> None:
    table = LeaseTable(Clock())
    lease = table.grant("a", 30)
    assert table.take("a") is lease
    assert table.take("a") is None
    assert (len(table), lease.live) == (0, True)


def test_the_owner_learns_of_each_export_whose_lease_ended_once() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    table.grant("a", 30)
    table.grant("b", 30)
    clock.seconds += 20
    assert table.renew("b")
    assert table.sweep() == []
    clock.seconds += 20
    assert not table.renew("a")
    assert table.take("a") is None
    assert table.sweep() == ["a"]
    assert table.sweep() == []
    assert len(table) == 1


def test_a_released_export_is_neither_taken_nor_swept() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    lease = table.grant("a", 30)
    assert table.release("a")
    assert not table.release("a")
    clock.seconds += 40
    assert (table.take("a"), table.sweep(), lease.live) == (None, [], False)
