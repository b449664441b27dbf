"""Nodes with other GPUs join and leave a real cluster in which a deployment serves.

The operator writes nothing but the status.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from kube_life import Life
from mamba_kube.access import connected, load_access
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, OWNED
from mamba_operator.objects.manifest import Key
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
GPU = "nvidia.com/gpu"
A100 = {f"{GPU}.memory": "81920", f"{GPU}.product": "A100", f"{GPU}.sharing-strategy": "none"}
JOINING = {
    "a T4": {f"{GPU}.memory": "15360", f"{GPU}.product": "Tesla-T4"},
    "a GPU in slices": {
        f"{GPU}.memory": "9856", f"{GPU}.product": "A100-MIG-1g.10gb", "nvidia.com/mig.strategy": "single",
    },
    "a GPU that pods take turns on": {
        **A100, f"{GPU}.replicas": "4", f"{GPU}.sharing-strategy": "time-slicing",
    },
    "slices that stand for another resource": {
        "nvidia.com/mig-1g.10gb.memory": "9856", "nvidia.com/mig.strategy": "mixed",
    },
}  # fmt: skip
TAINT = {"key": "team", "value": "vision", "effect": "NoSchedule"}
TOLERATED = {"key": "team", "operator": "Exists"}


class Nodes:
    """Nodes that the test adds; no kubelet runs on them."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.names: list[str] = []

    def join(self, name: str, labels: dict[str, str], *taints: dict[str, str]) -> None:
        node = {
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "spec": {"taints": list(taints)},
        }  # fmt: skip
        status, answer = self.plane.api.request("POST", "/api/v1/nodes", node)
        assert status == 201, answer
        self.names.append(name)

    def leave(self, name: str) -> None:
        self.plane.api.request("DELETE", f"/api/v1/nodes/{name}")
        self.names.remove(name)


@pytest.fixture
def nodes(plane: ControlPlane) -> Iterator[Nodes]:
    nodes = Nodes(plane)
    yield nodes
    for name in list(nodes.names):
        nodes.leave(name)


async def versions(life: Life) -> dict[str, Any]:
    """Return generation and labels of all children, and the version of those that no controller writes to."""
    found = {}
    for kind in OWNED:
        for one in await life.kube.list(kind, life.key.namespace):
            meta = one["metadata"]
            version = meta["resourceVersion"] if kind.kind != "Deployment" else meta["generation"]
            found[f"{kind.kind} {meta['name']}"] = (version, meta.get("annotations"))
    return found


async def planned_bytes(life: Life) -> int:
    """Return the bytes of one GPU that the plan divides."""
    found = await life.kube.get(MAMBA_DEPLOYMENT, life.key.namespace, life.key.name)
    assert found is not None
    return sum(line["bytes"] for line in found["status"]["plan"]["ledger"])


@pytest.mark.parametrize("labels", JOINING.values(), ids=list(JOINING))
async def test_a_node_that_joins_and_leaves_writes_to_no_child_of_what_serves(
    plane: ControlPlane, namespace: str, nodes: Nodes, labels: dict[str, str]
) -> None:
    nodes.join(f"{namespace}-a", A100)
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        life = Life(server, Key(namespace, "nano"))
        await life.make(memory={}, resources={"gpus": 1}, rollout={"minReadyTime": "0s"})
        await life.ready("engine")
        await life.ready("gateway")
        await life.becomes("Ready", "Serving")
        await life.becomes("Planned", "PlanComputed")
        before, writes = await versions(life), life.struck.children_written()
        another_resource = f"{GPU}.memory" not in labels

        nodes.join(f"{namespace}-b", labels)
        life.restart()
        said = await life.becomes("Planned", "PlanComputed" if another_resource else "PlanDiffers")
        assert another_resource or "would be planned for them" in said
        assert (await life.condition("Ready"))[:2] == ("True", "Serving")

        nodes.leave(f"{namespace}-b")
        life.restart()
        await life.becomes("Planned", "PlanComputed")

        assert life.struck.children_written() == writes
        assert await versions(life) == before


@pytest.mark.parametrize("tolerations", [[], [TOLERATED]], ids=["not tolerated", "tolerated"])
async def test_a_tainted_node_that_joins_is_another_fleet_only_for_pods_that_tolerate_it(
    plane: ControlPlane, namespace: str, nodes: Nodes, tolerations: list[dict[str, str]]
) -> None:
    for name in "ab":
        nodes.join(f"{namespace}-{name}", A100)
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        life = Life(server, Key(namespace, "nano"))
        await life.make(memory={}, resources={"gpus": 1}, scheduling={"tolerations": tolerations})
        await life.becomes("Planned", "PlanComputed")
        plan, before = await planned_bytes(life), await versions(life)

        nodes.join(f"{namespace}-t4", JOINING["a T4"], TAINT)
        life.restart()
        said = await life.becomes("Planned", "PlanDiffers" if tolerations else "PlanComputed")

        assert ("GPUs of 15.0Gi" in said) is bool(tolerations)
        assert (await planned_bytes(life), await versions(life)) == (plan, before)


async def test_a_new_deployment_is_planned_for_the_nodes_that_its_pods_tolerate(
    plane: ControlPlane, namespace: str, nodes: Nodes
) -> None:
    nodes.join(f"{namespace}-a", A100)
    nodes.join(f"{namespace}-t4", JOINING["a T4"], TAINT)
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        without, tolerant = (Life(server, Key(namespace, name)) for name in ("without", "tolerant"))
        await without.make(memory={}, resources={"gpus": 1})
        await without.becomes("Planned", "PlanComputed")
        assert await planned_bytes(without) == int((80 << 30) * 0.9)

        await tolerant.make(memory={}, resources={"gpus": 1}, scheduling={"tolerations": [TOLERATED]})
        assert "15.0Gi" in await tolerant.becomes("Planned", "PlanDoesNotFit")
