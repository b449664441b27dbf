"""On a real API server: gateways see a candidate and its weight, a person steers both, and a promotion ends.

A promotion ends whatever operator has died in the middle of it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kube_life import READY, Life
from mamba_api import names
from mamba_cli.main import application
from mamba_gateway.endpoints.discovery import SERVICE_LABEL, targets
from mamba_kube.access import connected, load_access
from mamba_operator.objects.kinds import CONFIG_MAP, DEPLOYMENT, SERVICE
from mamba_operator.objects.manifest import Key, label_of, name_of
from operator_objects import nano_config
from operator_process import running_operator
from struck_server import Blow
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


@pytest.mark.slow
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


class EachWriteOnce(Mapping[str, Blow]):
    """Kills the operator after each write of a child that it makes while `armed`, once for each child."""

    def __init__(self) -> None:
        self.armed = False
        self.seen: set[str] = set()

    def __contains__(self, name: object) -> bool:
        write = str(name).rpartition(" ")[0]
        if not self.armed or names.PLURAL in write or "/events" in write or write in self.seen:
            return False
        self.seen.add(write)
        return True

    def __getitem__(self, name: str) -> Blow:
        return Blow.KILLED

    def __iter__(self) -> Iterator[str]:
        return iter(self.seen)

    def __len__(self) -> int:
        return len(self.seen)

    def __bool__(self) -> bool:
        return True


@pytest.mark.slow
async def test_a_promotion_ends_although_the_operator_dies_after_each_of_its_writes(
    plane: ControlPlane, namespace: str
) -> None:
    blows = EachWriteOnce()
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        life = Life(server, Key(namespace, "nano"), blows)
        rollout = {"minReadyTime": "0s", "canary": {"steps": STEPS}}
        await life.make(replicas=2, rollout=rollout, engine={"image": "registry.test/engine:old"})
        await life.ready("engine")
        await life.ready("gateway")
        await life.becomes("UpToDate", "UpToDate")
        await life.change(engine={"image": "registry.test/engine:new"})
        await life.until(lambda: life.child(DEPLOYMENT, "nano-candidate"))
        await life.ready("engine")
        await life.becomes("Progressing", "CanaryWaits")
        new = label_of(await life.child(DEPLOYMENT, "nano-candidate") or {})

        blows.armed = True
        command = ["rollout", "promote", "nano", "-n", namespace, "--kubeconfig", str(plane.kubeconfig)]
        await asyncio.to_thread(CliRunner().invoke, application(), command)

        async def ended() -> bool:
            # No pod is bound to a node, so each is gone as soon as it is deleted.
            await life.ready("engine")
            engines = await life.child(DEPLOYMENT, "nano-engine") or {}
            if await life.child(DEPLOYMENT, "nano-candidate") is not None:
                return False
            assert label_of(engines) == new, "the candidate serves until all engines have its revision"
            assert engines["status"].get("readyReplicas", 0) >= 2
            return True

        await life.until(ended)
        await life.becomes("UpToDate", "UpToDate")
        assert len(blows) >= 5, blows.seen
        assert await life.child(CONFIG_MAP, "nano-candidate") is None
        service = await life.child(SERVICE, "nano-engine") or {}
        assert names.LABEL_CANDIDATE_WEIGHT not in service["metadata"]["labels"]
        status = (await life.owner())["status"]
        assert (status["rollout"]["readyRevision"], status.get("canary")) == (new, None)


@pytest.mark.slow
def test_an_operator_process_leads_a_change_from_copies_to_its_promotion_and_another_ends_it(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    def status() -> dict[str, Any]:
        return (plane.get("mdep", "nano", namespace) or {}).get("status") or {}

    def canary(**expected: Any) -> bool:
        """Report the pods as ready, as kubelets do, and return whether the canary is as expected."""
        for pod in plane.list("pods", namespace):
            if (pod["status"].get("conditions") or [{}])[0] != READY:
                patch = {"status": {"phase": "Running", "conditions": [READY]}}
                plane.api.request(
                    "PATCH", f"/api/v1/namespaces/{namespace}/pods/{name_of(pod)}/status", patch,
                    content_type="application/merge-patch+json",
                )  # fmt: skip
        shown = status().get("canary") or {}
        return all(shown.get(name, 0) == value for name, value in expected.items())

    def asks(*command: str) -> str:
        arguments = ["rollout", *command, "nano", "-n", namespace, "--kubeconfig", str(plane.kubeconfig)]
        result: Any = CliRunner().invoke(application(), arguments)
        assert result.exit_code == 0, result.output
        return str(result.output)

    def labels() -> dict[str, str]:
        return dict((plane.get("service", "nano-engine", namespace) or {})["metadata"]["labels"])

    steps = {"shadow": {"percent": 10, "maxInFlight": 4}, "steps": STEPS}
    spec = {
        "model": {"uri": "pvc://models/nano", "config": nano_config()}, "memory": {"deviceMemory": "80Gi"},
        "rollout": {"minReadyTime": "0s", "canary": steps}, "engine": {"image": "registry.test/engine:old"},
    }  # fmt: skip
    nano = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "nano"}, "spec": spec}
    changed = json.dumps({"spec": {"engine": {"image": "registry.test/engine:new"}}})
    options = (plane.kubeconfig, tmp_path / "log", ["--namespace", namespace])
    with running_operator(*options, MAMBASERVE_LEASE_DURATION="10") as operator:
        plane.apply(nano, namespace)
        plane.wait_for(lambda: canary() and status().get("rollout", {}).get("readyRevision"), "the engines")
        plane.kubectl("patch", "mdep/nano", "-n", namespace, "--type=merge", "-p", changed)
        plane.wait_for(lambda: canary(phase="Waiting", step=0, shadow=10), "copies")
        shadow = {
            names.LABEL_CANDIDATE_WEIGHT: "0",
            names.LABEL_SHADOW_SHARE: "10",
            names.LABEL_SHADOW_COPIES: "4",
        }
        assert shadow.items() <= labels().items()
        assert "copies    10% of the conversations" in asks("status")
        asks("resume")
        plane.wait_for(lambda: canary(phase="Waiting", step=1, weight=5, shadow=0), "the first step")
        assert names.LABEL_SHADOW_SHARE not in labels()
        asks("pause")
        plane.wait_for(lambda: canary(phase="Paused", step=1, weight=5), "the pause")
        asks("resume")
        plane.wait_for(lambda: canary(phase="Running", step=2, weight=50), "the second step")
        new = status()["canary"]["revision"]
        asks("promote")
        plane.wait_for(
            lambda: label_of(plane.get("deployment", "nano-engine", namespace) or {}) == new, "the promotion"
        )
        operator.kill()
    assert plane.get("deployment", "nano-candidate", namespace) is not None
    with running_operator(*options, MAMBASERVE_LEASE_DURATION="10"):
        plane.wait_for(
            lambda: canary() and plane.get("deployment", "nano-candidate", namespace) is None,
            "the end of the candidate",
        )
        plane.wait_for(lambda: canary() and status()["rollout"]["readyRevision"] == new, "the record")
        assert "canary" not in status()
