"""From the release before this one to this chart on a real node, while clients stream: no request fails.

The programs of the release before are those of its tree, which its image sees below the checkout.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disruptions import OPERATORS, Course, pods
from mamba_api import names
from parsed_yaml import load_yaml
from previous_release import CODE, ROOT, previous_release
from product import QUICK, RELEASE, SYSTEM, Deployed, load_images
from release.chart_archive import pack_chart
from testcluster.errors import ClusterError
from testcluster.host_view import TREE
from testcluster.node import Node

pytestmark = [pytest.mark.e2e, pytest.mark.long]
TAG = "previous"
"""Tag of the images of the release before."""
OURS = {"engine": names.IMAGE, "gateway": names.CONTROL_PLANE_IMAGE}
ENDED = 600.0
"""Seconds in which helm and the pods end a step: three programs are loaded beside the requests."""
WAIT = ("--wait", "--timeout", f"{ENDED:.0f}s")


@pytest.fixture
def previous(node: Node) -> Iterator[Path]:
    """Install the chart of the release before, with its programs; yield its tree."""
    (ROOT / "dist").mkdir(exist_ok=True)
    tree = Path(tempfile.mkdtemp(prefix="previous-", dir=ROOT / "dist"))
    try:
        tree.chmod(0o755)  # containers run as another user
        revision = previous_release(tree)
        print(f"upgrade from {revision}", flush=True)
        place = f"{TREE}/{tree.relative_to(ROOT)}"
        path = {"PYTHONPATH": ":".join(f"{place}/{folder}" for folder in CODE)}
        load_images(node)
        for image in OURS.values():
            node.load_image(f"{image.rpartition(':')[0]}:{TAG}", path)
        tags = ("--set", f"image.tag={TAG}", "--set", f"engineImage.tag={TAG}")
        chart = str(tree / "charts/mambaserve")
        node.helm(
            "install", RELEASE, chart, "-n", SYSTEM, *WAIT, "--create-namespace", *tags, timeout=ENDED + 10
        )
        yield tree
    finally:
        node.helm("uninstall", RELEASE, "-n", SYSTEM, *WAIT, "--ignore-not-found", timeout=ENDED + 10)
        shutil.rmtree(tree)


def operator_images(node: Node) -> set[str]:
    """Return the images of the operator's pods."""
    return {pod["spec"]["containers"][0]["image"] for pod in node.list("pods", SYSTEM, OPERATORS)}


def images(deployed: Deployed, component: str) -> set[str]:
    """Return the images of a component's pods, those that are about to end included."""
    found = pods(deployed, component)
    return {each["image"] for pod in found for each in pod["spec"]["containers"]}


@pytest.mark.timeout(3600)
def test_an_upgrade_from_the_release_before_fails_no_request_and_keeps_each_object(
    node: Node, namespace: str, previous: Path, tmp_path: Path
) -> None:
    deployed = Deployed(node, namespace)
    example = load_yaml((previous / "examples/01-quick-start/mamba.yaml").read_text())
    spec = {**example["spec"], "rollout": QUICK}
    node.apply({**example, "spec": spec}, namespace)
    deployed.wait_ready()
    before = object_of(deployed)
    assert images(deployed, "engine") == {f"{names.IMAGE.rpartition(':')[0]}:{TAG}"}
    packed = tmp_path / "mambaserve.tgz"
    pack_chart(ROOT / "charts/mambaserve", packed, 0)

    def is_upgraded() -> bool:
        serving = all(images(deployed, component) == {image} for component, image in OURS.items())
        return serving and operator_images(node) == {names.CONTROL_PLANE_IMAGE}

    course = Course(deployed)
    with course.traffic(streams=3, rate=4):
        course.wait_answered(10)
        with course.phase("helm upgrade"):
            # The tags of before are no values of somebody who installs releases.
            node.helm("upgrade", RELEASE, str(packed), "-n", SYSTEM, "--reset-values", timeout=ENDED)
        with course.phase("pods of this release"):
            try:
                node.wait_for(is_upgraded, "pods of this release alone", timeout=ENDED)
            except ClusterError as error:
                operators = node.kubectl("get", "pods", "-n", SYSTEM, "-o", "wide")
                raise AssertionError(f"{error}\n{operators}\n{deployed.how_it_stands()}") from error
            deployed.wait_settled()
        course.wait_answered(10)

    print(f"{len(course.requests)} requests, {len(course.failures)} failed", flush=True)
    assert course.failures == []
    after = object_of(deployed)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"] == before["spec"]
    assert deployed.condition("Ready")["status"] == "True"

    # The object of before takes a change from the operator of now.
    deployed.patch({"model": {"maxModelLen": 1024}})
    node.wait_for(
        lambda: deployed.status().get("observedGeneration") == object_of(deployed)["metadata"]["generation"],
        "the change to be seen",
    )
    deployed.wait_settled()


def object_of(deployed: Deployed) -> dict[str, Any]:
    """Return the MambaDeployment."""
    manifest = deployed.node.get("mdep", deployed.name, deployed.namespace)
    assert manifest is not None
    return manifest
