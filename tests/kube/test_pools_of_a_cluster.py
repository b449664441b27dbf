"""Two pools of engines on a real API server with its controllers, which have to take what is rendered."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from kube_life import READY, Life
from mamba_api import names
from mamba_kube.access import connected, load_access
from mamba_operator.objects.kinds import DEPLOYMENT
from mamba_operator.objects.manifest import Key, Manifest, is_terminating, metadata
from mamba_operator.objects.pod_trouble import role_of
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
NOW = {"rollout": {"minReadyTime": "0s"}}


@pytest.fixture
async def life(plane: ControlPlane, namespace: str) -> AsyncIterator[Life]:
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        yield Life(server, Key(namespace, "nano"))


async def engines(life: Life, role: str) -> list[Manifest]:
    return [pod for pod in await life.pods("engine") if role_of(pod) == role and not is_terminating(pod)]


async def count(life: Life, role: str, number: int) -> list[Manifest]:
    """Wait until the pool has that many pods."""

    async def there() -> list[Manifest]:
        found = await engines(life, role)
        return found if len(found) == number else []

    found: list[Manifest] = await life.until(there)
    return found


async def ready(life: Life, role: str) -> None:
    for pod in await engines(life, role):
        await life.set_pod_status(pod, phase="Running", conditions=[READY])


async def pools(life: Life) -> dict[str, tuple[int, int]]:
    status = (await life.owner()).get("status") or {}
    return {
        pool["name"]: (pool["readyReplicas"], pool["desiredReplicas"]) for pool in status.get("pools") or ()
    }


async def becomes(life: Life, **counts: tuple[int, int]) -> None:
    async def so() -> bool:
        return await pools(life) == counts

    await life.until(so)


async def test_two_pools_appear_and_scale_alone(life: Life) -> None:
    sizes: dict[str, Any] = {"prefill": {"replicas": 1}, "decode": {"replicas": 2}}
    await life.make(disaggregation=sizes, stateCache={"disk": {"size": "1Gi"}, "hostMemory": "1Gi"}, **NOW)
    await count(life, "prefill", 1)
    await count(life, "decode", 2)
    await life.ready("gateway")
    await ready(life, "prefill")

    assert "decode" in await life.becomes("Available", "NoReadyDecodeEngine")
    await ready(life, "decode")
    await life.becomes("Ready", "Serving")
    await becomes(life, prefill=(1, 1), decode=(2, 2))

    before = {metadata(pod)["name"] for pod in await engines(life, "prefill")}
    await life.change(disaggregation={"decode": {"replicas": 3}})
    await count(life, "decode", 3)
    await ready(life, "decode")
    await becomes(life, prefill=(1, 1), decode=(3, 3))
    assert {metadata(pod)["name"] for pod in await engines(life, "prefill")} == before


async def test_unified_engines_end_once_both_pools_serve_and_come_back_in_the_same_way(life: Life) -> None:
    await life.make(**NOW)
    await count(life, "unified", 1)
    await ready(life, "unified")
    await life.ready("gateway")
    await life.becomes("Ready", "Serving")

    await life.change(disaggregation={})
    await count(life, "prefill", 1)
    await count(life, "decode", 1)
    await ready(life, "prefill")
    await life.settle()
    assert await life.condition("Available") == (
        "True", "ReplicasAvailable",
        "engines of the former spec.disaggregation answer until the new ones are ready: 1 unified",
    )  # fmt: skip
    assert len(await engines(life, "unified")) == 1
    await ready(life, "decode")
    await gone(life, "nano-engine")
    await becomes(life, prefill=(1, 1), decode=(1, 1))

    await life.change(disaggregation=None)
    await count(life, "unified", 1)
    await life.settle()
    assert len(await engines(life, "prefill")) == len(await engines(life, "decode")) == 1
    await ready(life, "unified")
    await gone(life, "nano-prefill")
    await gone(life, "nano-decode")
    assert await pools(life) == {}


async def gone(life: Life, deployment: str) -> None:
    """Wait until the Deployment is being removed."""

    async def absent() -> bool:
        child = await life.child(DEPLOYMENT, deployment)
        return child is None or is_terminating(child)

    await life.until(absent)


async def test_without_an_engine_that_computes_prompts_the_pool_is_named(life: Life) -> None:
    await life.make(disaggregation={}, **NOW)
    await count(life, "decode", 1)
    await life.ready("gateway")
    await ready(life, "decode")

    assert "prefill" in await life.becomes("Available", "NoReadyPrefillEngine")


def test_the_scale_subresource_of_two_pools_is_refused_with_what_to_do(
    plane: ControlPlane, namespace: str
) -> None:
    spec = {"model": {"uri": "builtin://tiny-recall"}, "disaggregation": {}}
    plane.apply(
        {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "two"}, "spec": spec},
        namespace,
    )
    with pytest.raises(Exception, match=r"set disaggregation\.prefill\.replicas"):
        plane.kubectl("scale", "mdep/two", "-n", namespace, "--replicas=3")
