"""One pass over one object, with every fault an API server can have at every single call."""

import contextlib
import copy

import pytest

from fake_cluster import FakeCluster
from mamba_operator.objects.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    NameTaken,
    NotFound,
    ObjectRejected,
    OperatorError,
    Terminating,
    Unreachable,
    of_status,
)
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.reconcile import PassSettings, Reconciler, Runtime
from matrix_size import LARGE
from operator_objects import NOW, TOKEN, UID, creating_pod, fitting_owner, owner

KEY = Key("models", "nano")


def reconciler(cluster: FakeCluster) -> Reconciler:
    return Reconciler(
        cluster,
        OperatorMetrics(),
        PassSettings("test", resync=lambda: 300.0),
        runtime=Runtime(now=lambda: NOW, new_token=lambda: TOKEN),
    )


def status(cluster: FakeCluster) -> dict[str, tuple[str, str]]:
    found = cluster.find("MambaDeployment", "nano")
    assert found is not None
    return {one["type"]: (one["status"], one["reason"]) for one in found["status"]["conditions"]}


def conditions(cluster: FakeCluster) -> dict[str, Manifest]:
    found = cluster.find("MambaDeployment", "nano")
    assert found is not None
    return {one["type"]: one for one in found["status"]["conditions"]}


def writes(cluster: FakeCluster) -> list[str]:
    return [call for call in cluster.calls if "Event/" not in call]


async def test_one_pass_makes_the_children_and_one_status_write() -> None:
    cluster = FakeCluster(fitting_owner())

    again_in = await reconciler(cluster)(KEY)

    assert again_in == 300.0
    assert writes(cluster)[0] == "create Secret/nano-admin-11111111"
    assert writes(cluster)[-1] == "apply/status MambaDeployment/nano"
    assert len(writes(cluster)) == 12
    assert status(cluster)["Planned"] == ("True", "PlanComputed")


async def test_a_second_pass_writes_the_status_once_more_and_a_third_nothing() -> None:
    cluster = FakeCluster(fitting_owner())
    again = reconciler(cluster)
    await again(KEY)
    await again(KEY)
    cluster.calls.clear()

    await again(KEY)

    assert cluster.calls == []


async def test_an_object_that_is_gone_is_forgotten() -> None:
    assert await reconciler(FakeCluster())(KEY) is None


async def test_an_object_that_is_going_is_left_alone() -> None:
    going = fitting_owner()
    going["metadata"]["deletionTimestamp"] = "2026-01-02T11:00:00Z"
    cluster = FakeCluster(going)

    await reconciler(cluster)(KEY)

    assert cluster.calls == []


async def test_one_refused_child_does_not_keep_the_others_from_being_made() -> None:
    cluster = FakeCluster(fitting_owner())
    cluster.fault = lambda verb, kind, name: (
        ObjectRejected("spec.x: invalid", status=422) if (verb, kind) == ("make", "NetworkPolicy") else None
    )

    with pytest.raises(ObjectRejected):
        await reconciler(cluster)(KEY)

    assert cluster.find("Deployment", "nano-engine") is not None
    assert cluster.find("NetworkPolicy", "nano-engine") is None
    assert status(cluster)["Degraded"] == ("True", "ApplyFailed")
    assert status(cluster)["Ready"] == ("False", "ApplyFailed")


TYPO = (
    "PATCH /apis/apps/v1/namespaces/models/deployments/{name}: failed to create typed patch object "
    "(models/{name}; apps/v1, Kind=Deployment): "
    '.spec.template.spec.containers[name="engine"].volumeMount: field not declared in schema'
)


@pytest.mark.parametrize(
    ("name", "field"), [("nano-engine", "spec.podTemplate"), ("nano", "spec.gateway.podTemplate")]
)
async def test_a_mistyped_field_of_a_pod_template_is_named_and_the_rest_is_made(
    name: str, field: str
) -> None:
    cluster = FakeCluster(fitting_owner())
    cluster.fault = lambda verb, kind, of: (
        of_status(500, TYPO.format(name=of)) if (verb, kind, of) == ("make", "Deployment", name) else None
    )

    with pytest.raises(ObjectRejected):
        await reconciler(cluster)(KEY)

    made = {of for kind, _, of in cluster.objects if kind == "Deployment"}
    assert made == {"nano-engine", "nano"} - {name}
    found = conditions(cluster)
    assert {found[one]["reason"] for one in ("Degraded", "Ready")} == {"InvalidSpec"}
    said = f'{field}.spec.containers[name="engine"].volumeMount: field not declared in schema'
    assert found["Degraded"]["message"] == f"{said}; correct or remove the field"


