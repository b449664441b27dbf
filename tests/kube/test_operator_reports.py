"""On a real API server: what gateways say of their Redis, and a kind that the cluster may lack."""

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mamba_api import names
from operator_objects import TOLD, nano_config
from operator_process import OperatorProcess, running_operator
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
CRD = Path(__file__).parents[1] / "data/inferencepools.yaml"
POOLS = "inferencepools.inference.networking.k8s.io"


@pytest.fixture
def operator(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[OperatorProcess]:
    with running_operator(plane.kubeconfig, tmp_path / "operator.log", ["--namespace", namespace]) as running:
        yield running


def deployment(**spec: Any) -> dict[str, Any]:
    model = {"uri": "pvc://models/nano", "config": nano_config()}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "nano"},
        "spec": {"model": model, "memory": {"deviceMemory": "80Gi"}, **spec},
    }


def degraded(plane: ControlPlane, namespace: str) -> tuple[str, str, str]:
    found = (plane.get("mdep", "nano", namespace) or {}).get("status", {}).get("conditions", [])
    return next(
        ((one["status"], one["reason"], one["message"]) for one in found if one["type"] == "Degraded"),
        ("", "", ""),
    )


def becomes(plane: ControlPlane, namespace: str, *wanted: str) -> None:
    plane.wait_for(lambda: degraded(plane, namespace)[:2] == wanted, f"Degraded to be {wanted}")


def report(plane: ControlPlane, namespace: str, said: str | None) -> None:
    """Write or remove the report as a gateway's pod does."""
    data = {"data": {names.INDEX_TROUBLE_KEY: said}}
    plane.kubectl("patch", "configmap", "nano-wake", "-n", namespace, "--type=merge", "-p", json.dumps(data))


def test_a_redis_that_gateways_cannot_use_is_a_condition_for_as_long_as_they_say_so(
    plane: ControlPlane, namespace: str, operator: OperatorProcess
) -> None:
    plane.apply(deployment(prefixIndex={"redis": {"url": "redis://redis:6379/0"}}), namespace)
    becomes(plane, namespace, "False", "AsExpected")
    plane.wait_for(lambda: plane.get("configmap", "nano-wake", namespace), "the ConfigMap of reports")

    now = datetime.now(UTC)
    report(plane, namespace, f"{now.isoformat(timespec='seconds')} a gateway cannot use Redis: refused")
    becomes(plane, namespace, "True", "PrefixIndexUnavailable")
    assert "a gateway cannot use Redis: refused" in degraded(plane, namespace)[2]
    # The operator writes events beside its passes, so that one may follow the status that it tells of.
    plane.wait_for(
        lambda: "PrefixIndexUnavailable" in {one["reason"] for one in plane.list("events", namespace)},
        "the event of the condition",
    )

    report(plane, namespace, None)
    becomes(plane, namespace, "False", "AsExpected")
    assert operator.process.poll() is None


@pytest.fixture
def no_pools(plane: ControlPlane) -> Iterator[None]:
    """Remove the kind from the cluster after the test."""
    yield
    plane.kubectl("delete", "crd", POOLS, "--ignore-not-found", "--wait=true", "--timeout=60s")


def touch(plane: ControlPlane, namespace: str, value: str) -> None:
    """Make the operator look at once and not in a while."""
    plane.kubectl("annotate", "mdep/nano", f"touched={value}", "--overwrite", "-n", namespace)


