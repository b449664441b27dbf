"""Keys for clients are switched on and off in a serving deployment, on a real API server.

No kubelet runs the pods; the test writes that they are ready as one does.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mamba_api import names
from mamba_operator.render.access import mounts_key
from operator_objects import nano_config
from operator_process import running_operator
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube


@pytest.fixture
def serving(plane: ControlPlane, tmp_path: Path) -> Iterator[str]:
    """Yield the namespace of a deployment `nano` with an operator."""
    namespace = plane.create_namespace()
    spec = {
        "model": {"uri": "pvc://models/nano", "config": nano_config()},
        "memory": {"deviceMemory": "80Gi"},
    }
    made = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "nano"}, "spec": spec}
    with running_operator(plane.kubeconfig, tmp_path / "operator.log", ["--namespace", namespace]):
        plane.apply(made, namespace)
        yield namespace
    plane.delete_namespace(namespace)


def has_key(plane: ControlPlane, namespace: str, name: str) -> bool:
    found: dict[str, Any] = plane.get("deployment", name, namespace) or {}
    return bool(found) and mounts_key(found["spec"]["template"])


def answer(plane: ControlPlane, namespace: str, component: names.Component, *, key: bool) -> None:
    """Make a pod of the component ready, with the key or without one."""
    selector = ",".join(f"{name}={value}" for name, value in names.selector("nano", component).items())

    def found() -> list[dict[str, Any]]:
        return [one for one in plane.list("pods", namespace, selector) if mounts_key(one) is key]

    [pod] = plane.wait_for(found, f"a pod of the {component}")
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    plane.kubectl(
        "patch", "pod", pod["metadata"]["name"], "-n", namespace, "--subresource=status", "--type=merge",
        "-p", json.dumps({"status": {"phase": "Running", "conditions": [ready]}}),
    )  # fmt: skip


def switch(plane: ControlPlane, namespace: str, auth: dict[str, Any] | None) -> None:
    patch = json.dumps({"spec": {"rollout": {"minReadyTime": "0s"}, "gateway": {"auth": auth}}})
    plane.kubectl("patch", "mdep", "nano", "-n", namespace, "--type=merge", "-p", patch)


@pytest.mark.slow
def test_gateways_show_a_key_before_engines_ask_for_it_and_until_none_does(
    plane: ControlPlane, serving: str
) -> None:
    switch(plane, serving, None)
    for component in ("engine", "gateway"):
        answer(plane, serving, component, key=False)
    switch(plane, serving, {"secretRef": {"name": "keys"}})
    plane.wait_for(lambda: has_key(plane, serving, "nano"), "gateways to get the key")
    secrets = [one["metadata"]["name"] for one in plane.list("secrets", serving)]
    assert [name for name in secrets if name.startswith("nano-engine-key-")]
    assert not has_key(plane, serving, "nano-engine"), "an old gateway is left that shows none"

    answer(plane, serving, "gateway", key=True)
    plane.wait_for(lambda: has_key(plane, serving, "nano-engine"), "engines to ask for the key")
    answer(plane, serving, "engine", key=True)

    switch(plane, serving, None)
    plane.wait_for(lambda: not has_key(plane, serving, "nano-engine"), "engines not to ask any more")
    assert has_key(plane, serving, "nano"), "an old engine is left that asks"
    answer(plane, serving, "engine", key=False)
    plane.wait_for(lambda: not has_key(plane, serving, "nano"), "gateways to give it up")