@pytest.mark.parametrize("kind", ["ConfigMap", "Deployment", "Pod"])
async def test_what_may_not_be_read_is_named_in_the_status_and_nothing_is_changed(kind: str) -> None:
    cluster = FakeCluster(fitting_owner())
    await reconciler(cluster)(KEY)
    before = conditions(cluster)["Planned"]
    cluster.calls.clear()
    said = f"GET /api/v1/{kind}: User cannot list resource"
    cluster.fault = lambda verb, of, _: Forbidden(said, status=403) if (verb, of) == ("list", kind) else None
    again = reconciler(cluster)

    for _ in range(2):
        with pytest.raises(Forbidden):
            await again(KEY)

    found = conditions(cluster)
    assert (found["Degraded"]["status"], found["Ready"]["status"]) == ("True", "False")
    assert found["Degraded"]["reason"] == found["Ready"]["reason"] == "Forbidden"
    assert found["Degraded"]["message"] == said
    assert found["Planned"] == before
    assert writes(cluster) == ["apply/status MambaDeployment/nano"]
    await again.events.flush()
    events = [one for (of, _, _), one in cluster.objects.items() if of == "Event"]
    assert said in [one["message"].partition(": ")[2] for one in events if one["type"] == "Warning"]
    cluster.fault = lambda *_: None
    await again(KEY)
    assert conditions(cluster)["Degraded"]["reason"] == "AsExpected"


async def test_an_object_of_somebody_else_is_not_taken_over() -> None:
    theirs = {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "nano", "namespace": "models"}}
    cluster = FakeCluster(fitting_owner(), theirs)

    with pytest.raises(NameTaken):
        await reconciler(cluster)(KEY)

    kept = {key: value for key, value in cluster.find("Service", "nano").items() if key != "metadata"}
    assert kept == {"kind": "Service", "apiVersion": "v1"}
    assert cluster.find("Service", "nano")["metadata"].get("ownerReferences") is None
    assert status(cluster)["Degraded"] == ("True", "ApplyFailed")


async def test_a_child_whose_labels_were_removed_is_adopted_again() -> None:
    cluster = FakeCluster(fitting_owner())
    again = reconciler(cluster)
    await again(KEY)
    cluster.find("Service", "nano")["metadata"]["labels"] = {}

    await again(KEY)

    assert cluster.find("Service", "nano")["metadata"]["labels"]["app.kubernetes.io/instance"] == "nano"


async def test_a_child_of_a_deleted_namesake_is_waited_for() -> None:
    cluster = FakeCluster(fitting_owner())
    await reconciler(cluster)(KEY)
    successor = fitting_owner()
    successor["metadata"]["uid"] = "another"
    cluster.put(successor)
    before = copy.deepcopy(cluster.find("Service", "nano"))

    with pytest.raises(Terminating):
        await reconciler(cluster)(KEY)

    assert cluster.find("Service", "nano") == before
    assert status(cluster)["Degraded"] == ("False", "AsExpected")


async def test_an_unreachable_server_ends_the_pass() -> None:
    cluster = FakeCluster(fitting_owner())
    cluster.fault = lambda verb, kind, _: Unreachable("away") if verb == "list" and kind == "Pod" else None

    with pytest.raises(Unreachable):
        await reconciler(cluster)(KEY)

    assert cluster.calls == []


async def test_an_object_deleted_in_the_middle_of_a_pass_is_no_error() -> None:
    cluster = FakeCluster(fitting_owner())

    def vanish(verb: str, kind: str, _: str) -> None:
        if (verb, kind) == ("make", "Deployment"):
            cluster.objects.pop(("MambaDeployment", "models", "nano"), None)

    cluster.fault = vanish

    await reconciler(cluster)(KEY)

    assert not [call for call in cluster.calls if "Event/" in call]


async def test_a_lost_event_is_no_failure() -> None:
    cluster = FakeCluster(fitting_owner())
    cluster.fault = lambda _verb, kind, _name: Forbidden("no", status=403) if kind == "Event" else None

    assert await reconciler(cluster)(KEY) == 300.0


async def test_nodes_that_may_not_be_read_leave_the_plan_unknown() -> None:
    cluster = FakeCluster(fitting_owner(memory={}))
    cluster.fault = lambda _verb, kind, _name: Forbidden("no", status=403) if kind == "Node" else None

    await reconciler(cluster)(KEY)

    assert status(cluster)["Planned"] == ("Unknown", "DeviceMemoryUnknown")