@pytest.mark.slow
@pytest.mark.usefixtures("no_pools")
def test_a_pool_is_made_mended_and_removed_and_a_cluster_without_the_kind_is_told(
    plane: ControlPlane, namespace: str, operator: OperatorProcess
) -> None:
    plane.apply(deployment(gateway={"inferencePool": {"proxyNamespace": "envoy"}}), namespace)
    becomes(plane, namespace, "True", "KindNotServed")
    assert "InferencePool" in degraded(plane, namespace)[2]
    # All else is there, and the operator goes on.
    plane.wait_for(lambda: plane.get("deployment", "nano", namespace), "the gateway")
    service = plane.get("service", "nano", namespace) or {}
    assert operator.process.poll() is None
    assert operator.counted("reconcile_errors") == 0

    plane.kubectl("apply", "--server-side", "-f", str(CRD))
    plane.wait_established(POOLS)
    touch(plane, namespace, "1")
    plane.wait_for(lambda: plane.get(POOLS, "nano", namespace), "the pool")
    becomes(plane, namespace, "False", "AsExpected")
    pool = plane.get(POOLS, "nano", namespace) or {}
    owner = plane.get("mdep", "nano", namespace) or {}
    assert [each["uid"] for each in pool["metadata"]["ownerReferences"]] == [owner["metadata"]["uid"]]
    picker = pool["spec"]["endpointPickerRef"]
    assert (picker["group"], picker["kind"], picker["name"], picker["failureMode"]) == (
        "", "Service", "nano", "FailClose",
    )  # fmt: skip
    assert picker["port"]["number"] in {port["port"] for port in service["spec"]["ports"]}
    engine = plane.get("deployment", "nano-engine", namespace) or {}
    labels = engine["spec"]["template"]["metadata"]["labels"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()

    edit = {"spec": {"targetPorts": [{"number": 9}]}}
    plane.kubectl("patch", POOLS, "nano", "-n", namespace, "--type=merge", "-p", json.dumps(edit))
    touch(plane, namespace, "2")
    plane.wait_for(
        lambda: (plane.get(POOLS, "nano", namespace) or {})["spec"] == pool["spec"], "the pool to be mended"
    )

    without = {"spec": {"gateway": {"inferencePool": None}}}
    plane.kubectl("patch", "mdep", "nano", "-n", namespace, "--type=merge", "-p", json.dumps(without))
    plane.wait_for(lambda: plane.get(POOLS, "nano", namespace) is None, "the pool to go")
    becomes(plane, namespace, "False", "AsExpected")


@contextmanager
def engine_with_a_plan() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of an engine whose admin port shows its plan, and the credentials of its callers."""
    shown: list[str] = []
    address = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(254) + 1}.1"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers.get("Authorization", ""))
            body = json.dumps(TOLD).encode()
            self.send_response(200 if self.path == "/admin/plan" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer((address, names.ADMIN_PORT), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield address, shown
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
def test_the_plan_of_an_engine_is_shown_for_a_model_that_the_operator_does_not_know(
    plane: ControlPlane, namespace: str, operator: OperatorProcess
) -> None:
    def pods() -> list[dict[str, Any]]:
        return plane.list("pods", namespace, f"{names.LABEL_COMPONENT}=engine")

    def row() -> str:
        return plane.kubectl("get", "mdep", "nano", "-n", namespace, "--no-headers")

    hub = {"model": {"uri": "hf://org/model"}, "memory": {"deviceMemory": "80Gi"}}
    plane.apply({**deployment(), "spec": hub}, namespace)
    plane.wait_for(pods, "the engine's pod")
    plane.wait_for(lambda: "Auto" in row(), "a strategy that nobody knows yet")
    before = plane.get("deployment", "nano-engine", namespace)
    assert before is not None
    with engine_with_a_plan() as (address, shown):
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [ready]}
        name = pods()[0]["metadata"]["name"]
        plane.api.request(
            "PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status},
            content_type="application/merge-patch+json",
        )  # fmt: skip
        plane.wait_for(lambda: "ExtraBuffer" in row(), f"the engine's plan; {operator.text[-2000:]}")

    found = plane.get("mdep", "nano", namespace)
    assert found is not None
    [condition] = [one for one in found["status"]["conditions"] if one["type"] == "Planned"]
    assert (condition["status"], condition["reason"]) == ("True", "PlanReported")
    assert found["status"]["plan"]["slots"] == TOLD["slots"]
    assert all(one.startswith("Bearer ") for one in shown)
    after = plane.get("deployment", "nano-engine", namespace)
    assert after is not None
    assert after["spec"] == before["spec"]
