"""The control plane that the other tests here run on is a real one: its controllers work, its data stay."""

from typing import Any

import pytest

from testcluster.control_plane import ControlPlane
from testcluster.errors import ClusterError, CommandFailed

pytestmark = pytest.mark.kube


def deployment(name: str, replicas: int = 2) -> dict[str, Any]:
    labels = {"app": name}
    container = {"name": "main", "image": "example.test/none:1"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def config_map(name: str, owner: dict[str, Any] | None = None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if owner:
        reference = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "ConfigMap", **reference}]
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"key": "kept"}}


def test_the_components_call_themselves_by_the_version_they_are(control_plane: ControlPlane) -> None:
    version = control_plane.kubectl.json("version")

    assert version["serverVersion"]["gitVersion"] == "v1.34.4"
    assert version["clientVersion"]["gitVersion"] == "v1.34.4"


def test_a_deployment_gets_its_replica_set_and_pods(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.apply(deployment("web", replicas=2), namespace)

    pods = control_plane.wait_for(
        lambda: [*control_plane.list("pods", namespace)] if _count(control_plane, namespace) == 2 else [],
        "two pods",
    )
    [replica_set] = control_plane.list("replicasets", namespace)
    assert {pod["metadata"]["ownerReferences"][0]["name"] for pod in pods} == {
        replica_set["metadata"]["name"]
    }
    assert replica_set["metadata"]["ownerReferences"][0]["name"] == "web"


def _count(control_plane: ControlPlane, namespace: str) -> int:
    return len(control_plane.list("pods", namespace))


def test_what_an_object_owns_goes_with_it(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.apply(config_map("owner"), namespace)
    owner = control_plane.get("configmap", "owner", namespace)
    control_plane.apply([config_map("owned", owner), config_map("free")], namespace)

    control_plane.kubectl("delete", "configmap", "owner", "-n", namespace)

    control_plane.wait_for(
        lambda: control_plane.get("configmap", "owned", namespace) is None, "the owned object to be collected"
    )
    assert control_plane.get("configmap", "free", namespace) is not None


def test_a_restart_of_the_api_server_keeps_its_address_and_its_data(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.apply(config_map("before"), namespace)

    with control_plane.api_server_down():
        assert not control_plane.api.answers()
        with pytest.raises(CommandFailed, match="refused"):
            control_plane.kubectl("get", "configmaps", "-n", namespace)

    found = control_plane.get("configmap", "before", namespace)
    assert found is not None
    assert found["data"] == {"key": "kept"}


def test_the_controllers_go_on_after_a_restart_of_the_api_server(
    control_plane: ControlPlane, namespace: str
) -> None:
    with control_plane.api_server_down():
        pass

    control_plane.apply(deployment("after", replicas=1), namespace)

    control_plane.wait_for(lambda: _count(control_plane, namespace) == 1, "the pod of the deployment")


def test_a_deleted_namespace_takes_its_objects_with_it(control_plane: ControlPlane) -> None:
    name = control_plane.create_namespace("short-lived")
    control_plane.apply(deployment("web"), name)

    control_plane.delete_namespace(name)

    control_plane.wait_for(lambda: control_plane.get("namespace", name) is None, "the namespace to be gone")


def test_an_unknown_object_is_none_and_an_unknown_kind_an_error(
    control_plane: ControlPlane, namespace: str
) -> None:
    assert control_plane.get("configmap", "nowhere", namespace) is None
    with pytest.raises(ClusterError, match="no resource"):
        control_plane.get("unicorn", "any", namespace)
