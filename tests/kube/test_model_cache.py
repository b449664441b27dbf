"""The loader on a real API server with its Job controller: what it is made of, what follows from how it ends.

No kubelet runs its pods; the test writes their status as one does.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from mamba_api import names
from mamba_api.names import METRIC_DOWNLOADED, METRIC_TO_DOWNLOAD
from mamba_operator.model.download_poller import DOWNLOAD_POLL_SECONDS
from model_loads import COMMIT, REPORT
from operator_process import running_operator
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
ENGINE = "nano-engine"
LOADER = "127.9.8.7"
"""Loopback address of the loader's pod: requests to that pod reach this machine."""


class Cache:
    """A namespace with an operator."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace

    def apply(self, name: str, uri: str, adapters: dict[str, str] | None = None, **engine: Any) -> None:
        beside = [{"name": adapter, "uri": source} for adapter, source in (adapters or {}).items()]
        spec = {
            "model": {"uri": uri, "cache": {"size": "40Gi"}, **({"adapters": beside} if beside else {})},
            "memory": {"deviceMemory": "80Gi"},
            "engine": engine,
        }
        made = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": spec}
        self.plane.apply(made, self.namespace)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        return self.plane.get(kind, name, self.namespace)

    def jobs(self, name: str) -> list[dict[str, Any]]:
        return self.plane.list("jobs", self.namespace, f"app.kubernetes.io/instance={name}")

    def pod(self, name: str, *, but: str = "") -> dict[str, Any]:
        selector = ",".join(f"{key}={value}" for key, value in names.selector(name, "loader").items())

        def found() -> list[dict[str, Any]]:
            pods = self.plane.list("pods", self.namespace, selector)
            return [one for one in pods if one["metadata"]["name"] != but]

        return dict(self.plane.wait_for(found, "a pod of the loader")[0])

    def runs(self, pod: dict[str, Any], address: str) -> None:
        """Report the loader's pod as running, as a kubelet does."""
        self._status(pod, {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]})

    def ends(self, pod: dict[str, Any], code: int, message: str) -> None:
        """Report the loader's pod as ended, as a kubelet does."""
        ended = {"exitCode": code, "message": message, "reason": "Error" if code else "Completed"}
        status = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [
                {"name": "loader", "image": "i", "imageID": "", "ready": False, "restartCount": 0,
                 "state": {"terminated": ended}},
            ],
        }  # fmt: skip
        self._status(pod, status)

    def _status(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        self.plane.kubectl(
            "patch", "pod", pod["metadata"]["name"], "-n", self.namespace, "--subresource=status",
            "--type=merge", "-p", json.dumps({"status": status}),
        )  # fmt: skip

    def condition(self, name: str, kind: str) -> dict[str, str]:
        status = (self.get("mdep", name) or {}).get("status") or {}
        found = {one["type"]: one for one in status.get("conditions") or ()}
        return found.get(kind) or {"status": "", "reason": "", "message": ""}

    def message(self, name: str) -> str:
        return self.condition(name, "Progressing")["message"]

    def becomes(self, name: str, kind: str, reason: str, *, saying: str = "") -> str:
        """Wait for the reason with a message that has ``saying`` in it, and return that message.

        One reason may pass through several messages: a download waits for its volume first.
        """

        def found() -> dict[str, str] | None:
            one = self.condition(name, kind)
            return one if one["reason"] == reason and saying in one["message"] else None

        return str(self.plane.wait_for(found, f"{kind} of {name} to be {reason} {saying}")["message"])


@pytest.fixture(scope="module")
def cache(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
    namespace = plane.create_namespace()
    log: Path = tmp_path_factory.mktemp("operator") / "operator.log"
    with running_operator(plane.kubeconfig, log, ["--namespace", namespace]):
        yield Cache(plane, namespace)
    plane.delete_namespace(namespace)


def test_the_plan_is_known_and_engines_are_made_when_the_model_is_downloaded(cache: Cache) -> None:
    cache.apply("nano", "hf://org/model@main")
    pod = cache.pod("nano")
    cache.becomes("nano", "Progressing", "DownloadingModel", saying="hf://org/model@main")
    assert cache.condition("nano", "Planned")["status"] == "Unknown"
    assert cache.get("deployment", "nano") is not None, "gateways need no model"
    assert cache.get("deployment", ENGINE) is None
    assert pod["spec"]["containers"][0]["args"][:2] == ["download", "hf://org/model@main"]

    cache.ends(pod, 0, REPORT.text())
    cache.becomes("nano", "Planned", "PlanComputed")
    engine = cache.plane.wait_for(lambda: cache.get("deployment", ENGINE), "the engines")
    [container] = engine["spec"]["template"]["spec"]["containers"]
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in container["env"]
    config = cache.get("configmap", ENGINE)
    assert config is not None
    assert json.loads(config["data"]["engine.json"])["model"] == f"hf://org/model@{COMMIT}"
    status = (cache.get("mdep", "nano") or {})["status"]
    assert {one["item"]: one["bytes"] for one in status["plan"]["ledger"]}["weights"] == REPORT.weights.bytes  # type: ignore[union-attr]

    # What was found stays when its pod and its Job are gone.
    [job] = cache.jobs("nano")
    cache.plane.kubectl("delete", "job", job["metadata"]["name"], "-n", cache.namespace)
    cache.plane.kubectl("annotate", "mdep/nano", "touched=1", "-n", cache.namespace)
    cache.becomes("nano", "Planned", "PlanComputed")

    # Another model is downloaded by another Job, while engines stay as they are.
    cache.apply("nano", "hf://org/other")
    cache.becomes("nano", "Progressing", "DownloadingModel", saying="hf://org/other")
    second = cache.pod("nano", but=pod["metadata"]["name"])
    [other] = cache.jobs("nano")
    assert other["metadata"]["name"] != job["metadata"]["name"]
    now = cache.get("deployment", ENGINE)
    assert now is not None
    assert now["spec"]["template"] == engine["spec"]["template"]

    # And all of it goes with its owner.
    cache.plane.kubectl("delete", "mdep", "nano", "-n", cache.namespace)
    cache.plane.wait_for(lambda: not cache.jobs("nano"), "the loader to be collected")
    cache.plane.wait_for(
        lambda: cache.get("pod", second["metadata"]["name"]) is None, "its pod to be collected"
    )


def test_adapters_are_downloaded_beside_the_model_and_before_engines_change(
    cache: Cache,
) -> None:
    def lora() -> list[str]:
        config = cache.get("configmap", "tuned-engine")
        return list(json.loads(config["data"]["engine.json"]).get("lora", ())) if config is not None else []

    def adapters(pod: dict[str, Any]) -> str:
        env = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
        return str(env["MAMBASERVE_DOWNLOAD_ADAPTER"])

    cache.apply("tuned", "hf://org/model", {"sql": "hf://org/sql"})
    pod = cache.pod("tuned")
    assert adapters(pod) == "hf://org/sql"
    first = "a" * 40
    cache.ends(pod, 0, replace(REPORT, adapters=(first,)).text())
    cache.becomes("tuned", "Planned", "PlanComputed")
    cache.plane.wait_for(lambda: lora() == [f"sql=hf://org/sql@{first}"], "the adapter in the settings")
    ledger = (cache.get("mdep", "tuned") or {})["status"]["plan"]["ledger"]
    assert [one["bytes"] > 0 for one in ledger if one["item"] == "places for adapters"] == [True]

    # The engines that run keep their adapters until the other one is there.
    cache.apply("tuned", "hf://org/model", {"sql": "hf://org/sql", "french": "hf://org/french"})
    second = cache.pod("tuned", but=pod["metadata"]["name"])
    assert adapters(second) == "hf://org/sql hf://org/french"
    assert lora() == [f"sql=hf://org/sql@{first}"]
    cache.ends(second, 0, replace(REPORT, adapters=(first, "b" * 40)).text())
    cache.plane.wait_for(lambda: len(lora()) == 2, "both adapters in the settings")
    config = cache.get("configmap", "tuned-engine")
    assert config is not None
    assert config["data"]["adapters.txt"] == "sql\nfrench\n", "the names that gateways read"


def test_bytes_that_a_loader_tells_are_in_the_status_and_cost_a_write_in_ten_seconds(cache: Cache) -> None:
    cache.apply("large", "hf://org/large")
    pod = cache.pod("large")
    registry = CollectorRegistry()
    done, total = (Gauge(name, "-", registry=registry) for name in (METRIC_DOWNLOADED, METRIC_TO_DOWNLOAD))
    done.set(1 << 30)
    total.set(17 << 30)
    server, _ = start_http_server(names.HTTP_PORT, LOADER, registry)
    try:
        cache.runs(pod, LOADER)
        said = f"by pod {pod['metadata']['name']}: 1.0Gi of 17.0Gi"
        cache.plane.wait_for(lambda: said in cache.message("large"), "the bytes in the status", timeout=60)
        begin, versions = time.monotonic(), set[str]()

        def further() -> bool:
            done.inc(1 << 27)
            versions.add((cache.get("mdep", "large") or {})["metadata"]["resourceVersion"])
            return said not in cache.message("large")

        cache.plane.wait_for(further, "more bytes in the status", timeout=60)
        assert len(versions) - 1 <= (time.monotonic() - begin) / DOWNLOAD_POLL_SECONDS + 1
    finally:
        server.shutdown()
        server.server_close()
    cache.ends(pod, 0, REPORT.text())
    cache.becomes("large", "Planned", "PlanComputed")
    cache.plane.kubectl("delete", "mdep", "large", "-n", cache.namespace)


def test_a_download_that_cannot_succeed_ends_at_once_and_a_deleted_job_tries_again(cache: Cache) -> None:
    cache.apply("wrong", "hf://org/missing")
    pod = cache.pod("wrong")
    cache.ends(pod, 2, "error: hf://org/missing: the Hub has no model org/missing")
    message = cache.becomes("wrong", "Degraded", "DownloadFailed")
    assert "the Hub has no model org/missing; check spec.model.uri" in message
    assert "the operator tries again at" in message
    assert cache.condition("wrong", "Ready")["reason"] == "DownloadFailed"
    [job] = cache.jobs("wrong")

    cache.plane.kubectl("delete", "job", job["metadata"]["name"], "-n", cache.namespace)
    again = cache.pod("wrong", but=pod["metadata"]["name"])
    assert cache.jobs("wrong")[0]["metadata"]["uid"] != job["metadata"]["uid"]

    # A corrected image replaces a loader that is not done.
    cache.apply("wrong", "hf://org/missing", image="registry.test/engine:corrected")
    third = cache.plane.wait_for(
        lambda: [
            one
            for one in cache.jobs("wrong")
            if one["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.test/engine:corrected"
        ],
        "the loader to be made anew",
    )
    assert len(third) == 1
    assert cache.get("pod", again["metadata"]["name"]) is None, "two of them never run at once"
    cache.plane.kubectl("delete", "mdep", "wrong", "-n", cache.namespace)
