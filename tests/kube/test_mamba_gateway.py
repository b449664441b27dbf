"""A MambaGateway on a real API server: one address, whose models follow the objects of its namespace.

No kubelet runs the pods. The test runs the gateway's command with the arguments, the account and the file of
models of the rendered pod, and the engines are HTTP servers of its own.
"""

import contextlib
import json
import os
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from operator_objects import nano_config
from operator_process import running_operator
from parsed_yaml import load_yaml
from prefork import FORK_SERVER
from service_account import as_account
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
ROOT = Path(__file__).parents[2]
BROKEN = load_yaml((ROOT / "tests/data/broken_gateway_specs.yaml").read_text())
OURS = "app.kubernetes.io/managed-by=mambaserve-operator,app.kubernetes.io/instance=team.gateway"
KINDS = (
    "serviceaccounts,roles,rolebindings,configmaps,services,networkpolicies,poddisruptionbudgets,deployments"
)
ROUTE_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "httproutes.gateway.networking.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    },
    "spec": {
        "group": "gateway.networking.k8s.io",
        "names": {
            "kind": "HTTPRoute", "listKind": "HTTPRouteList", "plural": "httproutes", "singular": "httproute",
        },
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1", "served": True, "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}  # fmt: skip


def own_address() -> str:
    """Return an address of this machine beside loopback, which no EndpointSlice may have."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with contextlib.suppress(OSError):
            probe.connect(("192.0.2.1", 9))
        address = str(probe.getsockname()[0])
    if address.startswith(("127.", "0.")):
        pytest.skip("this machine has loopback alone")
    return address


def gateway(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.mambaserve.io/v1alpha1",
        "kind": "MambaGateway",
        "metadata": {"name": "team"},
        "spec": {"selector": {"matchLabels": {"team": "a"}}, **spec},
    }


def deployment(name: str, served: str | None = None, **spec: Any) -> dict[str, Any]:
    model = {"uri": "pvc://models/nano", "config": nano_config()}
    return {
        "apiVersion": "serving.mambaserve.io/v1alpha1",
        "kind": "MambaDeployment",
        "metadata": {"name": name, "labels": {"team": "a"}},
        "spec": {
            "model": {**model, **({"servedName": served} if served else {})},
            "memory": {"deviceMemory": "80Gi"},
            "gateway": {"limits": {"queueTimeout": "1s"}},
            **spec,
        },
    }


@contextlib.contextmanager
def engine(model: str, address: str) -> Iterator[int]:
    """Run an engine of one model; yield its port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            card = {"id": model, "object": "model", "created": 1, "owned_by": "test"}
            known = {"/readyz": {"status": "ready"}, "/v1/models": {"object": "list", "data": [card]}}
            self.answer(200 if self.path in known else 404, known.get(self.path, {}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            choice = {"index": 0, "text": f"{model} as {body['model']}", "finish_reason": "stop"}
            self.answer(200, {"id": "1", "object": "text_completion", "created": 1, "choices": [choice]})

        def answer(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer((address, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def slice_of(name: str, address: str, port: int) -> dict[str, Any]:
    conditions = {"ready": True, "serving": True, "terminating": False}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{name}-test", "labels": {"kubernetes.io/service-name": f"{name}-engine"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        "endpoints": [
            {
                "addresses": [address],
                "conditions": conditions,
                "targetRef": {"kind": "Pod", "name": f"{name}-0"},
            }
        ],
    }


class RunningGateway:
    """The gateway of the object `team` as its pod would run it."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path) -> None:
        self.plane, self.namespace, self.folder = plane, namespace, folder
        self.file = folder / "models.json"
        self.log = folder / "gateway.log"
        self.text = ""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self.mount()
        pod = self.plane.get("deployment", "team", self.namespace) or {}
        [container] = pod["spec"]["template"]["spec"]["containers"]
        own = {
            "/run/mambaserve/models/models.json": str(self.file), "::": "127.0.0.1", "8000": "0",
        }  # fmt: skip
        account = pod["spec"]["template"]["spec"]["serviceAccountName"]
        kubeconfig = as_account(self.plane, self.namespace, account, self.folder / "team.kubeconfig")
        arguments = [own.get(word, word) for word in container["args"]]
        environment = {item["name"]: item["value"] for item in container["env"]} | {
            "MAMBASERVE_DRAIN_QUIET": "0"
        }
        with self.log.open("wb", buffering=0) as out:
            process = FORK_SERVER.start(
                "-m", "mamba_cli", *arguments, "--kubeconfig", str(kubeconfig),
                env={**os.environ, **environment}, cwd=ROOT, stdout=out.fileno(), stderr=out.fileno(),
            )  # fmt: skip
            try:
                self.until(lambda: "ready at" in self.log.read_text(), "the gateway's start")
                yield
            finally:
                process.terminate()
                process.wait(30)

    def mount(self) -> None:
        """Bring the mounted ConfigMap up to date, as a kubelet does."""
        stored = self.plane.get("configmap", "team-models", self.namespace) or {}
        if (text := stored["data"]["models.json"]) != self.text:
            self.text = text
            copy = self.file.with_suffix(".new")
            copy.write_text(text)
            copy.rename(self.file)

    def until(self, look: Callable[[], Any], what: str) -> Any:
        def mounted_look() -> Any:
            self.mount()
            return look()

        return self.plane.wait_for(mounted_look, what, timeout=60.0)

    def request(self, path: str, body: Any = None) -> tuple[int, Any]:
        match = re.search(r"ready at (http://[^\s\"]+)", self.log.read_text())
        assert match
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(match[1] + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def models(self) -> dict[str, str]:
        """Return the state of each listed name."""
        return {card["id"]: card["state"] for card in self.request("/v1/models")[1]["data"]}

    def served(self, model: str | None) -> str:
        """Return the answer of the engine that a request for a model reaches."""
        named = {} if model is None else {"model": model}
        status, body = self.request("/v1/completions", {**named, "prompt": "x"})
        return str(body["choices"][0]["text"]) if status == 200 else str(status)


def status(plane: ControlPlane, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = (plane.get("mgw", "team", namespace) or {}).get("status") or {}
    return found


def condition(plane: ControlPlane, namespace: str, type_: str) -> tuple[str, str, str]:
    found = (one for one in status(plane, namespace).get("conditions", ()) if one["type"] == type_)
    return next(((one["status"], one["reason"], one["message"]) for one in found), ("", "", ""))


def resolved(plane: ControlPlane, namespace: str, reason: str) -> str:
    """Wait until ModelsResolved has a reason; return its message."""

    def message() -> str:
        found = condition(plane, namespace, "ModelsResolved")
        return found[2] if found[1] == reason else ""

    return plane.wait_for(message, reason)


def children(plane: ControlPlane, namespace: str) -> set[tuple[str, str]]:
    return {(one["kind"], one["metadata"]["name"]) for one in plane.list(KINDS, namespace, OURS)}


@pytest.fixture
def operator(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[None]:
    with running_operator(plane.kubeconfig, tmp_path / "operator.log", ["--namespace", namespace]):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("operator")
def test_apply_serves_the_models_of_a_namespace_which_join_and_leave_without_a_lost_request(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    address = own_address()
    with engine("chat", address) as chat, engine("v2/recall", address) as recall:
        plane.apply(slice_of("chat", address, chat), namespace)
        plane.apply(slice_of("recall", address, recall), namespace)
        plane.apply(deployment("chat"), namespace)
        plane.apply(deployment("recall", "v2/recall"), namespace)
        plane.apply(gateway(default="chat", aliases=[{"model": "chat", "names": ["gpt-4o"]}]), namespace)
        plane.wait_for(
            lambda: (
                status(plane, namespace).get("readyModels") == "0/2"
                and condition(plane, namespace, "ModelsResolved")[0] == "True"
            ),
            "both models",
        )
        assert children(plane, namespace) == {
            ("ServiceAccount", "team"), ("Role", "team"), ("RoleBinding", "team"), ("Service", "team"),
            ("ConfigMap", "team-models"), ("NetworkPolicy", "team-engines"), ("Deployment", "team"),
        }  # fmt: skip
        assert status(plane, namespace)["url"] == f"http://team.{namespace}.svc/v1"
        assert condition(plane, namespace, "Ready")[:2] == ("False", "GatewayNotReady")
        team = RunningGateway(plane, namespace, tmp_path)
        with team.running():
            listed = {"chat": "ready", "gpt-4o": "ready", "v2/recall": "ready", "recall": "ready"}
            team.until(lambda: team.models() == listed, "the engines of both")
            assert [team.served(name) for name in ("chat", "gpt-4o", None, "recall")] == [
                "chat as chat", "chat as chat", "chat as chat", "v2/recall as v2/recall",
            ]  # fmt: skip
            others: set[str] = set()
            done = threading.Event()

            def traffic() -> None:
                while not done.wait(0.05):
                    others.add(team.served("recall"))

            thread = threading.Thread(target=traffic)
            thread.start()
            try:
                # A younger one claims a name that is taken, the older one keeps it.
                plane.apply(deployment("coder", "v2/recall"), namespace)
                team.until(lambda: "coder" in team.models(), "the one that joins")
                message = resolved(plane, namespace, "NamesConflict")
                assert "recall and of coder: recall has it" in message
                # It has no engine: its request asks the operator for one, with the rights of the account.
                assert team.served("coder") == "503"
                team.until(
                    lambda: (plane.get("configmap", "coder-wake", namespace) or {}).get("data"),
                    "the request for an engine",
                )
                plane.kubectl("delete", "mdep", "coder", "chat", "-n", namespace, "--wait=false")
                team.until(lambda: set(team.models()) == {"v2/recall", "recall"}, "those that leave")
                assert team.served("chat") == "404"
                assert "aliases: chat, default: chat" in resolved(plane, namespace, "NamesUnknown")
            finally:
                done.set()
                thread.join()
            assert others == {"v2/recall as v2/recall"}
    plane.kubectl("delete", "mgw", "team", "-n", namespace)
    plane.wait_for(lambda: not children(plane, namespace), "the cluster to collect the children")


@pytest.mark.slow
@pytest.mark.usefixtures("operator")
def test_what_others_change_is_repaired_and_a_route_waits_for_its_kind(
    plane: ControlPlane, namespace: str
) -> None:
    plane.apply(gateway(replicas=2, httpRoute={"parentRefs": [{"name": "public"}]}), namespace)
    plane.wait_for(lambda: ("Deployment", "team") in children(plane, namespace), "the children")
    assert ("PodDisruptionBudget", "team") in children(plane, namespace)
    plane.wait_for(lambda: condition(plane, namespace, "Degraded")[1] == "KindNotServed", "the condition")
    assert condition(plane, namespace, "ModelsResolved")[1] == "NoModels"
    plane.kubectl("scale", "mgw", "team", "--replicas=1", "-n", namespace)
    plane.wait_for(
        lambda: ("PodDisruptionBudget", "team") not in children(plane, namespace), "the budget to go"
    )
    patch = '{"data":{"models.json":"{}"}}'
    plane.kubectl("patch", "configmap", "team-models", "-n", namespace, "--type=merge", "-p", patch)
    plane.kubectl("delete", "service", "team", "-n", namespace)

    def repaired() -> bool:
        stored = plane.get("configmap", "team-models", namespace) or {}
        return "models" not in stored["data"]["models.json"] and stored["data"]["models.json"] != "{}"

    plane.wait_for(lambda: repaired() and ("Service", "team") in children(plane, namespace), "the repair")
    plane.apply(ROUTE_CRD)
    try:
        plane.wait_established("httproutes.gateway.networking.k8s.io")
        plane.kubectl("annotate", "mgw", "team", "look=again", "-n", namespace)
        route = plane.wait_for(lambda: plane.get("httproute", "team", namespace), "the route")
        assert route["spec"]["parentRefs"] == [{"name": "public"}]
        assert route["spec"]["rules"][0]["backendRefs"] == [{"name": "team", "port": 80}]
        plane.wait_for(lambda: condition(plane, namespace, "Degraded")[1] != "KindNotServed", "no complaint")
        plane.kubectl("patch", "mgw", "team", "-n", namespace, "--type=json",
                      "-p", '[{"op":"remove","path":"/spec/httpRoute"}]')  # fmt: skip
        plane.wait_for(lambda: plane.get("httproute", "team", namespace) is None, "the route to go")
    finally:
        plane.kubectl("delete", "crd", "httproutes.gateway.networking.k8s.io")


UNKNOWN = {"name": "a field nobody knows", "spec": {"replica": 2}, "says": 'unknown field "spec.replica"'}


@pytest.mark.parametrize("case", [*BROKEN, UNKNOWN], ids=lambda case: case["name"])
def test_a_wrong_spec_is_refused_with_what_to_do(
    plane: ControlPlane, namespace: str, case: dict[str, Any]
) -> None:
    document = json.dumps(gateway(**case["spec"]))
    with pytest.raises(Exception, match=re.escape(case["says"])):
        plane.kubectl("create", "--validate=strict", "-n", namespace, "-f", "-", stdin=document)
