"""The image of a model as a volume: on an API server that has such volumes, and on one that has none."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mamba_api import names
from mamba_api.v1alpha1.schema import CUSTOM_KINDS, all_crds_yaml
from matrix_size import LARGE
from operator_objects import nano_config
from operator_process import running_operator
from testcluster.build import ensure
from testcluster.control_plane import ControlPlane, running_control_plane

pytestmark = pytest.mark.kube
IMAGE = {"reference": "registry.example.com/models/nano:v3", "pullPolicy": "IfNotPresent"}


def deployed(plane: ControlPlane, namespace: str, **mount: Any) -> None:
    model = {
        "uri": f"oci://{IMAGE['reference']}", "config": nano_config(), "secretRef": {"name": "registry"},
        **mount,
    }  # fmt: skip
    spec = {"model": model, "memory": {"deviceMemory": "80Gi"}}
    plane.apply(
        {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "nano"}, "spec": spec},
        namespace,
    )


def degraded(plane: ControlPlane, namespace: str) -> tuple[str, str]:
    status = (plane.get("mdep", "nano", namespace) or {}).get("status") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    one = conditions.get("Degraded", {})
    return one.get("reason", ""), one.get("message", "")


@pytest.fixture(scope="module")
def with_images(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Yield a control plane beside the usual one, whose API server has volumes of images."""
    with running_control_plane(ensure(), features=("ImageVolume",)) as plane:
        plane.kubectl("apply", "--server-side", "-f", "-", stdin=all_crds_yaml())
        for kind in CUSTOM_KINDS:
            plane.wait_established(kind.name)
        yield plane


@pytest.mark.skipif(not LARGE, reason="a second control plane: MAMBASERVE_GATES=large")
@pytest.mark.timeout(600)
def test_the_volume_of_an_image_is_stored_as_the_operator_writes_it(
    with_images: ControlPlane, tmp_path: Path
) -> None:
    plane, namespace = with_images, with_images.create_namespace()
    with running_operator(plane.kubeconfig, tmp_path / "operator.log", ["--namespace", namespace]):
        deployed(plane, namespace, imageVolume={"path": "/models"})
        engines = plane.wait_for(lambda: plane.get("deployment", "nano-engine", namespace), "the engines")
        pod = engines["spec"]["template"]["spec"]
        assert [volume["image"] for volume in pod["volumes"] if "image" in volume] == [IMAGE]
        assert {"name": "registry"} in pod["imagePullSecrets"]
        pods = plane.wait_for(
            lambda: plane.list("pods", namespace, f"{names.LABEL_COMPONENT}=engine"), "a pod of an engine"
        )
        assert [volume["image"] for volume in pods[0]["spec"]["volumes"] if "image" in volume] == [IMAGE]
        assert degraded(plane, namespace)[0] != "ImageVolumesNotServed"


@pytest.mark.timeout(600)
def test_a_cluster_without_volumes_of_images_is_named_and_a_download_helps(
    plane: ControlPlane, tmp_path: Path
) -> None:
    namespace = plane.create_namespace()
    with running_operator(plane.kubeconfig, tmp_path / "operator.log", ["--namespace", namespace]):
        deployed(plane, namespace, imageVolume={"path": "/models"})
        plane.wait_for(lambda: degraded(plane, namespace)[0] == "ImageVolumesNotServed", "the condition")
        assert "spec.model.imageVolume" in degraded(plane, namespace)[1]
        assert plane.get("deployment", "nano-engine", namespace) is None
        deployed(plane, namespace)
        plane.wait_for(lambda: plane.get("deployment", "nano-engine", namespace), "the engines")
        plane.wait_for(lambda: degraded(plane, namespace)[0] != "ImageVolumesNotServed", "no complaint")
    plane.delete_namespace(namespace)
