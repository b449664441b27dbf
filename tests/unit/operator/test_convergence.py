"""Whatever happens on the way, the end is what a calm cluster would have: edits, faults, restarts, rivals.

The cluster here answers late and wakes the queue with every write, as a watch does. In virtual time.
"""

import asyncio
import contextlib
import copy
import random
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_cluster import FakeCluster
from mamba_operator.objects.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    NotFound,
    ObjectRejected,
    OperatorError,
    Unreachable,
)
from mamba_operator.objects.kinds import Kind
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.process.leadership import Leadership, LeaseName
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.process.workqueue import RetryPolicy, WorkQueue
from mamba_operator.reconcile import PassSettings, Reconciler, Runtime
from operator_objects import NOW, fitting_owner
from virtual_time import in_virtual_time

KEY = Key("models", "nano")
SPECS: list[dict[str, Any]] = [
    {},
    {"engine": {"image": "registry.test/engine:2"}},
    {"gateway": {"replicas": 3}},
    {"stateCache": {"strategy": "NoBuffer"}},
    {"replicas": 2, "scaling": {"minReplicas": 2, "maxReplicas": 2}},
]
ERRORS: list[ClusterError] = [
    Unreachable("away", status=503), Conflict("changed", status=409), ObjectRejected("no", status=422),
    Forbidden("no", status=403), NotFound("gone", status=404), Unreachable("expired", status=410),
]  # fmt: skip


def tokens() -> Callable[[], str]:
    count = [0]

    def fresh() -> str:
        count[0] += 1
        return f"token-{count[0]}"

    return fresh


class LateCluster(FakeCluster):
    """Answers after `latency()` seconds and tells `woken` of every write of anything but events."""

    def __init__(self, *objects: Manifest, latency: Callable[[], float] = lambda: 0.01) -> None:
        self.woken: Callable[[Key], None] | None = None
        self.latency = latency
        super().__init__(*objects)

    def put(self, one: Manifest) -> Manifest:
        made = super().put(one)
        if self.woken is not None and one["kind"] not in ("Event", "Lease"):
            asyncio.get_running_loop().call_later(0.02, self.woken, KEY)
        return made

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        await asyncio.sleep(self.latency())
        return await super().get(kind, namespace, name)

    async def pages(self, kind: Kind, *arguments: Any, **named: Any) -> AsyncIterator[list[Manifest]]:
        await asyncio.sleep(self.latency())
        async for page in super().pages(kind, *arguments, **named):
            yield page

    async def apply(self, manifest: Manifest, *, subresource: str = "", dry_run: bool = False) -> Manifest:
        await asyncio.sleep(self.latency())
        return await super().apply(manifest, subresource=subresource, dry_run=dry_run)

    async def make(self, manifest: Manifest) -> Manifest:
        await asyncio.sleep(self.latency())
        return await super().make(manifest)

    async def create(self, manifest: Manifest, *, validation: str = "Ignore") -> Manifest:
        await asyncio.sleep(self.latency())
        return await super().create(manifest, validation=validation)


def shape(cluster: FakeCluster) -> dict[tuple[str, str, str], Manifest]:
    """Return the lasting parts: no versions, uids, events; of the Secret only whether it has a token."""
    found = {}
    for key, one in cluster.objects.items():
        if key[0] in ("Event", "Lease"):
            continue
        meta = {k: v for k, v in one["metadata"].items() if k not in ("uid", "resourceVersion")}
        found[key] = {**one, "metadata": meta}
        if key[0] == "Secret":
            found[key]["data"] = sorted(one.get("data") or {})
            found[key].pop("stringData", None)
    return found


def reconciler(cluster: FakeCluster, *, token: Callable[[], str] | None = None) -> Reconciler:
    return Reconciler(
        cluster, OperatorMetrics(), PassSettings("test", resync=lambda: 300.0),
        runtime=Runtime(now=lambda: NOW, new_token=token or tokens()),
    )  # fmt: skip


async def calm(of: Manifest) -> dict[tuple[str, str, str], Manifest]:
    cluster = FakeCluster(of)
    again = reconciler(cluster)
    for _ in range(2):
        await again(KEY)
    return shape(cluster)


