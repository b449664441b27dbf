"""A claim of the user's as model cache on a real API server: what is made, and from one form to the other."""

import pytest

from kube_life import Life
from mamba_kube.access import connected, load_access
from mamba_operator.objects.kinds import CLAIM, DEPLOYMENT, JOB
from mamba_operator.objects.manifest import Key
from operator_objects import nano_config
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
URI = "hf://org/model@" + "0123456789" * 4


async def test_one_form_of_the_cache_becomes_the_other_and_back(plane: ControlPlane, namespace: str) -> None:
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        life = Life(server, Key(namespace, "nano"))

        async def cache_of_engines() -> tuple[str, int]:
            """Return the claim that engines mount, and how many loaders their pods have."""
            found = await life.child(DEPLOYMENT, "nano-engine")
            assert found is not None
            pod = found["spec"]["template"]["spec"]
            [volume] = [one for one in pod["volumes"] if one["name"] == "cache"]
            return volume["persistentVolumeClaim"]["claimName"], len(pod.get("initContainers", []))

        async def jobs() -> int:
            found = await life.kube.list(JOB, namespace)
            return len([one for one in found if "deletionTimestamp" not in one["metadata"]])

        await life.make(model={"uri": URI, "config": nano_config(), "cache": {"claimName": "mine"}})
        await life.settle()
        assert await cache_of_engines() == ("mine", 1)
        assert await jobs() == 0
        assert await life.child(CLAIM, "nano-model") is None
        assert (await life.condition("Planned"))[1] == "PlanComputed"

        await life.change(model={"cache": {"claimName": None, "size": "40Gi"}})
        await life.settle()
        assert await jobs() == 1
        assert await life.child(CLAIM, "nano-model") is not None
        # Engines that have their copy go on until the new volume has one, too.
        assert await life.child(DEPLOYMENT, "nano-engine") is not None

        await life.change(model={"cache": {"claimName": "mine", "size": None}})
        await life.settle()
        assert await cache_of_engines() == ("mine", 1)
        assert await jobs() == 0
        assert await life.child(CLAIM, "nano-model") is not None
