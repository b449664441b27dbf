"""On a real API server, with its own controllers: the engines that hold least are the ones that go."""

import json
from pathlib import Path
from typing import Any

import pytest

from mamba_api import names
from metrics_of_pods import engine_text, pod_addresses
from operator_objects import nano_config
from operator_process import running_operator
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
CHECKPOINTS = (5, 900, 40, 300)
"""Checkpoints of each engine, in the order of their names."""


def engines(plane: ControlPlane, namespace: str) -> list[dict[str, Any]]:
    selector = ",".join(f"{key}={value}" for key, value in names.selector("nano", "engine").items())
    found = plane.list("pods", namespace, selector)
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def test_engines_with_the_least_in_their_caches_go_first(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    spec = {
        "model": {"uri": "pvc://models/nano", "config": nano_config()},
        "memory": {"deviceMemory": "80Gi"},
        "replicas": len(CHECKPOINTS),
    }
    nano = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "nano"}, "spec": spec}
    with (
        running_operator(plane.kubeconfig, tmp_path / "log", ["--namespace", namespace]) as operator,
        pod_addresses() as addresses,
    ):
        plane.apply(nano, namespace)
        plane.wait_for(lambda: len(engines(plane, namespace)) == len(CHECKPOINTS), "the engines")
        held: dict[int, str] = {}
        for pod, count in zip(engines(plane, namespace), CHECKPOINTS, strict=True):
            name = held[count] = str(pod["metadata"]["name"])
            ip = addresses.add(lambda held=count: engine_text(running=0, waiting=0, checkpoints=held))
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [ready]}
            plane.api.request(
                "PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status},
                content_type="application/merge-patch+json",
            )  # fmt: skip
        plane.wait_for(
            lambda: (plane.get("mdep", "nano", namespace) or {})["status"].get("readyReplicas") == len(held),
            "all to be ready",
        )
        plane.kubectl(
            "patch", "mdep/nano", "-n", namespace, "--type=merge", "-p", json.dumps({"spec": {"replicas": 2}})
        )
        plane.wait_for(
            lambda: (
                {
                    str(pod["metadata"]["name"])
                    for pod in engines(plane, namespace)
                    if "deletionTimestamp" not in pod["metadata"]
                }
                == {held[900], held[300]}
            ),
            f"the two with the most to be left; {operator.text[-3000:]}",
        )
