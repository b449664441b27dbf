"""The lease when it is edited, deleted or slow, when the work fails, and after a restart. In virtual time."""

import asyncio
import contextlib
from typing import Any

import pytest

from fake_cluster import FakeCluster
from mamba_operator.objects.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    LeadershipLost,
    NotFound,
    ObjectRejected,
    PassHangs,
    Unreachable,
)
from mamba_operator.objects.kinds import Kind
from mamba_operator.objects.manifest import Manifest
from mamba_operator.process.leadership import Leadership, LeaseName
from virtual_time import in_virtual_time

DURATION, PERIOD = 15.0, 4.0


def leadership(cluster: FakeCluster, name: str = "me", duration: float = DURATION) -> Leadership:
    return Leadership(cluster, LeaseName("models", "lease", name, duration, PERIOD))


async def forever() -> None:
    await asyncio.sleep(1e9)


def lease(cluster: FakeCluster) -> dict[str, Any]:
    found = cluster.find("Lease", "lease")
    assert found is not None
    spec: dict[str, Any] = found["spec"]
    return spec


async def end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@in_virtual_time
async def test_work_that_fails_ends_the_leadership_and_gives_the_lease_back() -> None:
    cluster = FakeCluster()
    subject = leadership(cluster)

    async def fail() -> None:
        await asyncio.sleep(5)
        raise RuntimeError("kopf has ended")

    with pytest.raises(RuntimeError, match="kopf has ended"):
        await subject.hold(fail)

    assert not subject.holds
    assert lease(cluster)["holderIdentity"] == ""


@in_virtual_time
async def test_work_that_is_done_gives_the_lease_back_and_the_next_takes_it_at_once() -> None:
    cluster = FakeCluster()
    await leadership(cluster).hold(lambda: asyncio.sleep(1))
    begun: list[float] = []

    async def begin() -> None:
        begun.append(asyncio.get_running_loop().time())

    await leadership(cluster, "next").hold(begin)

    assert begun == [1.0]


@in_virtual_time
async def test_a_lease_that_somebody_deletes_is_made_again_by_its_holder() -> None:
    cluster = FakeCluster()
    subject = leadership(cluster)
    task = asyncio.create_task(subject.hold(forever))
    await asyncio.sleep(10)
    cluster.objects.clear()

    await asyncio.sleep(10)

    assert subject.holds
    assert lease(cluster)["holderIdentity"] == "me"
    await end(task)


@in_virtual_time
async def test_a_deleted_lease_that_another_took_first_is_lost() -> None:
    cluster = FakeCluster()
    task = asyncio.create_task(leadership(cluster).hold(forever))
    await asyncio.sleep(10)
    cluster.objects.clear()
    other = leadership(cluster, "other")
    theirs = asyncio.create_task(other.hold(forever))

    await asyncio.sleep(20)

    assert isinstance(task.exception(), LeadershipLost)
    assert other.holds
    assert lease(cluster)["holderIdentity"] == "other", "the loser gives back nothing that is not its own"
    await end(theirs)


@in_virtual_time
async def test_a_restarted_container_of_the_same_name_takes_its_own_lease_without_waiting() -> None:
    cluster = FakeCluster()
    before = asyncio.create_task(leadership(cluster).hold(forever))
    await asyncio.sleep(10)
    # Killed: nothing is given back.
    cluster.fault = lambda *_: Unreachable("dead")
    before.cancel()
    await asyncio.gather(before, return_exceptions=True)
    cluster.fault = lambda *_: None
    assert lease(cluster)["holderIdentity"] == "me"

    after = leadership(cluster)
    task = asyncio.create_task(after.hold(forever))
    await asyncio.sleep(0.1)

    assert after.holds
    assert lease(cluster)["leaseTransitions"] == 0
    await end(task)


@in_virtual_time
async def test_the_successor_of_a_dead_holder_waits_its_whole_time_by_its_own_clock() -> None:
    cluster = FakeCluster()
    task = asyncio.create_task(leadership(cluster, "dead", duration=60).hold(forever))
    await asyncio.sleep(10)
    cluster.fault = lambda *_: Unreachable("dead")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    cluster.fault = lambda *_: None
    # A clock that is years behind or ahead in the record changes nothing.
    lease(cluster)["renewTime"] = "1999-01-01T00:00:00.000000Z"
    begun: list[float] = []

    async def begin() -> None:
        begun.append(asyncio.get_running_loop().time())

    await leadership(cluster).hold(begin)

    assert 70 <= begun[0] <= 70 + 2 * PERIOD
    assert lease(cluster)["leaseTransitions"] == 1


ERRORS: list[ClusterError] = [
    Unreachable("away"), Conflict("changed", status=409), Forbidden("no rule yet", status=403),
    NotFound("no namespace yet", status=404), ObjectRejected("no", status=422),
]  # fmt: skip


