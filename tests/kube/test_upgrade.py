"""From the release before this one: its chart, its operator and its objects, then this chart and operator.

No kubelet runs pods, so the test writes their status as one does. `make zero-drop` and `make e2e` change a
deployment under requests on a whole node.
"""

import asyncio
import os
from pathlib import Path

import pytest
import yaml

from eventually import PATIENCE
from kube_life import READY, Life
from mamba_api import names
from mamba_kube.access import connected, load_access
from mamba_operator.objects.manifest import Key, Manifest, metadata
from mamba_operator.objects.pod_trouble import says_ready
from mamba_operator.render.context import DefaultImages
from parsed_yaml import load_yaml
from previous_release import previous_operator, previous_release
from release.chart_archive import pack_chart
from testcluster.control_plane import ControlPlane

pytestmark = [
    pytest.mark.kube,
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("MAMBASERVE_GATES") != "large", reason="two operators: make gates"),
]
COMPONENTS: tuple[names.Component, ...] = ("engine", "gateway")
CHART = Path(__file__).parents[2] / "charts/mambaserve"


def adopt_crd(plane: ControlPlane, namespace: str) -> None:
    """Let the release `rel` own the CRD, which other tests of this control plane have applied."""
    crd = f"crd/{names.CRD_NAME}"
    marks = ["meta.helm.sh/release-name=rel", f"meta.helm.sh/release-namespace={namespace}"]
    plane.kubectl("annotate", "--overwrite", crd, *marks)
    plane.kubectl("label", "--overwrite", crd, "app.kubernetes.io/managed-by=Helm")


async def play_kubelet(life: Life) -> list[Manifest]:
    """Report all pods as ready; return the engines that serve."""
    for component in COMPONENTS:
        for pod in await life.pods(component):
            if not says_ready(pod["status"]):
                await life.set_pod_status(pod, phase="Running", conditions=[READY])
    pods = await life.pods("engine")
    return [pod for pod in pods if says_ready(pod["status"]) and not metadata(pod).get("deletionTimestamp")]


async def test_an_engine_of_the_release_before_serves_until_one_of_this_release_is_ready(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    tree = tmp_path / "previous"
    tree.mkdir()
    previous_release(tree)
    adopt_crd(plane, namespace)
    where = ("-n", namespace, "--set", f"watchNamespaces={{{namespace}}}")
    plane.helm("install", "rel", str(tree / "charts/mambaserve"), *where)
    example = load_yaml((tree / "examples/01-quick-start/mamba.yaml").read_text())
    example["spec"]["rollout"] = {"minReadyTime": "0s"}
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        life = Life(server, Key(namespace, example["metadata"]["name"]))
        plane.apply(yaml.safe_dump(example), namespace)

        async def is_ready() -> bool:
            return bool(await play_kubelet(life)) and (await life.condition("Ready"))[0] == "True"

        with previous_operator(tree, plane.kubeconfig, tmp_path / "log", ["--namespace", namespace]):
            async with asyncio.timeout(PATIENCE):
                while True:
                    if await is_ready():
                        break
                    await asyncio.sleep(0.1)
        [before] = await play_kubelet(life)

        packed = tmp_path / "mambaserve.tgz"
        pack_chart(CHART, packed, 0)
        plane.helm("upgrade", "rel", str(packed), *where)
        life.images = DefaultImages("registry.test/engine:new", "registry.test/gateway:new")
        life.restart()

        async def is_replaced() -> bool:
            serving = await play_kubelet(life)
            assert serving, "no engine serves"
            names_of = {metadata(pod)["name"] for pod in serving}
            return (
                metadata(before)["name"] not in names_of and (await life.condition("UpToDate"))[0] == "True"
            )

        await life.until(is_replaced)
        [engine] = await life.pods("engine")
        assert engine["spec"]["containers"][0]["image"] == "registry.test/engine:new"
        assert (await life.condition("Ready"))[0] == "True"
    plane.helm("rollback", "rel", "1", "-n", namespace)
    assert plane.get("mdep", example["metadata"]["name"], namespace) is not None
