"""Steps of an end-to-end test in a cluster: install the chart, apply an object, send requests.

Fixtures of `tests/e2e` are built from these steps; they add nothing that a user's shell would not do.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images import build
from mamba_api import names
from mamba_kernels.cpu.build import CannotBuild, ensure_built
from parsed_yaml import load_yaml
from testcluster.errors import CommandFailed
from testcluster.host_view import HOST_IMAGE, TREE
from testcluster.node import Node

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/mambaserve"
EXAMPLE = ROOT / "examples/01-quick-start/mamba.yaml"
SAMPLES = ROOT / "server/mamba_server/builtin/tiny-recall/samples.json"
RELEASE = "mambaserve"
SYSTEM = "mambaserve-system"
CLIENT = "client"
READY_SECONDS = 200
QUICK = {"minReadyTime": "5s"}
"""`spec.rollout` of a deployment whose pods are replaced again and again: the default waits 30 s for each."""


@contextmanager
def chart(node: Node, *options: str) -> Iterator[None]:
    """Install the chart as the user does, operator Ready, until the end of the block."""
    load_images(node)
    where = ["-n", SYSTEM, "--wait", "--timeout", "10m"]
    node.helm("install", RELEASE, str(CHART), *where, "--create-namespace", *options, timeout=620)
    try:
        yield
    finally:
        node.helm("uninstall", RELEASE, *where, "--ignore-not-found", timeout=620)


def load_images(node: Node) -> None:
    """Give the node the images of the chart and of an object without images of its own.

    Operator and gateway run in the image that is shipped. So does the engine if its image, of 5 GB, has been
    made of these sources, or if `IMAGES=all` asks for it; else its container sees the checkout. With
    `IMAGES=none` all containers do, and nothing is built.
    """
    with suppress(CannotBuild):  # then there are none, as without a compiler anywhere
        ensure_built()
    if os.environ.get("IMAGES") == "none":
        node.load_image(names.IMAGE)
        node.load_image(names.CONTROL_PLANE_IMAGE)
        return
    node.load_archive(build.ensure_built(build.TARGETS["control"]))
    server = build.TARGETS["server"]
    archive = build.ensure_built(server) if os.environ.get("IMAGES") == "all" else build.cached(server)
    if archive is None:
        node.load_image(names.IMAGE)
    else:
        node.load_archive(archive)


@dataclass(frozen=True)
class Question:
    """A conversation that ends with the user's turn, and what the shipped model says to it."""

    messages: list[dict[str, str]]
    answer: str


def questions() -> list[Question]:
    """Return questions about one long document, so that they share a prefix of some hundred tokens."""
    samples = json.loads(SAMPLES.read_text())
    return [
        Question(
            [{"role": "user", "content": f"{samples['document']}\n{one['question']}"}], str(one["answer"])
        )
        for one in samples["questions"]
    ]


def chat(last: str) -> Question:
    """Return the short sample conversation that ends with `last`."""
    samples = json.loads(SAMPLES.read_text())
    (sample,) = (one for one in samples["chats"] if one["messages"][-1]["content"] == last)
    return Question(sample["messages"], sample["answer"])


@dataclass(frozen=True)
class Deployed:
    """The quick start in a namespace, with a pod to ask it from."""

    node: Node
    namespace: str
    name: str = "quick-start"

    def apply(self, **spec: Any) -> None:
        """Apply the example with `kubectl apply`, its spec changed by `spec`."""
        if not spec:
            self.node.kubectl("apply", "-n", self.namespace, "-f", str(EXAMPLE))
            return
        manifest = load_yaml(EXAMPLE.read_text())
        self.node.apply({**manifest, "spec": {**manifest["spec"], **spec}}, self.namespace)

    def wait_ready(self) -> None:
        """Wait with the command of the README."""
        self._wait_condition("Ready")

    def wait_settled(self) -> None:
        """Wait until the newest spec runs; Ready stays true meanwhile, because an engine answers."""
        self._wait_condition("UpToDate")

    def _wait_condition(self, condition: str) -> None:
        try:
            self.node.kubectl(
                "wait", f"mdep/{self.name}", "-n", self.namespace, f"--for=condition={condition}",
                f"--timeout={READY_SECONDS}s", timeout=READY_SECONDS + 10,
            )  # fmt: skip
        except CommandFailed as error:
            raise CommandFailed(f"{error}\n{self.how_it_stands()}") from error

    def how_it_stands(self) -> str:
        """Return conditions, pods and events, for the message of a test that waited in vain."""
        conditions = self.status().get("conditions", [])
        lines = [f"{one['type']}={one['status']} {one['reason']}: {one['message']}" for one in conditions]
        pods = self.node.kubectl("get", "pods", "-n", self.namespace, "-o", "wide")
        events = self.node.kubectl("get", "events", "-n", self.namespace, "--sort-by=.lastTimestamp")
        return "\n".join([*lines, pods, events])

    def patch(self, spec: dict[str, Any]) -> None:
        """Patch the spec with `kubectl patch`."""
        text = json.dumps({"spec": spec})
        self.node.kubectl("patch", "mdep", self.name, "-n", self.namespace, "--type=merge", "-p", text)

    def status(self) -> dict[str, Any]:
        """Return the object's status; empty before there is one."""
        manifest = self.node.get("mdep", self.name, self.namespace) or {}
        status: dict[str, Any] = manifest.get("status", {})
        return status

    def condition(self, kind: str) -> dict[str, Any]:
        """Return one condition; empty when it is not there."""
        conditions = self.status().get("conditions", [])
        return next((one for one in conditions if one["type"] == kind), {})

    def engine_pods(self) -> list[dict[str, Any]]:
        """Return the engine pods that are not being deleted and have not failed."""
        selector = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component=engine"
        pods = self.node.list("pods", self.namespace, selector)
        living = [pod for pod in pods if pod["status"].get("phase") != "Failed"]
        return [pod for pod in living if "deletionTimestamp" not in pod["metadata"]]

    def in_engine(self, code: str) -> str:
        """Run Python code in the engine's container and return its output."""
        (pod,) = self.engine_pods()
        where = [pod["metadata"]["name"], "-n", self.namespace, "-c", "engine"]
        return self.node.kubectl("exec", *where, "--", "python", "-c", code)

    def start_client(self) -> None:
        """Start a pod that waits to run the official client."""
        container = {"name": "main", "image": HOST_IMAGE, "command": ["sleep", "infinity"]}
        self.node.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": CLIENT},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
            },
            self.namespace,
        )
        self.node.kubectl(
            "wait", "pod", CLIENT, "-n", self.namespace, "--for=condition=Ready", "--timeout=60s"
        )

    def ask(self, question: Question, *, tokens: int = 0) -> dict[str, Any]:
        """Send the question and return the client's output; `tokens`: length of answers, 0 = to their end.

        Raises CommandFailed with its traceback when a request failed.
        """
        url = f"http://{self.name}.{self.namespace}.svc/v1"
        output = self.node.kubectl(
            "exec", "-i", CLIENT, "-n", self.namespace, "--",
            "python", f"{TREE}/tests/support/chat_client.py", url, "tiny-recall", str(tokens),
            stdin=json.dumps(question.messages), timeout=180,
        )  # fmt: skip
        answer: dict[str, Any] = json.loads(output)
        return answer
