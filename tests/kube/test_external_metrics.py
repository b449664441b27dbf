"""The external metrics API of an installed operator: the cluster's own HorizontalPodAutoscaler obeys it."""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mamba_api import names
from metrics_of_pods import PodAddresses, engine_text, gateway_text, pod_addresses
from parsed_yaml import load_all_yaml
from prefork import FORK_SERVER
from service_account import as_account
from testcluster.control_plane import ControlPlane
from testcluster.errors import CommandFailed

pytestmark = [pytest.mark.kube, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/mambaserve"
SCALED_OBJECTS = ROOT / "tests/data/scaledobjects.yaml"
EXAMPLE = list(load_all_yaml((ROOT / "examples/09-external-autoscaler/mamba.yaml").read_text()))
DESIRED = "mambaserve_operator_scaling_desired_engines"
API = "/apis/external.metrics.k8s.io/v1beta1"
SERVICE = "rel-mambaserve-ext-metrics"
PATIENCE = 120.0
ONE, ALL = "one namespace", "the whole cluster"
POD_IP = "192.0.2.7"


class World:
    """An installed operator, and pods that say what `load` is."""

    def __init__(self, plane: ControlPlane, namespace: str, log: Path, addresses: PodAddresses) -> None:
        self.plane, self.namespace, self._log, self._addresses = plane, namespace, log, addresses
        self.load: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """(running, waiting) of each engine."""
        self._known: dict[str, str] = {}

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def play_kubelet(self) -> None:
        """Run the existing pods: they are ready, and answer."""
        for pod in self.plane.list("pods", self.namespace):
            name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
            if name in self._known or "deletionTimestamp" in pod["metadata"]:
                continue
            if labels[names.LABEL_COMPONENT] == "engine":
                address = self._addresses.add(self._engine)
            else:
                address = self._addresses.add(lambda: gateway_text(in_flight=0))
            self._known[name] = address
            now = "2026-01-01T00:00:00Z"
            status = {
                "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
                "conditions": [
                    {"type": kind, "status": "True", "lastTransitionTime": now}
                    for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
                ],
            }  # fmt: skip
            self.plane.api.request(
                "PATCH", f"/api/v1/namespaces/{self.namespace}/pods/{name}/status", {"status": status},
                content_type="application/merge-patch+json",
            )  # fmt: skip
        for pod in self.plane.list("pods", self.namespace):
            # No kubelet says that they have ended.
            if "deletionTimestamp" in pod["metadata"]:
                self.plane.api.request(
                    "DELETE", f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}",
                    {"gracePeriodSeconds": 0},
                )  # fmt: skip

    def _engine(self) -> str:
        running, waiting = self.load()
        return engine_text(running=running, waiting=waiting)

    def metric(self, metric: str, selector: str = "") -> list[dict[str, Any]]:
        """Read a metric through the API server, as the administrator does."""
        path = f"{API}/namespaces/{self.namespace}/{metric}"
        status, answer = self.plane.api.request(
            "GET", path + (f"?labelSelector={selector}" if selector else "")
        )
        return list(answer["items"]) if status == 200 else []

    def replicas(self) -> int:
        return int((self.plane.get("mdep", "hpa", self.namespace) or {})["spec"]["replicas"])

    def until(self, look: Callable[[], Any], what: str) -> Any:
        def played() -> Any:
            self.play_kubelet()
            return look()

        try:
            return self.plane.wait_for(played, what, timeout=PATIENCE)
        except Exception as error:
            hpa = self.plane.get("hpa", "hpa", self.namespace) or {}
            raise AssertionError(f"{error}; {hpa.get('status')}; {self.log[-3000:]}") from error


