"""Edits of children by hand with kubectl, on a real API server with its controllers."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from kube_life import LONG_AGO, Life
from mamba_api import names
from mamba_kube.access import connected, load_access
from mamba_operator.objects.kinds import DEPLOYMENT, OWNED, SERVICE
from mamba_operator.objects.manifest import Key, Manifest, metadata, owner_uid
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
NO_GPU = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


@pytest.fixture
async def life(plane: ControlPlane, namespace: str) -> AsyncIterator[Life]:
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        yield Life(server, Key(namespace, "nano"))


async def serve(life: Life, **spec: Any) -> None:
    await life.make(**{"rollout": {"minReadyTime": "0s"}, **spec})
    await life.ready("engine")
    await life.ready("gateway")
    await life.becomes("Ready", "Serving")


async def test_deployments_that_somebody_paused_take_changes_and_a_narrowed_selector_chooses_all_pods_again(
    plane: ControlPlane, life: Life
) -> None:
    await serve(life)
    narrow = '{"spec": {"selector": {"version": "v2"}}}'
    plane.kubectl("patch", "service", "nano", "-n", life.key.namespace, "--type=merge", "-p", narrow)

    async def whole() -> bool:
        found = await life.child(SERVICE, "nano") or {}
        return bool(found["spec"]["selector"] == names.selector("nano", "gateway"))

    await life.until(whole)

    children = ("nano-engine", "nano")
    paused = [f"deployment/{child}" for child in children]
    plane.kubectl("rollout", "pause", *paused, "-n", life.key.namespace)
    await life.change(engine={"image": "registry.test/e:2"}, gateway={"image": "registry.test/g:2"})
    for child in children:
        await life.until(partial(replaced, life, child))


async def replaced(life: Life, child: str) -> bool:
    """Return whether the Deployment has pods of its present template."""
    found = await life.child(DEPLOYMENT, child) or {}
    status = found.get("status") or {}
    current = status.get("observedGeneration") == found["metadata"]["generation"]
    return current and status.get("updatedReplicas") == 1


async def test_what_an_object_left_behind_is_taken_back_by_the_next_of_its_name_and_serves_meanwhile(
    plane: ControlPlane, life: Life
) -> None:
    await serve(life)
    before = [metadata(one)["uid"] for one in await life.pods("engine")]
    plane.kubectl("delete", "mdep", "nano", "-n", life.key.namespace, "--cascade=orphan")

    await life.make(rollout={"minReadyTime": "0s"})

    await life.becomes("Degraded", "AsExpected")
    assert before[0] in [metadata(one)["uid"] for one in await life.pods("engine")]
    await life.ready("engine")
    await life.ready("gateway")
    await life.becomes("UpToDate", "UpToDate")
    uid = metadata(await life.owner())["uid"]
    for kind in OWNED:
        ours = f"{names.LABEL_INSTANCE}=nano"
        owners = [owner_uid(one) for one in await life.kube.list(kind, life.key.namespace, selector=ours)]
        assert set(owners) <= {uid}, kind


async def test_a_restart_of_the_engines_by_hand_goes_on_where_every_gpu_is_taken(
    plane: ControlPlane, life: Life
) -> None:
    await serve(life)
    [old] = await life.pods("engine")
    plane.kubectl("rollout", "restart", "deployment/nano-engine", "-n", life.key.namespace)

    async def added() -> list[Manifest]:
        return [one for one in await life.pods("engine") if metadata(one)["uid"] != metadata(old)["uid"]]

    [new] = await life.until(added)
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_GPU}
    await life.set_pod_status(new, phase="Pending", conditions=[{**no_room, "lastTransitionTime": LONG_AGO}])

    async def gone() -> bool:
        return [metadata(one)["uid"] for one in await life.pods("engine")] == [metadata(new)["uid"]]

    await life.until(gone)
