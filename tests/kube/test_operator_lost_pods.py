"""Pods that nodes refuse, evict or take with them, on a real API server with its controllers: these make the
next pod at once, so that nothing that lives tells of it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from kube_life import READY, Life
from mamba_api import names
from mamba_kube.access import connected, load_access
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
    """A kubelet writes this of the newest pod; the pod that its controller makes then."""

    async def pending() -> list[Manifest]:
        return [one for one in await life.pods(component) if one["status"]["phase"] == "Pending"]

    [pod] = await life.until(pending)
    await life.says(pod, **status)
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
    await life.rest()
    assert (await life.condition("Degraded"))[1] == "AsExpected", "one is no trouble: another takes its place"

    following = await fails(life, component, status)

    assert says in await life.becomes("Degraded", "PodsFailed")
    assert (await life.condition("Ready"))[:2] == ("False", "PodsFailed")
    await life.says(following, phase="Running", conditions=[READY])
    assert await life.becomes("Degraded", "AsExpected"), "the next one is ready, and the rest are records"
