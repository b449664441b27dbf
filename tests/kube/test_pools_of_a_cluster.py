"""Two pools of engines on a real API server with its controllers, which have to take what is rendered."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kube_life import READY, Life
from mamba_api import names
from mamba_kube.access import connected, load_access
from mamba_operator.objects.kinds import DEPLOYMENT
from mamba_operator.objects.manifest import Key, Manifest, is_terminating, metadata
from mamba_operator.objects.pod_trouble import role_of
from metrics_of_pods import engine_text, pod_addresses
from operator_objects import nano_config
from operator_process import running_operator
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


@pytest.mark.slow
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


BOUNDS = {"minReplicas": 1, "maxReplicas": 3}


@pytest.mark.slow
def test_each_pool_is_scaled_by_what_binds_it(plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    spec = {
        "model": {"uri": "pvc://models/nano", "config": nano_config()},
        "memory": {"deviceMemory": "80Gi"},
        "disaggregation": {"prefill": {"scaling": BOUNDS}, "decode": {"scaling": BOUNDS}},
    }
    nano = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "nano"}, "spec": spec}
    quiet = {"running": 0, "waiting": 0, "room": 4}
    loads: dict[str, dict[str, int]] = {"prefill": dict(quiet), "decode": dict(quiet)}
    known: set[str] = set()

    def pools() -> dict[str, Any]:
        status = (plane.get("mdep", "nano", namespace) or {}).get("status") or {}
        return {pool["name"]: pool for pool in status.get("pools") or ()}

    def desired() -> dict[str, int]:
        """Make all new pods ready and return the number of engines that each pool shall have."""
        selector = ",".join(f"{key}={value}" for key, value in names.selector("nano", "engine").items())
        for pod in plane.list("pods", namespace, selector):
            name, role = str(pod["metadata"]["name"]), role_of(pod)
            if name in known:
                continue
            known.add(name)
            ip = addresses.add(lambda role=role: engine_text(**loads[role]))
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [ready]}
            plane.api.request(
                "PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status},
                content_type="application/merge-patch+json",
            )  # fmt: skip
        return {name: pool["scaling"]["desired"] for name, pool in pools().items() if pool.get("scaling")}

    with (
        running_operator(
            plane.kubeconfig, tmp_path / "log", ["--namespace", namespace, "--scale-every", "1"]
        ) as operator,
        pod_addresses() as addresses,
    ):
        plane.apply(nano, namespace)
        plane.wait_for(lambda: desired() == {"prefill": 1, "decode": 1}, "an engine of each pool")
        loads["prefill"] |= {"running": 4, "waiting": 40, "prompt_tokens": 4_000_000}
        plane.wait_for(
            lambda: desired() == {"prefill": 3, "decode": 1},
            f"more prefill engines alone; {operator.text[-3000:]}",
            timeout=180,
        )
        assert pools()["prefill"]["scaling"]["binding"] in ("queue", "bounds")
        assert "queue" in pools()["prefill"]["scaling"]["reason"]
        loads["prefill"] = dict(quiet)
        loads["decode"] |= {"running": 64, "waiting": 30}
        plane.wait_for(
            lambda: desired() == {"prefill": 3, "decode": 3}, f"decode engines; {operator.text[-3000:]}",
            timeout=180,
        )  # fmt: skip
        assert "slots" in pools()["decode"]["scaling"]["reason"]
        events = [event["reason"] for event in plane.list("events", namespace)]
        assert events.count("ScaledUp") >= 2
