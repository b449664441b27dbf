"""Pods that nodes refuse, evict or take with them, on a real API server with its controllers.

The controllers create the next pod at once, so that no living object shows the cause.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kube_life import READY, Life
from mamba_api import names
from mamba_kube.access import connected, load_access
from mamba_operator.objects.kinds import POD
from mamba_operator.objects.manifest import Key, Manifest, metadata
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
EVICTED = {
    "phase": "Failed", "reason": "Evicted",
    "message": "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 4Gi. ",
}  # fmt: skip
REFUSED = {
    "phase": "Failed", "reason": "UnexpectedAdmissionError",
    "message": "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate "
    "unhealthy devices nvidia.com/gpu, which is unexpected",
}  # fmt: skip


@pytest.fixture
async def life(plane: ControlPlane, namespace: str) -> AsyncIterator[Life]:
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        yield Life(server, Key(namespace, "nano"))


async def fails(life: Life, component: names.Component, status: dict[str, Any]) -> Manifest:
    """Write the failed status of the newest pod as a kubelet does; return its successor."""

    async def pending() -> list[Manifest]:
        return [one for one in await life.pods(component) if one["status"]["phase"] == "Pending"]

    [pod] = await life.until(pending)
    await life.set_pod_status(pod, **status)
    [following] = await life.until(pending)
    assert metadata(following)["name"] != metadata(pod)["name"]
    return following


@pytest.mark.parametrize(
    ("component", "status", "says"),
    [("engine", EVICTED, "Evicted: The node was low on resource: ephemeral-storage"),
     ("gateway", REFUSED, "UnexpectedAdmissionError: Pod was rejected")],
)  # fmt: skip
async def test_pods_that_nodes_refuse_or_evict_one_after_the_other_are_told_with_the_kubelets_words(
    life: Life, component: names.Component, status: dict[str, Any], says: str
) -> None:
    await life.make(rollout={"minReadyTime": "0s"})
    await fails(life, component, status)
    await life.settle()
    assert (await life.condition("Degraded"))[1] == "AsExpected", "one is no trouble: another takes its place"

    following = await fails(life, component, status)

    assert says in await life.becomes("Degraded", "PodsFailed")
    assert (await life.condition("Ready"))[:2] == ("False", "PodsFailed")
    await life.set_pod_status(following, phase="Running", conditions=[READY])
    assert await life.becomes("Degraded", "AsExpected"), "the next one is ready, and the rest are records"


@pytest.mark.slow
async def test_a_node_that_is_gone_is_told_instead_of_an_engine_that_loads_or_drains(
    plane: ControlPlane, life: Life
) -> None:
    node, later = f"n-{life.key.namespace}", timedelta()
    life.set_clock(lambda: datetime.now(UTC) + later)
    await life.make(rollout={"minReadyTime": "0s"})
    [pod] = await life.until(lambda: life.pods("engine"))
    await life.set_pod_status(pod, phase="Running", conditions=[READY, {**READY, "type": "ContainersReady"}])
    await life.ready("gateway")
    await life.becomes("Ready", "Serving")
    with a_node(plane, node):
        await life.bind(pod, node)

        # Nobody says that it is ready from here on, and its controller finds that out.
        assert f"its node {node} is not ready" in await life.becomes("Degraded", "NodeLost")
        assert (await life.condition("Progressing"))[1] == "ScalingUp"
        await life.kube.delete(POD, life.key.namespace, metadata(pod)["name"], metadata(pod)["uid"])
        await life.becomes("Progressing", "Draining")
        later = timedelta(hours=1)
        assert f"its node {node} has not ended it" in await life.becomes("Degraded", "NodeLost")
        assert (await life.condition("Progressing"))[1] == "ScalingUp"
        plane.kubectl("delete", "pod", metadata(pod)["name"], "-n", life.key.namespace, "--force")
        await life.becomes("Degraded", "AsExpected")


@contextmanager
def a_node(plane: ControlPlane, name: str) -> Iterator[None]:
    """Create a Node that reported ready once and then fell silent, for the length of the block."""
    plane.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    said = {**READY, "reason": "KubeletReady", "lastHeartbeatTime": now, "lastTransitionTime": now}
    patch = json.dumps({"status": {"conditions": [said]}})
    plane.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", patch)
    try:
        plane.wait_for(
            lambda: not ((plane.get("node", name) or {}).get("spec") or {}).get("taints"),
            "the node's controller to have seen that it is ready",
        )
        yield
    finally:
        plane.kubectl("delete", "node", name)


async def test_pods_that_a_queue_holds_back_are_told_with_its_gates_until_it_lets_them_go(
    plane: ControlPlane, life: Life
) -> None:
    gate = {"spec": {"schedulingGates": [{"name": "example.com/queue"}]}}
    await life.make(rollout={"minReadyTime": "0s"}, podTemplate=gate)

    assert "example.com/queue" in await life.becomes("Degraded", "Unschedulable")

    [pod] = await life.pods("engine")
    opened = '{"spec": {"schedulingGates": null}}'
    plane.kubectl(
        "patch", "pod", metadata(pod)["name"], "-n", life.key.namespace, "--type=merge", "-p", opened
    )
    await life.becomes("Degraded", "AsExpected")
