"""The node that the other tests here run on does what a cluster does for a user's pods."""

import os
from typing import Any

import pytest

from testcluster.errors import CommandFailed
from testcluster.host_view import HOST_IMAGE
from testcluster.node import Node

pytestmark = [pytest.mark.e2e, pytest.mark.long]

PORT = 8000


def pod(name: str, command: list[str], *, served: bool = False, **spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "main",
        "image": HOST_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
    }
    if served:
        container["readinessProbe"] = {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], **spec},
    }


def server(name: str = "web") -> list[dict[str, Any]]:
    """Return a pod that serves the folder /opt/mambaserve, and its Service."""
    command = ["python", "-m", "http.server", str(PORT), "--directory", "/opt/mambaserve"]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": PORT}]},
    }
    return [pod(name, command, served=True), service]


def once(name: str, code: str, **spec: Any) -> dict[str, Any]:
    """Return a pod that runs a line of Python and ends."""
    return pod(name, ["python", "-c", code], restartPolicy="Never", **spec)


def finished(node: Node, name: str, namespace: str) -> str:
    """Return the output of a pod that ends by itself."""
    node.kubectl(
        "wait", "pod", name, "-n", namespace, "--for=jsonpath={.status.phase}=Succeeded", "--timeout=30s"
    )
    return node.kubectl("logs", name, "-n", namespace)


@pytest.fixture
def web(node: Node, namespace: str) -> str:
    node.apply(server(), namespace)
    node.kubectl("wait", "pod", "web", "-n", namespace, "--for=condition=Ready", "--timeout=30s")
    return "web"


def test_a_service_answers_by_its_name_from_another_pod(node: Node, namespace: str, web: str) -> None:
    url = f"http://{web}.{namespace}.svc.cluster.local/LICENSE"
    code = (
        "import time, urllib.request\n"
        # The rules of a new Service and its name take some hundred milliseconds.
        "for attempt in range(50):\n"
        "    try:\n"
        f"        print(urllib.request.urlopen({url!r}, timeout=2).read(2000).decode()); break\n"
        "    except OSError as error: print(error); time.sleep(0.2)\n"
        "else: raise SystemExit(1)\n"
    )

    node.apply(once("client", code), namespace)

    assert "Apache License" in finished(node, "client", namespace)


def test_a_service_answers_at_its_address_from_inside_the_node(node: Node, namespace: str, web: str) -> None:
    address = node.service_address(web, namespace)
    script = f"import urllib.request as u; print(u.urlopen('http://{address}/LICENSE', timeout=2).status)"

    def status() -> str:
        try:
            return node.run_inside("/usr/bin/python3", "-c", script)
        except CommandFailed:
            return ""

    assert node.wait_for(status, "the Service to answer", timeout=15) == "200\n"


def test_a_pod_reaches_itself_through_its_service(node: Node, namespace: str, web: str) -> None:
    address = node.service_address(web, namespace)
    script = f"import urllib.request as u; print(u.urlopen('http://{address}/LICENSE', timeout=2).status)"

    def status() -> str:
        try:
            return node.kubectl("exec", web, "-n", namespace, "--", "python", "-c", script)
        except CommandFailed:
            return ""

    assert node.wait_for(status, "the Service to answer", timeout=15) == "200\n"


def test_deleting_a_pod_and_its_service_leaves_nothing_behind(node: Node, namespace: str, web: str) -> None:
    processes = node.group.processes()
    assert processes

    node.kubectl("delete", "pod,service", web, "-n", namespace, "--timeout=30s")

    assert node.list("pods", namespace) == []
    node.wait_for(
        lambda: not any(slice_["endpoints"] for slice_ in _endpoint_slices(node, namespace)),
        "the Service to have no endpoints",
    )
    node.wait_for(lambda: not set(processes) & set(node.group.processes()), "the processes to be gone")


def _endpoint_slices(node: Node, namespace: str) -> list[dict[str, Any]]:
    return node.list("endpointslices", namespace)


def test_a_container_runs_our_python_and_our_source_tree(node: Node, namespace: str) -> None:
    code = "import mamba_settings.engine_settings as s, sys; print(s.__file__, sys.prefix)"

    node.apply(once("imports", code), namespace)

    ours = "/opt/mambaserve/libs/mamba_settings/engine_settings.py"
    assert finished(node, "imports", namespace) == f"{ours} /opt/venv\n"


def test_the_image_starts_the_command_line_by_itself(node: Node, namespace: str) -> None:
    manifest = pod("help", [], restartPolicy="Never")
    container = manifest["spec"]["containers"][0]
    del container["command"]
    container["args"] = ["--help"]

    node.apply(manifest, namespace)

    assert "Usage: mambaserve" in finished(node, "help", namespace)


def test_a_locked_down_pod_works_too(node: Node, namespace: str) -> None:
    code = (
        "import os, pathlib, mamba_settings.engine_settings\n"
        "pathlib.Path('/tmp/mine').write_text('x')\n"
        "try: pathlib.Path('/opt/mambaserve/theirs').write_text('x')\n"
        "except OSError as error: print(os.getuid(), type(error).__name__)\n"
    )
    manifest = once("strict", code, securityContext={"runAsNonRoot": True, "runAsUser": 65532})
    container = manifest["spec"]["containers"][0]
    container["securityContext"] = {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container["volumeMounts"] = [{"name": "scratch", "mountPath": "/tmp"}]
    manifest["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}]

    node.apply(manifest, namespace)

    assert finished(node, "strict", namespace) == "65532 OSError\n"


def test_memory_limits_are_enforced(node: Node, namespace: str) -> None:
    manifest = once("greedy", "x = bytearray(256 * 1024 * 1024); print(len(x))")
    manifest["spec"]["containers"][0]["resources"] = {"limits": {"memory": "64Mi"}}

    node.apply(manifest, namespace)

    node.kubectl(
        "wait", "pod", "greedy", "-n", namespace, "--for=jsonpath={.status.phase}=Failed", "--timeout=30s"
    )
    found = node.kubectl.json("get", "pod", "greedy", "-n", namespace)
    assert found["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"


def test_an_image_loaded_under_another_name_runs(node: Node, namespace: str) -> None:
    node.load_image("registry.example.test/mambaserve:0.1.0", {"GREETING": "hello"})
    manifest = once("renamed", "import os; print(os.environ['GREETING'])")
    manifest["spec"]["containers"][0]["image"] = "registry.example.test/mambaserve:0.1.0"

    node.apply(manifest, namespace)

    assert finished(node, "renamed", namespace) == "hello\n"


def test_helm_reaches_the_cluster(node: Node) -> None:
    assert node.helm("list", "--all-namespaces", "--output", "json").strip() == "[]"


def test_nothing_of_the_cluster_listens_outside_of_its_network(node: Node) -> None:
    outside = os.stat("/proc/self/ns/net").st_ino

    assert {os.stat(f"/proc/{component.pid}/ns/net").st_ino for component in node.components} & {
        outside
    } == set()