@contextlib.asynccontextmanager
async def operating(cluster: LateCluster, passes: list[float] | None = None) -> AsyncIterator[WorkQueue[Key]]:
    """Yield a queue with its workers, woken by the cluster's writes."""
    queue: WorkQueue[Key] = WorkQueue(RetryPolicy(), random_unit=lambda: 0.0)
    cluster.woken = queue.add
    again = reconciler(cluster)

    async def work(key: Key) -> float | None:
        if passes is not None:
            passes.append(round(asyncio.get_running_loop().time(), 3))
        return await again(key)

    task = asyncio.create_task(queue.run(work, 2))
    queue.add(KEY)
    try:
        yield queue
    finally:
        cluster.woken = None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


Move = tuple[str, int]
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["edit", "delete", "strip", "hide", "spec", "fault", "restart", "pass"]),
        st.integers(0, 999),
    ),
    max_size=12,
)


def disturb(cluster: FakeCluster, move: Move) -> None:
    """Edit a child as a person might; edits of the Secret go unnoticed."""
    what, number = move
    children = sorted(key for key in cluster.objects if key[0] not in ("MambaDeployment", "Event", "Secret"))
    if not children:
        return
    key = children[number % len(children)]
    child = copy.deepcopy(cluster.objects[key])
    match what:
        case "delete":
            del cluster.objects[key]
            return
        case "edit":
            field = next((name for name in ("spec", "rules", "subjects", "data") if name in child), None)
            if field is None:  # what an API server does not know of metadata, it does not keep
                return
            child[field] = [] if isinstance(child[field], list) else {**child[field], **_garbage(key[0])}
        case "strip":
            child["metadata"]["annotations"] = {}
        case "hide":
            child["metadata"]["labels"] = {}
    cluster.put(child)


def _garbage(kind: str) -> dict[str, Any]:
    return {
        "Deployment": {"replicas": 9},
        "Service": {"ports": []},
        "NetworkPolicy": {"ingress": []},
        "PodDisruptionBudget": {"maxUnavailable": 7},
        "ConfigMap": {"engine.json": "Bogus"},
    }.get(kind, {})


