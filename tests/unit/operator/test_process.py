"""The operator process around its parts: it waits for the CRD, looks at everything, and shows what is due."""

import asyncio
import re

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from fake_cluster import FakeCluster
from mamba_operator.children.admin_key import AdminKey
from mamba_operator.main import CRD_POLL_SECONDS, WATCHES_TIMEOUT_SECONDS, Operator
from mamba_operator.objects.errors import ClusterError, Forbidden, Unreachable
from mamba_operator.objects.indices import Indices, index_id
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, Kind
from mamba_operator.objects.manifest import Key
from mamba_operator.plan import make_plan
from mamba_operator.process.settings import OperatorSettings
from operator_objects import NOW, TOKEN, applied, fitting_owner, owner, snapshot
from virtual_time import in_virtual_time


def operator(cluster: FakeCluster, *, namespaces: tuple[str, ...] = ()) -> Operator:
    settings = OperatorSettings(liveness_port=0, resync=300, lease_namespace="models", namespace=namespaces)
    return Operator(settings, cluster)


def metric(of: Operator, name: str) -> float:
    lines = generate_latest(of._metrics.registry).decode().splitlines()
    [value] = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")]
    return float(value)


@in_virtual_time
async def test_the_depth_of_the_queue_falls_when_the_work_is_done() -> None:
    subject = operator(FakeCluster())
    for name in ("a", "b", "c"):
        subject._queue.add(Key("models", name))
    assert metric(subject, "mambaserve_operator_queue_depth") == 3

    async def work(_: Key) -> float | None:
        return None

    task = asyncio.create_task(subject._queue.run(work, 2))
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert metric(subject, "mambaserve_operator_queue_depth") == 0


class Installing(FakeCluster):
    """Serves our kind from a moment on."""

    def __init__(self, served_from: float, error: ClusterError | None = None) -> None:
        super().__init__()
        self.asked: list[float] = []
        self._served_from, self._error = served_from, error

    async def serves(self, kind: Kind) -> bool:
        now = asyncio.get_running_loop().time()
        self.asked.append(now)
        if now < self._served_from and self._error is not None:
            raise self._error
        return now >= self._served_from


@pytest.mark.parametrize("error", [None, Unreachable("away"), Forbidden("no", status=403)], ids=repr)
def test_an_operator_that_was_installed_before_the_crd_waits_for_it(error: ClusterError | None) -> None:
    @in_virtual_time
    async def run() -> None:
        cluster = Installing(served_from=33, error=error)

        await asyncio.wait_for(operator(cluster)._crd_served(), 1000)

        assert cluster.asked[-1] - 33 < CRD_POLL_SECONDS
        assert len(cluster.asked) == 8

    run()


def test_engines_that_were_made_with_a_key_are_not_replaced_for_want_of_it() -> None:
    @in_virtual_time
    async def run() -> None:
        of = fitting_owner()
        plan = make_plan(snapshot(of), now=NOW, new_token=lambda: TOKEN, key_id=AdminKey(bytes(32)).id)
        keyed, plain = FakeCluster(*(one.manifest for one in plan.applies)), FakeCluster(*applied(of))
        for cluster in (keyed, plain):
            cluster.fault = lambda _, kind, __: Forbidden("no", status=403) if kind == "Secret" else None
        assert await asyncio.wait_for(operator(plain)._admin_key(), 10) is None

        subject = operator(keyed)
        subject._leadership.informed = True
        waiting = asyncio.create_task(subject._admin_key())
        await asyncio.sleep(100)
        assert not waiting.done()
        assert "admin-key" in str(subject._not_ready())
        keyed.fault = lambda *_: None
        assert await asyncio.wait_for(waiting, 100) is not None
        assert "admin-key" not in str(subject._not_ready())

    run()


def due(of: Operator) -> set[Key]:
    return set(of._queue._due)


@in_virtual_time
async def test_the_first_look_waits_for_the_watches_and_not_for_ever() -> None:
    cluster, indices = FakeCluster(owner("a")), Indices()
    kept = cluster.find("MambaDeployment", "a")
    indices.take({index_id(MAMBA_DEPLOYMENT): {Key("models", "a"): [kept]}})
    slow, never = operator(cluster), operator(cluster)
    looks = [slow._resync((), indices, lambda _: None), never._resync((), Indices(), lambda _: None)]
    resyncing = [asyncio.create_task(one) for one in looks]
    await asyncio.sleep(WATCHES_TIMEOUT_SECONDS / 2)
    assert due(slow) == due(never) == set()

    indices.complete = True
    await asyncio.sleep(WATCHES_TIMEOUT_SECONDS / 4)
    assert (due(slow), due(never)) == ({Key("models", "a")}, set())

    await asyncio.sleep(WATCHES_TIMEOUT_SECONDS / 2)
    assert due(never) == {Key("models", "a")}
    for one in resyncing:
        one.cancel()
    await asyncio.gather(*resyncing, return_exceptions=True)