@pytest.fixture
def world(
    request: pytest.FixtureRequest, plane: ControlPlane, namespace: str, tmp_path: Path
) -> Iterator[World]:
    options = ["--set", "externalMetrics.enabled=true"]
    if request.param == ONE:
        options += ["--set", f"watchNamespaces={{{namespace}}}"]
    plane.helm("install", "rel", str(CHART), "-n", namespace, *options)
    if request.param == ALL:
        plane.kubectl("delete", "mdep", "--all", "--all-namespaces")  # earlier tests' objects
    log = tmp_path / "operator.log"
    with ExitStack() as stack:
        # Its autoscaler would ask for numbers every second as long as the cluster is there.
        stack.callback(plane.delete_namespace, namespace)
        stack.callback(plane.helm, "uninstall", "rel", "-n", namespace)
        release = plane.get("deployment", "rel-mambaserve", namespace)
        assert release is not None
        pod = release["spec"]["template"]["spec"]
        arguments = [
            re.sub(r"^(--(?:liveness|external-metrics)-port)=\d+$", r"\1=0", argument)
            for argument in pod["containers"][0]["args"]
        ]
        assert f"--external-metrics-service={SERVICE}" in arguments
        kubeconfig = as_account(plane, namespace, pod["serviceAccountName"], tmp_path / "kubeconfig")
        environment = {
            **os.environ, "MAMBASERVE_KUBECONFIG": str(kubeconfig), "MAMBASERVE_LEASE_NAMESPACE": namespace,
            "MAMBASERVE_LEASE": "rel-mambaserve-operator",
            "MAMBASERVE_SCALE_EVERY": "1", "OMP_NUM_THREADS": "1", "POD_IP": POD_IP,
        }  # fmt: skip
        out = stack.enter_context(log.open("wb", buffering=0))
        process = FORK_SERVER.start(
            "-m", "mamba_cli", *arguments, cwd=ROOT, stdout=out.fileno(), stderr=out.fileno(),
            env=environment,
        )  # fmt: skip
        stack.callback(process.wait, 20)
        stack.callback(process.terminate)
        world = World(plane, namespace, log, stack.enter_context(pod_addresses()))
        found = world.until(
            lambda: re.search(r'"external_metrics_served".*|.*external_metrics_served', world.log),
            "the server",
        )
        line = next(line for line in world.log.splitlines() if "external_metrics_served" in line)
        assert found
        lead_to(plane, namespace, int(re.findall(r"127\.0\.0\.1:(\d+)", line)[0]))
        yield world


def lead_to(plane: ControlPlane, namespace: str, port: int) -> None:
    """Route the Service to the operator's process; without nodes there is no other way to pods."""
    plane.kubectl("delete", "service", SERVICE, "-n", namespace)
    spec = {"type": "ExternalName", "externalName": "127.0.0.1"}
    plane.apply(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE}, "spec": spec}, namespace
    )
    patch = json.dumps({"spec": {"service": {"port": port}}})
    plane.kubectl("patch", "apiservice", "v1beta1.external.metrics.k8s.io", "--type=merge", "-p", patch)
    plane.kubectl(
        "wait", "--for=condition=Available", "apiservice/v1beta1.external.metrics.k8s.io", "--timeout=60s"
    )


def managers(plane: ControlPlane, namespace: str, field: str) -> set[str]:
    """Return the managers of a field of the spec."""
    found = json.loads(
        plane.kubectl("get", "mdep", "hpa", "-n", namespace, "-o", "json", "--show-managed-fields")
    )
    return {
        one["manager"]
        for one in found["metadata"]["managedFields"]
        if f"f:{field}" in one["fieldsV1"].get("f:spec", {})
    }


def example(**scaling: Any) -> list[dict[str, Any]]:
    """Return the example's two objects, with a shorter wait before engines are given up."""
    deployment, hpa = json.loads(json.dumps(EXAMPLE))
    deployment["spec"]["scaling"] |= {"scaleDownDelay": "2s", **scaling}
    return [deployment, hpa]