async def test_the_smallest_gpu_of_the_nodes_that_qualify_is_planned_for() -> None:
    def node(name: str, mib: str, pool: str) -> Manifest:
        labels = {"nvidia.com/gpu.memory": mib, "pool": pool}
        return {"kind": "Node", "metadata": {"name": name, "labels": labels}}

    nodes = [
        node("a", "81920", "big"),
        node("b", "16384", "small"),
        node("c", "97871", "big"),
        node("d", "x", "big"),
    ]
    of = fitting_owner(memory={}, scheduling={"nodeSelector": {"pool": "big"}})
    cluster = FakeCluster(of, *nodes)

    await reconciler(cluster)(KEY)

    assert status(cluster)["Planned"] == ("True", "PlanComputed")
    ledger = cluster.find("MambaDeployment", "nano")["status"]["plan"]["ledger"]
    assert sum(line["bytes"] for line in ledger) == int((80 << 30) * 0.9)


FAULTS: list[ClusterError] = [
    Unreachable("away", status=503), Conflict("changed", status=409), ObjectRejected("no", status=422),
    Forbidden("no", status=403), NotFound("gone", status=404),
]  # fmt: skip


@pytest.mark.parametrize("first", range(len(FAULTS)) if LARGE else [0])
async def test_a_fault_at_any_single_call_is_made_good_by_the_next_pass(first: int) -> None:
    """Each call fails by one of the faults in turn; `make gates` begins with each of them."""
    # Its pod waits for the Secret, which is how a Secret that was not made is noticed.
    calm = FakeCluster(fitting_owner(), creating_pod())
    await reconciler(calm)(KEY)
    await reconciler(calm)(KEY)
    expected = shape(calm)

    position, struck = 0, True
    while struck:
        cluster = FakeCluster(fitting_owner(), creating_pod())
        counter, struck = 0, False

        error = FAULTS[(first + position) % len(FAULTS)]

        def strike(
            _verb: str, _kind: str, _name: str, at: int = position, error: ClusterError = error
        ) -> ClusterError | None:
            nonlocal counter, struck
            counter += 1
            if counter == at + 1:
                struck = True
                return error
            return None

        cluster.fault = strike
        for _ in range(3):
            with contextlib.suppress(OperatorError):
                await reconciler(cluster)(KEY)
        cluster.fault = lambda *_: None
        await reconciler(cluster)(KEY)
        assert shape(cluster) == expected, f"call {position}"
        position += 1
    assert position > 40


def shape(cluster: FakeCluster) -> dict[tuple[str, str, str], Manifest]:
    """Return the lasting parts: no versions, uids and events."""
    found = {}
    for key, one in cluster.objects.items():
        if key[0] != "Event":
            meta = {k: v for k, v in one["metadata"].items() if k not in ("uid", "resourceVersion")}
            found[key] = {**one, "metadata": meta}
    return found


async def test_every_child_belongs_to_the_object_that_was_observed() -> None:
    cluster = FakeCluster(owner())

    await reconciler(cluster)(KEY)

    for (kind, _, _), one in cluster.objects.items():
        if kind not in ("MambaDeployment", "Event"):
            assert one["metadata"]["ownerReferences"][0]["uid"] == UID


async def test_a_pass_that_takes_too_long_is_ended() -> None:
    import asyncio

    cluster = FakeCluster(fitting_owner())

    async def hang(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    cluster.apply = hang  # type: ignore[method-assign, assignment]
    slow = Reconciler(
        cluster, OperatorMetrics(), PassSettings("test", timeout=0.05), runtime=Runtime(now=lambda: NOW)
    )

    with pytest.raises(TimeoutError):
        await slow(KEY)


class Webhooked(FakeCluster):
    """A cluster with a webhook that puts what it thinks right into each Deployment."""

    async def apply(self, manifest: Manifest, *, subresource: str = "", dry_run: bool = False) -> Manifest:
        if manifest["kind"] == "Deployment":
            manifest = copy.deepcopy(manifest)
            manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 7
        return await super().apply(manifest, subresource=subresource, dry_run=dry_run)


async def test_what_a_webhook_changes_on_every_write_is_not_written_for_ever() -> None:
    cluster = Webhooked(fitting_owner())
    again = reconciler(cluster)
    for _ in range(3):
        await again(KEY)
    cluster.calls.clear()

    await again(KEY)
    assert [call for call in cluster.calls if "Deployment/" in call] == []

    engine = copy.deepcopy(cluster.find("Deployment", "nano-engine"))
    engine["spec"]["replicas"] = 9
    cluster.put(engine)
    await again(KEY)
    assert cluster.find("Deployment", "nano-engine")["spec"]["replicas"] == 1, "a change by hand is mended"
