"""Resource profiles on a real API server: what is stored, what pods ask for, and a change of the settings."""

from pathlib import Path
from typing import Any

import pytest

from kube_life import Life
from mamba_api.v1alpha1.profiles import ResourceProfile
from mamba_kube.access import connected, load_access
from mamba_operator.objects.kinds import DEPLOYMENT
from mamba_operator.objects.manifest import Key
from mamba_planner.cards.shipped_profiles import SHIPPED
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
OURS = {"gpus": 1, "cpu": "2", "memory": "4Gi", "deviceMemory": "40Gi", "nodeSelector": {"pool": "ours"}}
MORE = {**OURS, "memory": "8Gi"}


def profiles(**named: dict[str, Any]) -> dict[str, ResourceProfile]:
    return {**SHIPPED, **{name: ResourceProfile.model_validate(one) for name, one in named.items()}}


async def pod(life: Life) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return node selector and requests of the engine pods."""
    found = await life.child(DEPLOYMENT, "nano-engine")
    assert found is not None
    spec = found["spec"]["template"]["spec"]
    return spec.get("nodeSelector") or {}, spec["containers"][0]["resources"]["requests"]


async def test_a_profile_of_the_operators_settings_reaches_the_pods_and_an_unknown_one_touches_nothing(
    plane: ControlPlane, namespace: str
) -> None:
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        life = Life(server, Key(namespace, "nano"))
        life.profiles = profiles(ours=OURS)
        await life.make(memory={}, resources={"profile": "ours"})
        await life.settle()

        assert (await life.owner())["spec"]["resources"] == {"profile": "ours"}
        asked = {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1"}
        assert await pod(life) == ({"pool": "ours"}, asked)
        assert "with the profile ours: gpus 1" in await life.becomes("Planned", "PlanComputed")

        life.profiles = SHIPPED
        life.restart()
        assert "known: cpu-large, cpu-small" in await life.becomes("Planned", "InvalidSpec")
        assert await pod(life) == ({"pool": "ours"}, asked)

        life.profiles = profiles(ours=MORE)
        life.restart()
        await life.becomes("Planned", "PlanComputed")
        assert await pod(life) == ({"pool": "ours"}, {**asked, "memory": "8Gi"})

        await life.change(resources={"profile": "cpu-small", "cpu": "1"}, memory={"deviceMemory": "40Gi"})
        await life.settle()
        assert await pod(life) == ({}, {"cpu": "1", "memory": "4Gi"})


def test_an_operator_does_not_start_with_a_wrong_file(plane: ControlPlane, tmp_path: Path) -> None:
    from operator_process import running_operator

    path = tmp_path / "profiles.yaml"
    path.write_text("resourceProfiles: {ours: {gpu: 1}}")
    with running_operator(plane.kubeconfig, tmp_path / "log", ["--resource-profiles", str(path)]) as operator:
        assert operator.process.wait(60) == 2
    assert "resourceProfiles.ours.gpu: unknown field; did you mean gpus?" in operator.text