@in_virtual_time
async def test_every_object_is_looked_at_now_and_then_and_an_outage_does_not_end_that() -> None:
    cluster = FakeCluster(owner("a"), owner("b"))
    subject = operator(cluster)
    resyncing = asyncio.create_task(subject._resync((), Indices(), lambda _: None))
    await asyncio.sleep(WATCHES_TIMEOUT_SECONDS + 1)
    assert due(subject) == {Key("models", "a"), Key("models", "b")}
    subject._queue._due.clear()
    subject._queue._waiting.clear()

    cluster.fault = lambda *_: Unreachable("away")
    await asyncio.sleep(320)
    assert due(subject) == set()
    cluster.fault = lambda *_: None
    await asyncio.sleep(320)

    assert due(subject) == {Key("models", "a"), Key("models", "b")}
    resyncing.cancel()
    await asyncio.gather(resyncing, return_exceptions=True)


@in_virtual_time
async def test_a_child_that_a_watch_lost_is_let_go_of_at_the_next_look_at_everything() -> None:
    lost = next(one for one in applied(fitting_owner()) if one["kind"] == "Service")
    subject, indices = operator(FakeCluster()), Indices(asyncio.get_running_loop().time)
    indices.add_created({**lost, "metadata": {**lost["metadata"], "uid": "lost"}})
    resyncing = asyncio.create_task(subject._resync((), indices, lambda _: None))

    await asyncio.sleep(WATCHES_TIMEOUT_SECONDS + 1)
    assert indices.unconfirmed == 1
    await asyncio.sleep(300)

    assert indices.unconfirmed == 0
    resyncing.cancel()
    await asyncio.gather(resyncing, return_exceptions=True)


async def test_the_address_of_the_probes_is_logged_as_urls_have_it() -> None:
    cluster = FakeCluster()
    cluster.fault = lambda *_: Unreachable("away")
    subject = Operator(OperatorSettings(liveness_host="::", liveness_port=0), cluster)
    subject.stop()

    with capture_logs() as lines:
        await subject.run()

    assert re.fullmatch(r"\[::\]:\d+", lines[0]["liveness"])


@in_virtual_time
async def test_an_operator_of_some_namespaces_looks_at_no_others() -> None:
    elsewhere = owner("b")
    elsewhere["metadata"]["namespace"] = "elsewhere"
    third = owner("c")
    third["metadata"]["namespace"] = "third"
    subject = operator(FakeCluster(owner("a"), elsewhere, third), namespaces=("models", "third"))
    resyncing = asyncio.create_task(subject._resync(("models", "third"), Indices(), lambda _: None))
    await asyncio.sleep(WATCHES_TIMEOUT_SECONDS + 1)

    assert due(subject) == {Key("models", "a"), Key("third", "c")}
    resyncing.cancel()
    await asyncio.gather(resyncing, return_exceptions=True)


@in_virtual_time
async def test_objects_that_the_watches_hold_in_another_version_are_doubted() -> None:
    cluster = FakeCluster(owner("a"), owner("b"))
    subject, indices, doubted = operator(cluster), Indices(), list[Key]()
    kept = cluster.find("MambaDeployment", "a")
    indices.take({index_id(MAMBA_DEPLOYMENT): {Key("models", "a"): [kept]}})
    indices.complete = True
    resyncing = asyncio.create_task(subject._resync((), indices, doubted.append))
    await asyncio.sleep(1)
    assert doubted == [Key("models", "b")]

    cluster.put(owner("a"))
    doubted.clear()
    await asyncio.sleep(320)

    assert set(doubted) == {Key("models", "a"), Key("models", "b")}
    resyncing.cancel()
    await asyncio.gather(resyncing, return_exceptions=True)


@in_virtual_time
async def test_a_pass_that_hangs_fails_the_liveness_of_the_holder() -> None:
    subject = operator(FakeCluster())
    subject._leadership.holds = True

    async def hang(_: Key) -> float | None:
        await asyncio.sleep(1e6)
        return None

    subject._queue.add(Key("models", "nano"))
    task = asyncio.create_task(subject._queue.run(hang, 1))
    # The lag of the loop is measured by the wall clock and is not what is tested here.
    await asyncio.sleep(239)
    assert "a pass hangs" not in subject._problems()
    await asyncio.sleep(2)
    assert "a pass hangs" in subject._problems()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert "a pass hangs" not in subject._problems()


@in_virtual_time
async def test_a_standby_is_ready_as_soon_as_it_has_seen_the_lease() -> None:
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 15}
    lease = {
        "kind": "Lease",
        "metadata": {"name": "mambaserve-operator", "namespace": "models"},
        "spec": spec,
    }
    cluster = FakeCluster(lease)
    cluster.fault = lambda *_: Unreachable("away")
    subject = operator(cluster)
    waiting = asyncio.create_task(subject._leadership.hold(lambda: asyncio.sleep(1e6)))
    await asyncio.sleep(5)
    assert "lease" in str(subject._not_ready())

    cluster.fault = lambda *_: None
    await asyncio.sleep(5)

    assert not subject._leadership.holds
    assert subject._not_ready() is None
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
