"""An operator of several namespaces with the chart's rules in each.

One namespace goes and comes again; two releases are configured for the same one.
"""

from pathlib import Path
from typing import Any

import pytest

from mamba_api import names
from operator_objects import nano_config
from operator_process import running_operator
from parsed_yaml import load_all_yaml
from service_account import as_account
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
CHART = Path(__file__).parents[2] / "charts/mambaserve"


def rights(plane: ControlPlane, home: str, namespaces: list[str]) -> list[dict[str, Any]]:
    """Return account and roles of the chart for an operator of these namespaces."""
    text = plane.helm(
        "template", "rel", str(CHART), "-n", home, "--set", f"watchNamespaces={{{','.join(namespaces)}}}"
    )
    kinds = ("ServiceAccount", "Role", "RoleBinding")
    return [one for one in load_all_yaml(text) if one and one["kind"] in kinds]


def deploy(plane: ControlPlane, namespace: str) -> None:
    model = {"uri": "pvc://models/nano", "config": nano_config()}
    spec = {"model": model, "memory": {"deviceMemory": "80Gi"}}
    made = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "nano"}, "spec": spec}
    plane.apply(made, namespace)


def scaling_up(plane: ControlPlane, namespace: str) -> bool:
    """Return whether the operator's watches have delivered the consequences of its writes."""
    status = (plane.get("mdep", "nano", namespace) or {}).get("status") or {}
    reasons = {one["type"]: one["reason"] for one in status.get("conditions") or ()}
    return reasons.get("Progressing") == "ScalingUp"


def engines(plane: ControlPlane, namespace: str) -> int:
    return int((plane.get("deployment", "nano-engine", namespace) or {})["spec"]["replicas"])


@pytest.mark.slow
def test_a_namespace_that_is_gone_takes_no_other_from_the_operator_and_is_served_when_it_is_back(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    other = plane.create_namespace()
    plane.apply(rights(plane, namespace, [namespace]), namespace)
    kubeconfig = as_account(plane, namespace, "rel-mambaserve", tmp_path / "kubeconfig")
    arguments = ["--namespace", namespace, "--namespace", other]
    settings = {"MAMBASERVE_LEASE_NAMESPACE": namespace, "MAMBASERVE_LEASE": "rel-mambaserve-operator"}
    with running_operator(kubeconfig, tmp_path / "operator.log", arguments, **settings) as operator:
        deploy(plane, namespace)
        plane.wait_for(lambda: scaling_up(plane, namespace), f"{namespace} to be served")
        assert "namespace_left_out" in operator.text

        theirs = [one for one in rights(plane, namespace, [other]) if one["metadata"]["namespace"] == other]
        plane.apply(theirs)
        deploy(plane, other)
        plane.wait_for(lambda: scaling_up(plane, other), f"{other} to be served")

        plane.kubectl("delete", "rolebinding", "rel-mambaserve", "-n", other)
        plane.wait_for(lambda: operator.text.count("namespace_left_out") == 2, f"{other} to be left out")
        plane.kubectl("scale", "mdep/nano", "--replicas=3", "-n", namespace)
        plane.wait_for(lambda: engines(plane, namespace) == 3, f"{namespace} to be served still")
        assert operator.process.poll() is None
        assert operator.stop() == 0
    plane.delete_namespace(other)


def test_of_two_releases_that_were_told_the_same_namespace_the_second_leaves_it_alone_and_says_so(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    elsewhere = plane.create_namespace()
    mine = ["--namespace", namespace]
    with running_operator(plane.kubeconfig, tmp_path / "first.log", mine):
        deploy(plane, namespace)
        plane.wait_for(lambda: scaling_up(plane, namespace), f"{namespace} to be served")
        before = generation(plane, namespace)
        with running_operator(
            plane.kubeconfig, tmp_path / "second.log", mine, MAMBASERVE_LEASE_NAMESPACE=elsewhere
        ) as second:
            plane.wait_for(lambda: left(plane, namespace), "the second one to say so")
            plane.kubectl("annotate", "mdep/nano", "-n", namespace, "touched=1")
            plane.wait_for(lambda: second.counted("watch_events") > 0, "its watches")

            assert f"{namespace}/mambaserve-operator" in left(plane, namespace)
            assert "namespace_of_another" in second.text
            assert second.counted("child_changes") == 0
            assert generation(plane, namespace) == before
    plane.delete_namespace(elsewhere)


def generation(plane: ControlPlane, namespace: str) -> int:
    return int((plane.get("deployment", "nano-engine", namespace) or {})["metadata"]["generation"])


def left(plane: ControlPlane, namespace: str) -> str:
    """Return the operator's text about an object that it leaves alone."""
    found = plane.list("events", namespace)
    return next((one["message"] for one in found if one["reason"] == "LeftToAnother"), "")