def assert_only_who_may_reads_and_all_rights_of_the_chart_are_used(world: World, engines: str) -> None:
    plane, namespace = world.plane, world.namespace
    world.until(lambda: world.metric(DESIRED), "a number")

    read = ("get", "--raw", f"{API}/namespaces/{namespace}/{DESIRED}")
    with pytest.raises(CommandFailed, match=r"(?i)forbidden"):
        plane.kubectl(*read, "--as=somebody", "--as-group=system:authenticated")
    rule = {"apiGroups": ["external.metrics.k8s.io"], "resources": [DESIRED], "verbs": ["list"]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "reader"}}
    plane.apply({**role, "rules": [rule]}, namespace)
    plane.kubectl("create", "rolebinding", "reader", "-n", namespace, "--role=reader", "--user=somebody-else")

    def has_the_number() -> bool:
        found = json.loads(plane.kubectl(*read, "--as=somebody-else", "--as-group=system:authenticated"))
        return [(one["metricLabels"], one["value"]) for one in found["items"]] == [({"name": "hpa"}, engines)]

    # The number of engines is changed before the metric is.
    world.until(has_the_number, f"the number {engines}")
    assert DESIRED in plane.kubectl("get", "--raw", API, "--as=somebody", "--as-group=system:authenticated")
    with pytest.raises(CommandFailed, match="available are mambaserve_operator_scaling_desired_engines"):
        plane.kubectl("get", "--raw", f"{API}/namespaces/{namespace}/bogus")
    assert plane.kubectl("get", "--raw", f"{API}/namespaces/elsewhere/{DESIRED}").count('"items": []')

    (one,) = (plane.get("endpointslices", SERVICE, namespace) or {})["endpoints"]
    assert one["addresses"] == [POD_IP]
    used = plane.used_by(f"{namespace}:rel-mambaserve")
    granted = {
        (verb, group, resource)
        for kind, name, where in (
            ("clusterrole", f"{namespace}-{SERVICE}", None),
            ("role", f"{namespace}-{SERVICE}", "kube-system"),
            ("role", SERVICE, namespace),
        )
        for rule in (plane.get(kind, name, where) or {"rules": []})["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert len(granted) == 5
    assert granted - used == set(), "granted and not used"
    # Other tests' namespaces may just be going away, and nobody may write into those.
    lines = [line for line in world.log.splitlines() if "being terminated" not in line]
    assert [line for line in lines if "forbidden" in line.lower()] == []


@pytest.mark.parametrize("world", [ONE], indirect=True)
def test_the_clusters_autoscaler_follows_what_engines_say_by_the_rights_of_one_namespace(
    world: World,
) -> None:
    plane, namespace = world.plane, world.namespace
    deployment, hpa = example(maxReplicas=3)
    hpa["spec"]["maxReplicas"] = 3
    plane.apply([deployment, hpa], namespace)
    world.until(lambda: world.metric(DESIRED, "name=hpa"), "a number")
    assert world.replicas() == 1

    world.load = lambda: (60, 100) if world.replicas() < 3 else (50, 0)
    world.until(lambda: world.replicas() == 3, "three engines")
    world.until(lambda: (plane.get("deploy", "hpa-engine", namespace) or {})["spec"]["replicas"] == 3, "pods")
    # The operator carries the number out, and has not written it.
    assert managers(plane, namespace, "replicas") == {"kube-controller-manager"}

    world.load = lambda: (0, 0)
    world.until(lambda: world.replicas() == 1, "one engine again")
    assert world.metric(DESIRED, "name=other") == []
    assert_only_who_may_reads_and_all_rights_of_the_chart_are_used(world, "1")


def test_the_examples_manifests_are_what_the_kinds_take(plane: ControlPlane, namespace: str) -> None:
    plane.kubectl("apply", "--server-side", "-f", str(SCALED_OBJECTS))
    try:
        plane.wait_established("scaledobjects.keda.sh")
        folder = ROOT / "examples/09-external-autoscaler"
        files = (folder / "mamba.yaml", *sorted((folder / "autoscalers").glob("keda*.yaml")))
        for file in files:
            taken = plane.kubectl(
                "apply",
                "--server-side",
                "--dry-run=server",
                "--validate=strict",
                "-n",
                namespace,
                "-f",
                str(file),
            )
            assert "serverside-applied" in taken
        wrong = (folder / "autoscalers/keda.yaml").read_text().replace("maxReplicaCount", "maxReplicas")
        with pytest.raises(CommandFailed, match="maxReplicas"):
            plane.kubectl(
                "apply", "--server-side", "--dry-run=server", "--validate=strict", "-n", namespace, "-f", "-",
                stdin=wrong,
            )  # fmt: skip
    finally:
        plane.kubectl("delete", "-f", str(SCALED_OBJECTS), "--wait=true")


@pytest.mark.parametrize("world", [ALL], indirect=True)
def test_what_is_beyond_the_bounds_is_refused_to_the_clusters_autoscaler_with_words(world: World) -> None:
    plane, namespace = world.plane, world.namespace
    deployment, hpa = example(maxReplicas=2)
    hpa["spec"] |= {"minReplicas": 3, "maxReplicas": 4}
    plane.apply([deployment, hpa], namespace)

    def refused() -> str:
        found = (plane.get("hpa", "hpa", namespace) or {}).get("status", {}).get("conditions", [])
        return next((one["message"] for one in found if one["reason"] == "FailedUpdateScale"), "")

    message = world.until(refused, "a refusal")

    assert "spec.replicas is above scaling.maxReplicas" in message
    assert world.replicas() == 1
    assert_only_who_may_reads_and_all_rights_of_the_chart_are_used(world, "1")
