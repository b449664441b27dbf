"""A model of a Hub is downloaded by the loader to a volume, and served from there without the Hub."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from product import SYSTEM, Deployed, chart, questions
from small_hub import COMMIT
from testcluster.host_view import HOST_IMAGE, TREE
from testcluster.node import Node

pytestmark = [pytest.mark.e2e, pytest.mark.long]
HUB = f"""
import pathlib, sys
from http.server import ThreadingHTTPServer
sys.path.insert(0, "{TREE}/tests/support")
from small_hub import Handler, Hub
folder = pathlib.Path("{TREE}/server/mamba_server/builtin/tiny-recall")
hub = Hub(files={{one.name: one.read_bytes() for one in folder.iterdir()}})
ThreadingHTTPServer(("", 8080), type("Bound", (Handler,), {{"hub": hub}})).serve_forever()
"""


@pytest.fixture
def folder_of_the_node() -> Iterator[Path]:
    """Yield a directory that the node sees at the same path."""
    with tempfile.TemporaryDirectory(prefix="mambaserve-cache-") as folder:
        yield Path(folder)


@pytest.fixture
def volume(node: Node, namespace: str, folder_of_the_node: Path) -> Iterator[str]:
    """Name of a storage class with one volume, which the pods' user may write to."""
    folder_of_the_node.chmod(0o777)
    name = f"{namespace}-cache"
    made = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": name,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder_of_the_node), "type": "Directory"},
        },
    }
    node.apply(made, "default")
    yield name
    node.kubectl("delete", "pv", name, "--wait=false")


@pytest.fixture
def claim(node: Node, namespace: str, folder_of_the_node: Path) -> Iterator[str]:
    """Name of a claim that is bound to a directory which each node of a group has; here there is one."""
    name = f"{namespace}-local"
    terms = [{"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]}]
    modes = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    volume = {
        "capacity": {"storage": "1Gi"},
        "persistentVolumeReclaimPolicy": "Retain",
        "local": {"path": str(folder_of_the_node)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        **modes,
    }
    wanted = {"volumeName": name, "resources": {"requests": {"storage": "1Gi"}}, **modes}
    made = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume}
    asks = {"kind": "PersistentVolumeClaim", "metadata": {"name": "models"}, "spec": wanted}
    node.apply(made, "default")
    node.apply({"apiVersion": "v1", **asks}, namespace)
    yield "models"
    node.kubectl("delete", "pv", name, "--wait=false")


def hub(node: Node, namespace: str) -> str:
    """Return the URL of a Hub that has one model."""
    labels = {"app": "hub"}
    container = {"name": "main", "image": HOST_IMAGE, "command": ["python", "-c", HUB]}
    pod: dict[str, Any] = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    ports = [{"port": 80, "targetPort": 8080}]
    node.apply(
        [
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hub", "labels": labels}, "spec": pod},
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "hub"},
                "spec": {"selector": labels, "ports": ports},
            },
        ],
        namespace,
    )
    node.kubectl("wait", "pod/hub", "-n", namespace, "--for=condition=Ready", "--timeout=60s")
    return f"http://hub.{namespace}.svc"


def test_a_model_is_downloaded_once_and_served_without_the_hub(
    node: Node, namespace: str, volume: str
) -> None:
    with chart(node):
        url = hub(node, namespace)
        deployed = Deployed(node, namespace)
        deployed.apply(
            model={
                "uri": "hf://owner/name",
                "servedName": "tiny-recall",
                "cache": {"size": "1Gi", "storageClassName": volume, "accessMode": "ReadWriteOnce"},
            },
            engine={"env": [{"name": "HF_ENDPOINT", "value": url}]},
        )
        deployed.start_client()
        node.wait_for(lambda: deployed.condition("Planned").get("status") == "True", "the plan", timeout=150)
        said = node.kubectl("logs", "-n", namespace, "-l", "app.kubernetes.io/component=loader", "--tail=-1")
        assert "hf://owner/name: download" in said

        # Whatever becomes of the Hub: engines start, and start again.
        node.kubectl("delete", "pod", "hub", "-n", namespace)
        deployed.wait_ready()
        question = questions()[0]
        assert deployed.ask(question)["whole"] == question.answer
        [before] = deployed.engine_pods()
        node.kubectl("delete", "pod", before["metadata"]["name"], "-n", namespace)
        node.wait_for(
            lambda: [one["metadata"]["uid"] for one in deployed.engine_pods()] != [before["metadata"]["uid"]],
            "another engine",
        )
        deployed.wait_ready()
        deployed.wait_settled()
        assert deployed.ask(question)["whole"] == question.answer

        config = node.get("configmap", "quick-start-engine", namespace)
        assert config is not None
        assert f"hf://owner/name@{COMMIT}" in config["data"]["engine.json"]
        [job] = node.list("jobs", namespace)
        assert job["status"]["succeeded"] == 1
        assert "failed" not in job["status"]
        log = node.kubectl("logs", "-n", SYSTEM, "deployment/mambaserve", "--tail=-1")
        assert "reconcile_crashed" not in log


def said_by_loader(node: Node, namespace: str, pod: dict[str, Any]) -> str:
    return node.kubectl("logs", pod["metadata"]["name"], "-n", namespace, "-c", "loader", "--tail=-1")


def test_a_node_fills_its_own_copy_and_serves_it_without_the_hub(
    node: Node, namespace: str, claim: str
) -> None:
    with chart(node):
        url = hub(node, namespace)
        deployed = Deployed(node, namespace)
        deployed.start_client()
        # What is made from here on keeps the strictest standard, or is refused.
        node.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        uri = f"hf://owner/name@{COMMIT}"
        model = {"uri": uri, "servedName": "tiny-recall", "cache": {"claimName": claim}}
        deployed.apply(model=model, engine={"env": [{"name": "HF_ENDPOINT", "value": url}]}, replicas=2)
        deployed.wait_ready()
        deployed.wait_settled()
        said = [said_by_loader(node, namespace, pod) for pod in deployed.engine_pods()]
        # Of two pods one has downloaded and compared; the other has waited for it, or come later.
        assert len(said) == 2
        assert sum("comparing the checksums" in text for text in said) == 1
        question = questions()[0]
        assert deployed.ask(question)["whole"] == question.answer
        assert node.list("jobs", namespace) == []

        # Whatever becomes of the Hub: an engine that is started anew has its copy.
        node.kubectl("delete", "pod", "hub", "-n", namespace)
        before = {one["metadata"]["uid"] for one in deployed.engine_pods()}
        node.kubectl("delete", "pod", deployed.engine_pods()[0]["metadata"]["name"], "-n", namespace)
        node.wait_for(
            lambda: {one["metadata"]["uid"] for one in deployed.engine_pods()} - before, "another engine"
        )
        deployed.wait_settled()
        assert deployed.ask(question)["whole"] == question.answer
        [new] = [one for one in deployed.engine_pods() if one["metadata"]["uid"] not in before]
        assert "comparing the checksums" not in said_by_loader(node, namespace, new)
