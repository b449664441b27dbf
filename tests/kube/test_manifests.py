"""The plain manifests are the chart's objects, and `kubectl apply -k` of them is enough."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from scripts.manifests import FILE, NAMESPACE, RENDER, plain

from parsed_yaml import load_all_yaml
from testcluster.control_plane import ControlPlane
from testcluster.errors import CommandFailed

pytestmark = pytest.mark.kube

FOLDER = FILE.parent


def objects() -> list[dict[str, Any]]:
    return [each for each in load_all_yaml(FILE.read_text(encoding="utf-8")) if each]


@pytest.fixture
def applied(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(FOLDER))
    yield control_plane
    # Other tests of this control plane have objects of the kind.
    ours = [each for each in objects() if each["kind"] != "CustomResourceDefinition"]
    control_plane.kubectl("delete", "--wait=false", "-f", "-", stdin=yaml.safe_dump_all(ours))


def test_they_are_what_the_chart_gives_now(control_plane: ControlPlane) -> None:
    assert plain(control_plane.helm(*RENDER)) == FILE.read_text(encoding="utf-8"), "make manifests"


def test_one_command_makes_all_of_it(applied: ControlPlane) -> None:
    for each in objects():
        metadata = each["metadata"]
        assert applied.get(each["kind"], metadata["name"], metadata.get("namespace")), metadata["name"]
    applied.wait_established("mambadeployments.serving.mambaserve.io")
    account = f"system:serviceaccount:{NAMESPACE}:mambaserve"
    assert applied.may(account, "patch", "deployments.apps", "default")
    assert not applied.may(account, "list", "secrets", "default")


def test_the_operators_pod_passes_the_namespaces_pod_security(applied: ControlPlane) -> None:
    (deployment,) = (each for each in objects() if each["kind"] == "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}, "spec": spec}
    applied.kubectl("apply", "--dry-run=server", "-n", NAMESPACE, "-f", "-", stdin=yaml.safe_dump(pod))
    spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(CommandFailed, match="restricted"):
        applied.kubectl("apply", "--dry-run=server", "-n", NAMESPACE, "-f", "-", stdin=yaml.safe_dump(pod))
