"""Two operators never hold the lease at the same time, and a dead holder is followed. In virtual time."""

import asyncio
import contextlib

import pytest

from fake_cluster import FakeCluster
from mamba_operator.objects.errors import Conflict, LeadershipLost, Unreachable
from mamba_operator.process.leadership import Leadership, LeaseName
from mamba_operator.process.lease import LeaseAction, LeaseRecord, ObservedLease, lease_action, observe_lease
from virtual_time import in_virtual_time

ME, OTHER = "me", "other"


def record(holder: str | None, version: str = "1", duration: float = 15) -> LeaseRecord:
    return LeaseRecord(holder, version, duration)


TABLE: list[tuple[str, ObservedLease | None, float, LeaseAction]] = [
    ("there is no lease", None, 100, LeaseAction.TAKE),
    ("nobody holds it", ObservedLease(record(None), 99), 100, LeaseAction.TAKE),
    ("it was given back", ObservedLease(record(""), 99), 100, LeaseAction.TAKE),
    ("it is mine", ObservedLease(record(ME), 0), 100, LeaseAction.RENEW),
    ("another holds it and renews", ObservedLease(record(OTHER), 90), 100, LeaseAction.WAIT),
    ("another holds it and is just within its time", ObservedLease(record(OTHER), 85), 100, LeaseAction.WAIT),
    ("another held it and fell silent", ObservedLease(record(OTHER), 84), 100, LeaseAction.TAKE),
]


@pytest.mark.parametrize(
    ("watched", "now", "move"), [one[1:] for one in TABLE], ids=[one[0] for one in TABLE]
)
def test_the_decision(watched: ObservedLease | None, now: float, move: LeaseAction) -> None:
    assert lease_action(watched, ME, now) is move


def test_a_record_ages_from_when_we_first_saw_it_and_a_renewal_makes_it_young() -> None:
    first = observe_lease(None, record(OTHER, "1"), 10)

    assert observe_lease(first, record(OTHER, "1"), 20).since == 10
    assert observe_lease(first, record(OTHER, "2"), 20).since == 20


class Candidate:
    """One operator that wants to lead."""

    def __init__(self, cluster: FakeCluster, name: str, *, duration: float = 15) -> None:
        self.leadership = Leadership(cluster, LeaseName("models", "lease", name, duration, 4))
        self.led: list[tuple[str, float]] = []
        self.task = asyncio.create_task(self.leadership.hold(self._work))

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        self.led.append(("from", loop.time()))
        try:
            await asyncio.sleep(10_000)
        finally:
            self.led.append(("to", loop.time()))

    async def stop(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@in_virtual_time
async def test_the_first_leads_and_the_second_waits() -> None:
    cluster = FakeCluster()
    first, second = Candidate(cluster, ME), Candidate(cluster, OTHER)

    await asyncio.sleep(200)

    assert [first.leadership.holds, second.leadership.holds] == [True, False]
    assert second.led == []
    await first.stop()
    await second.stop()


@in_virtual_time
async def test_a_lease_that_is_given_back_is_taken_at_the_next_look() -> None:
    cluster = FakeCluster()
    first, second = Candidate(cluster, ME), Candidate(cluster, OTHER)
    await asyncio.sleep(20)

    await first.stop()
    await asyncio.sleep(4.5)

    assert second.leadership.holds
    assert cluster.find("Lease", "lease")["spec"]["leaseTransitions"] == 1
    await second.stop()


@in_virtual_time
async def test_a_holder_cut_off_from_the_server_stops_before_another_may_start() -> None:
    cluster = FakeCluster()
    first = Candidate(cluster, ME)
    await asyncio.sleep(20)
    away = [True]
    cluster.fault = lambda *_: Unreachable("away") if away[0] else None
    await asyncio.sleep(12)
    with pytest.raises(LeadershipLost):
        await first.task
    away[0] = False

    second = Candidate(cluster, OTHER)
    await asyncio.sleep(40)

    assert first.led[-1][0] == "to"
    assert second.led[0][1] > first.led[-1][1]
    # The last renewal was at most one period before the cut; the lease may run out 15 s after it.
    assert first.led[-1][1] < 20 + 15
    await second.stop()


@in_virtual_time
async def test_a_short_outage_does_not_cost_the_lease() -> None:
    cluster = FakeCluster()
    first = Candidate(cluster, ME)
    await asyncio.sleep(20)
    cluster.fault = lambda *_: Unreachable("away")
    await asyncio.sleep(5)
    cluster.fault = lambda *_: None
    await asyncio.sleep(100)

    assert first.leadership.holds
    await first.stop()


@in_virtual_time
async def test_a_lost_race_for_a_renewal_is_tried_again() -> None:
    cluster = FakeCluster()
    first = Candidate(cluster, ME)
    await asyncio.sleep(10)
    cluster.fault = lambda verb, *_: Conflict("changed", status=409) if verb == "replace" else None
    await asyncio.sleep(5)
    cluster.fault = lambda *_: None
    await asyncio.sleep(50)

    assert first.leadership.holds
    await first.stop()


@in_virtual_time
async def test_who_finds_another_in_the_lease_stops_at_once() -> None:
    cluster = FakeCluster()
    first = Candidate(cluster, ME)
    await asyncio.sleep(10)
    lease = cluster.find("Lease", "lease")
    cluster.put({**lease, "spec": {**lease["spec"], "holderIdentity": OTHER}})
    await asyncio.sleep(5)

    with pytest.raises(LeadershipLost):
        await first.task
    assert cluster.find("Lease", "lease")["spec"]["holderIdentity"] == OTHER


@in_virtual_time
async def test_of_many_candidates_at_most_one_leads_at_any_time() -> None:
    cluster = FakeCluster()
    candidates = [Candidate(cluster, f"candidate-{number}") for number in range(4)]
    for _ in range(3):
        await asyncio.sleep(30)
        leader = next(one for one in candidates if one.leadership.holds)
        await leader.stop()
        candidates.remove(leader)

    spans = sorted(candidates[0].led)
    assert sum(one.leadership.holds for one in candidates) <= 1
    assert spans is not None
    for one in candidates:
        await one.stop()
