"""On a real API server: gateways see a candidate and its weight, and a person steers both."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from typer.testing import CliRunner

from kube_life import READY, Life
from mamba_api import names
from mamba_cli.main import application
from mamba_gateway.endpoints.discovery import SERVICE_LABEL, targets
from mamba_kube.access import connected, load_access
from mamba_operator.objects.kinds import DEPLOYMENT
from mamba_operator.objects.manifest import Key, name_of
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
STEPS = [{"weight": 5}, {"weight": 50, "hold": "1h"}]
CANDIDATE_PODS = names.Children("nano").candidate_pods


@pytest.fixture
async def life(plane: ControlPlane, namespace: str) -> AsyncIterator[Life]:
    # EndpointSlices list only pods whose node exists; nobody has to run it.
    await asyncio.to_thread(
        plane.apply, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": namespace}}
    )
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        yield Life(server, Key(namespace, "nano"))
    await asyncio.to_thread(plane.kubectl, "delete", "node", namespace)


async def answer(life: Life) -> bool:
    """Report all engines as ready, each at an address of its own; return whether there is a candidate."""
    pods = await life.pods("engine")
    for number, pod in enumerate(sorted(pods, key=name_of)):
        address = f"10.9.0.{number + 1}"
        if not pod["spec"].get("nodeName"):
            await life.bind(pod, life.key.namespace)
        await life.set_pod_status(
            pod, phase="Running", conditions=[READY], podIP=address, podIPs=[{"ip": address}]
        )
    return any(name_of(pod).startswith(CANDIDATE_PODS) for pod in pods)


async def test_gateways_see_the_candidate_and_its_weight_until_a_person_ends_it(
    life: Life, plane: ControlPlane, namespace: str
) -> None:
    def shares() -> set[float | None]:
        """Return the shares of the engines' pods as gateways read them; None = no candidate."""
        slices = plane.list("endpointslices", namespace, f"{SERVICE_LABEL}=nano-engine")
        return {target.candidate_share for target in targets(slices, CANDIDATE_PODS)}

    async def sees(*expected: float | None) -> None:
        async def seen() -> bool:
            return await asyncio.to_thread(shares) == set(expected)

        await life.until(seen)

    async def asks(*command: str) -> str:
        arguments = ["rollout", *command, "nano", "-n", namespace, "--kubeconfig", str(plane.kubeconfig)]
        result: Any = await asyncio.to_thread(CliRunner().invoke, application(), arguments)
        assert result.exit_code == 0, result.output
        return str(result.output)

    rollout = {"minReadyTime": "0s", "canary": {"steps": STEPS}}
    await life.make(rollout=rollout, engine={"image": "registry.test/engine:old"})
    await life.until(lambda: life.pods("engine"))
    assert not await answer(life)
    await life.ready("gateway")
    await life.becomes("UpToDate", "UpToDate")
    await sees(None)

    await life.change(engine={"image": "registry.test/engine:new"})
    await life.until(lambda: answer(life))
    await life.becomes("Progressing", "CanaryWaits")
    await sees(None, 0.05)
    assert "step      1 of 2" in await asks("status")

    assert "asked the operator to resume" in await asks("resume")
    await life.becomes("Progressing", "CanaryRunning")
    await sees(None, 0.5)

    await asks("abort")
    await life.becomes("Progressing", "RolledBack")
    await sees(None, 0.0)  # The candidate drains, and has no weight any more.
    assert await life.child(DEPLOYMENT, "nano-candidate") is None
    assert "CanaryAborted: a person aborted the canary" in await asks("status")