@pytest.mark.parametrize("verb", ["get", "create"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda one: type(one).__name__)
def test_a_candidate_goes_on_asking_whatever_the_answer(verb: str, error: ClusterError) -> None:
    @in_virtual_time
    async def run() -> None:
        cluster = FakeCluster()
        cluster.fault = lambda asked, *_: error if asked == verb else None
        subject = leadership(cluster)
        task = asyncio.create_task(subject.hold(forever))
        await asyncio.sleep(100)
        assert not subject.holds

        cluster.fault = lambda *_: None
        await asyncio.sleep(PERIOD)

        assert subject.holds
        await end(task)

    run()


@pytest.mark.parametrize("verb", ["get", "replace"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda one: type(one).__name__)
def test_one_failed_renewal_of_any_kind_does_not_cost_the_lease(verb: str, error: ClusterError) -> None:
    @in_virtual_time
    async def run() -> None:
        cluster = FakeCluster()
        subject = leadership(cluster)
        task = asyncio.create_task(subject.hold(forever))
        await asyncio.sleep(10)
        cluster.fault = lambda asked, *_: error if asked == verb else None
        await asyncio.sleep(PERIOD)
        cluster.fault = lambda *_: None
        await asyncio.sleep(50)

        assert subject.holds
        await end(task)

    run()


@in_virtual_time
async def test_a_renewal_that_hangs_ends_the_work_before_another_may_begin() -> None:
    class Hanging(FakeCluster):
        hangs = False

        async def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
            if self.hangs:
                await asyncio.sleep(1000)
            return await super().get(kind, namespace, name)

    cluster, ended = Hanging(), list[float]()

    async def work() -> None:
        try:
            await forever()
        finally:
            ended.append(asyncio.get_running_loop().time())

    task = asyncio.create_task(leadership(cluster).hold(work))
    await asyncio.sleep(10)
    cluster.hangs = True
    await asyncio.wait({task}, timeout=60)

    assert isinstance(task.exception(), LeadershipLost)
    # Renewed at 8 s; another may act from 23 s on.
    assert ended[0] < 8 + DURATION


@in_virtual_time
async def test_work_that_ends_slowly_is_waited_for_before_the_lease_is_given_back() -> None:
    cluster, log = FakeCluster(), list[str]()

    async def slow() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(2)
            log.append(f"ended while {lease(cluster)['holderIdentity']} holds")

    task = asyncio.create_task(leadership(cluster).hold(slow))
    await asyncio.sleep(5)
    await end(task)

    assert log == ["ended while me holds"]
    assert lease(cluster)["holderIdentity"] == ""


@in_virtual_time
async def test_work_that_does_not_end_keeps_the_lease_until_it_runs_out() -> None:
    cluster = FakeCluster()

    async def hang() -> None:
        try:
            await forever()
        finally:
            raise PassHangs("still writing")

    task = asyncio.create_task(leadership(cluster).hold(hang))
    await asyncio.sleep(5)
    await end(task)

    assert lease(cluster)["holderIdentity"] == "me"
    begun: list[float] = []

    async def begin() -> None:
        begun.append(asyncio.get_running_loop().time())

    await leadership(cluster, "next").hold(begin)
    assert begun[0] >= 4 + DURATION


@in_virtual_time
async def test_who_stands_by_acts_within_a_second_of_a_lease_that_is_given_back() -> None:
    cluster, begun = FakeCluster(), list[float]()

    async def begin() -> None:
        begun.append(asyncio.get_running_loop().time())

    acting = asyncio.create_task(leadership(cluster).hold(forever))
    await asyncio.sleep(0.1)
    waiting = asyncio.create_task(leadership(cluster, "next").hold(begin))
    await asyncio.sleep(PERIOD * 2 + 0.5)
    await end(acting)
    await waiting

    assert begun[0] <= PERIOD * 2 + 0.6 + 1


@pytest.mark.parametrize(
    "spec",
    [{}, {"holderIdentity": None}, {"holderIdentity": "dead"},
     {"holderIdentity": "dead", "leaseDurationSeconds": None}],
    ids=str,
)  # fmt: skip
def test_a_lease_without_its_fields_is_taken_within_two_looks(spec: dict[str, Any]) -> None:
    @in_virtual_time
    async def run() -> None:
        cluster = FakeCluster(
            {"kind": "Lease", "metadata": {"name": "lease", "namespace": "models"}, "spec": spec}
        )
        subject = leadership(cluster)
        task = asyncio.create_task(subject.hold(forever))
        await asyncio.sleep(PERIOD + 0.1)

        assert subject.holds
        await end(task)

    run()


@in_virtual_time
async def test_what_others_put_on_the_lease_is_kept() -> None:
    cluster = FakeCluster(
        {
            "kind": "Lease",
            "metadata": {"name": "lease", "namespace": "models", "labels": {"team": "a"}},
            "spec": {"strategy": "OldestEmulationVersion"},
        }
    )
    task = asyncio.create_task(leadership(cluster).hold(forever))
    await asyncio.sleep(20)

    assert lease(cluster)["strategy"] == "OldestEmulationVersion"
    assert cluster.find("Lease", "lease")["metadata"]["labels"] == {"team": "a"}
    await end(task)
