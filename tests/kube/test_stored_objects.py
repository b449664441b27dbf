"""Stored objects that an earlier version of the CRD accepted and this one refuses.

Each gets a condition that names the error, and none keeps another from being served.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from mamba_api import names
from mamba_api.v1alpha1.schema import crd_yaml
from operator_objects import nano_config
from operator_process import running_operator
from parsed_yaml import load_yaml
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
CRD = "mambadeployments.serving.mambaserve.io"
GOOD: dict[str, Any] = {
    "model": {"uri": "pvc://models/nano", "config": nano_config()}, "memory": {"deviceMemory": "80Gi"},
}  # fmt: skip
STORED: dict[str, dict[str, Any]] = {
    "good": GOOD,
    "field-gone": {**GOOD, "oldField": {"x": 1}, "engine": {"gpuFraction": 0.5}},
    "word-gone": {**GOOD, "stateCache": {"strategy": "TripleBuffer"}},
    "bound-since": {**GOOD, "memory": {"utilization": 7}},
    "other-type": {"model": ["nano"]},
    "no-model": {},
    # With an open field in it, such as the config, the API server looks at all rules again at any write.
    "rule-since": {**GOOD, "replicas": 50, "scaling": {"maxReplicas": 2}},
}


@contextmanager
def an_earlier_crd(plane: ControlPlane) -> Iterator[None]:
    """Install a CRD that accepts any spec, for the length of the block; objects stay when it is upgraded."""
    crd = load_yaml(crd_yaml())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema.pop("x-kubernetes-validations", None)  # rules of the whole object name fields of the spec
    apply = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    plane.kubectl(*apply, stdin=yaml.safe_dump(crd))
    try:
        yield
    finally:
        plane.kubectl(*apply, stdin=crd_yaml())


def make(plane: ControlPlane, namespace: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Create the object, and return it with whether the API server accepted it."""
    made = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": spec}
    path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/mambadeployments"
    status, answer = plane.api.request("POST", path, made)
    return answer if status == 201 else {}


def reason(plane: ControlPlane, namespace: str, name: str, kind: str = "Planned") -> str:
    status = (plane.get("mdep", name, namespace) or {}).get("status") or {}
    return str({one["type"]: one["reason"] for one in status.get("conditions") or ()}.get(kind, ""))


def warned(plane: ControlPlane, namespace: str, name: str) -> str:
    """Return the text of a warning about an object whose status nobody may write."""
    return " ".join(
        one["message"]
        for one in plane.list("events", namespace)
        if one["involvedObject"]["name"] == name
        and (one["type"], one["reason"]) == ("Warning", "InvalidSpec")
    )


@pytest.mark.slow
def test_each_is_told_what_is_wrong_with_it_and_keeps_no_other_from_being_served(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    with an_earlier_crd(plane):

        def taken() -> bool:
            # The API server takes a changed CRD up a moment later.
            left = {name: spec for name, spec in STORED.items() if not plane.get("mdep", name, namespace)}
            return all(make(plane, namespace, name, spec) for name, spec in left.items())

        plane.wait_for(taken, "all to be stored")

    def refused() -> bool:
        return not make(plane, namespace, "late", STORED["word-gone"])

    plane.wait_for(refused, "this version of the CRD to be in force")
    plane.kubectl("delete", "mdep/late", "-n", namespace, "--ignore-not-found")
    with running_operator(plane.kubeconfig, tmp_path / "log", ["--namespace", namespace]) as operator:
        for name in ("good", "field-gone"):
            plane.wait_for(
                lambda name=name: reason(plane, namespace, name) == "PlanComputed", f"{name} to be served"
            )
        for name in ("word-gone", "bound-since", "no-model"):
            plane.wait_for(
                lambda name=name: reason(plane, namespace, name) == "InvalidSpec", f"{name} to be told"
            )
        said = plane.wait_for(lambda: warned(plane, namespace, "rule-since"), "the rule to be told")
        assert "spec.replicas is above scaling.maxReplicas" in said
        assert ".spec.model" in plane.wait_for(lambda: warned(plane, namespace, "other-type"), "the type")

        # The way out is an edit that mends it.
        plane.kubectl("scale", "mdep/rule-since", "--replicas=2", "-n", namespace)
        plane.wait_for(lambda: reason(plane, namespace, "rule-since") == "PlanComputed", "it to be served")
        assert operator.get("/healthz") == "ok"
