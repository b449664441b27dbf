"""On a real API server, with its own controllers: a revision whose engines fail requests is taken back."""

import time
from pathlib import Path
from typing import Any

import pytest

from mamba_api import names
from metrics_of_pods import gateway_text, pod_addresses
from operator_objects import nano_config
from operator_process import running_operator
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
LONG_AGO = "2026-01-01T00:00:00Z"


def pods(plane: ControlPlane, namespace: str, component: Any) -> list[dict[str, Any]]:
    selector = ",".join(f"{key}={value}" for key, value in names.selector("nano", component).items())
    found = plane.list("pods", namespace, selector)
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def answers(plane: ControlPlane, namespace: str, pod: str, ip: str, since: str) -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": since}
    status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [ready]}
    plane.api.request(
        "PATCH", f"/api/v1/namespaces/{namespace}/pods/{pod}/status", {"status": status},
        content_type="application/merge-patch+json",
    )  # fmt: skip


def rolled_back(plane: ControlPlane, namespace: str) -> dict[str, Any] | None:
    """Return the status once it has a reason for the roll-back."""
    status: dict[str, Any] = (plane.get("mdep", "nano", namespace) or {}).get("status") or {}
    return status if (status.get("rollout") or {}).get("reason") else None


@pytest.mark.slow
def test_a_revision_that_answers_and_fails_requests_is_taken_back(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    def apply(image: str) -> None:
        spec = {
            "model": {"uri": "pvc://models/nano", "config": nano_config()},
            "memory": {"deviceMemory": "80Gi"},
            "engine": {"image": f"registry.test/engine:{image}"},
            "rollout": {"minReadyTime": "5m"},
        }
        plane.apply(
            {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "nano"}, "spec": spec},
            namespace,
        )

    def running() -> dict[str, str]:
        return {
            str(pod["spec"]["containers"][0]["image"]).rpartition(":")[2]: str(pod["metadata"]["name"])
            for pod in pods(plane, namespace, "engine")
        }

    begun = 0.0
    engines: dict[str, str] = {}

    def counted() -> str:
        """Report evenly spread requests of which the new engine fails every second one."""
        came = int((time.monotonic() - begun) * 10) if begun else 0
        attempts = {}
        if "good" in engines:
            attempts[engines["good"]] = (100 + came, 0)
        if "bad" in engines:
            attempts[engines["bad"]] = (came - came // 2, came // 2)
        return gateway_text(in_flight=0, attempts=attempts)

    with (
        running_operator(plane.kubeconfig, tmp_path / "log", ["--namespace", namespace]) as operator,
        pod_addresses() as addresses,
    ):
        apply("good")
        plane.wait_for(lambda: "good" in running() and pods(plane, namespace, "gateway"), "the pods")
        engines |= running()
        answers(plane, namespace, engines["good"], "127.0.0.9", LONG_AGO)
        [door] = [str(pod["metadata"]["name"]) for pod in pods(plane, namespace, "gateway")]
        answers(plane, namespace, door, addresses.add(counted), LONG_AGO)
        plane.wait_for(
            lambda: plane.get("configmap", "nano-last-ready", namespace), "a revision that was ready"
        )

        apply("bad")
        plane.wait_for(lambda: len(running()) == 2, "the new engine beside the old one")
        engines |= running()
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        answers(plane, namespace, engines["bad"], "127.0.0.10", now)
        begun = time.monotonic()
        plane.wait_for(
            lambda: set(running()) == {"good"},
            f"the new one to be taken back; {operator.text[-3000:]}",
            timeout=90,
        )

        assert running() == {"good": engines["good"]}, "what served serves on"
        # A pass removes the engine first, and writes the status afterwards.
        status = plane.wait_for(lambda: rolled_back(plane, namespace), "the status of the roll-back")
        assert status["rollout"]["reason"] == "ErrorRateRose"
        assert status["rollout"]["failedRevision"] not in ("", status["rollout"]["readyRevision"])
        said = {one["type"]: one for one in status["conditions"]}
        assert said["Ready"]["status"] == "True"
        assert said["Degraded"]["reason"] == "RolledBack"
        assert " failed 0 of" in said["Degraded"]["message"]