@given(MOVES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_after_any_history_two_calm_passes_end_where_a_fresh_cluster_ends(moves: list[Move]) -> None:
    asyncio.run(after_any_history(moves))


async def after_any_history(moves: list[Move]) -> None:
    of = fitting_owner()
    cluster, fresh = FakeCluster(of), tokens()
    again = reconciler(cluster, token=fresh)
    for what, number in moves:
        cluster.fault = lambda *_: None
        match what:
            case "spec":
                of = fitting_owner(**SPECS[number % len(SPECS)])
                kept = {key: one for key, one in (cluster.find(*KIND) or {}).items() if key == "status"}
                cluster.put({**of, **kept})
            case "restart":
                again = reconciler(cluster, token=fresh)
            case "fault":
                cluster.fault = at(number % 60, ERRORS[number % len(ERRORS)])
            case "edit" | "delete" | "strip" | "hide":
                disturb(cluster, (what, number))
        with contextlib.suppress(OperatorError):
            await again(KEY)
    cluster.fault = lambda *_: None
    for _ in range(2):
        await again(KEY)
    cluster.calls.clear()
    await again(KEY)

    repeated = [call for call in cluster.calls if call != "create Secret/nano-admin-11111111"]
    assert repeated == [], "the third pass still writes"
    expected, found = await calm(of), shape(cluster)
    assert found.keys() == expected.keys()
    for key in expected:
        if key[0] != "Secret":
            assert found[key] == expected[key], key
    assert found["Secret", "models", "nano-admin-11111111"]["data"] == ["token"]


KIND = ("MambaDeployment", "nano")


def at(call: int, error: ClusterError) -> Callable[[str, str, str], ClusterError | None]:
    left = [call]

    def strike(*_: str) -> ClusterError | None:
        left[0] -= 1
        return error if left[0] < 0 else None

    return strike


@in_virtual_time
async def test_an_operator_that_hears_its_own_writes_comes_to_rest() -> None:
    cluster, passes = LateCluster(fitting_owner()), list[float]()
    async with operating(cluster, passes):
        await asyncio.sleep(250)
        first = list(passes)
        await asyncio.sleep(400)

    assert len(first) <= 3
    assert first[-1] < 2
    # What follows are looks of its own accord, one per resync.
    assert len(passes) - len(first) == 2
    assert shape(cluster) == await calm(fitting_owner())


@in_virtual_time
async def test_a_child_that_is_refused_in_the_same_words_is_tried_ever_more_seldom() -> None:
    cluster, passes = LateCluster(fitting_owner()), list[float]()
    cluster.fault = lambda verb, kind, _: (
        ObjectRejected("no", status=422) if (verb, kind) == ("make", "NetworkPolicy") else None
    )
    async with operating(cluster, passes):
        await asyncio.sleep(600)

    pauses = [round(after - before, 2) for before, after in pairwise(passes[2:])]
    assert pauses == sorted(pauses)
    assert 60 <= pauses[-1] < 61
    assert len(passes) < 20


@in_virtual_time
async def test_a_refusal_in_ever_new_words_does_not_become_a_busy_loop() -> None:
    cluster, passes, port = LateCluster(fitting_owner()), list[float](), [40_000]

    def dial(verb: str, kind: str, _: str) -> ClusterError | None:
        port[0] += 1
        wrong = (verb, kind) == ("make", "NetworkPolicy")
        return ObjectRejected(f"webhook: read tcp 10.0.0.1:{port[0]}: reset", status=422) if wrong else None

    cluster.fault = dial
    async with operating(cluster, passes):
        await asyncio.sleep(60)

    # Each status write wakes the object; the pause after a failure keeps that from running away.
    assert len(passes) <= 62


@in_virtual_time
async def test_a_mended_spec_does_not_wait_for_the_end_of_a_long_back_off() -> None:
    cluster, passes = LateCluster(fitting_owner()), list[float]()
    cluster.fault = lambda verb, kind, _: (
        ObjectRejected("no", status=422) if (verb, kind) == ("make", "NetworkPolicy") else None
    )
    async with operating(cluster, passes):
        await asyncio.sleep(200)
        cluster.fault = lambda *_: None
        cluster.put({**fitting_owner(gateway={"replicas": 2}), "status": cluster.find(*KIND)["status"]})
        await asyncio.sleep(3)
        assert cluster.find("NetworkPolicy", "nano-engine") is not None
        assert cluster.find("Deployment", "nano")["spec"]["replicas"] == 2


@in_virtual_time
async def test_two_operators_at_once_end_where_one_ends_and_make_one_token() -> None:
    for seed in range(4):
        late = random.Random(seed)
        cluster = LateCluster(fitting_owner(), latency=lambda late=late: late.uniform(0.001, 0.1))
        fresh, kept = tokens(), set[str]()
        first, second = reconciler(cluster, token=fresh), reconciler(cluster, token=fresh)
        for _ in range(3):
            await asyncio.gather(first(KEY), second(KEY), return_exceptions=True)
            kept.add(cluster.find("Secret", "nano-admin-11111111")["data"]["token"])

        assert shape(cluster) == await calm(fitting_owner())
        assert len(kept) == 1, "engines may have read the first one"


@in_virtual_time
async def test_an_operator_that_loses_its_lease_in_the_middle_of_a_pass_writes_nothing_more() -> None:
    cluster = LateCluster(fitting_owner(), latency=lambda: 1.0)
    queue: WorkQueue[Key] = WorkQueue()
    queue.add(KEY)
    again = reconciler(cluster)
    leadership = Leadership(cluster, LeaseName("models", "lease", "me", 15, 4))
    leading = asyncio.create_task(leadership.hold(lambda: queue.run(again, 2)))
    await asyncio.sleep(9)
    assert 0 < len([call for call in cluster.calls if "Lease" not in call]) < 11, "the pass is under way"

    lease = cluster.find("Lease", "lease")
    cluster.put({**lease, "spec": {**lease["spec"], "holderIdentity": "other"}})
    await asyncio.wait({leading}, timeout=60)
    cluster.calls.clear()
    await asyncio.sleep(60)

    assert isinstance(leading.exception(), OperatorError)
    assert cluster.calls == []
    assert not leadership.holds
    successor = reconciler(cluster)
    for _ in range(2):
        await successor(KEY)
    assert shape(cluster) == await calm(fitting_owner())


@in_virtual_time
async def test_an_object_deleted_while_it_is_reconciled_is_not_brought_back_and_left_alone() -> None:
    cluster, passes = LateCluster(fitting_owner(), latency=lambda: 0.5), list[float]()
    async with operating(cluster, passes) as queue:
        await asyncio.sleep(3)
        cluster.objects.pop(("MambaDeployment", "models", "nano"))
        queue.add(KEY)
        await asyncio.sleep(120)
        count = len(passes)
        cluster.calls.clear()
        await asyncio.sleep(1000)

    assert cluster.find(*KIND) is None
    assert cluster.calls == []
    assert len(passes) == count, "nobody looks at what is gone"
