"""Each trouble that a user can meet, on a real API server: the condition's reason, and what it says to do.

This cluster has no kubelet and no scheduler; the test writes the status of pods as they do. What the API
server and its controllers refuse by themselves is real.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mamba_api import names
from operator_objects import nano_config
from operator_process import OperatorProcess, running_operator
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
LONG_AGO = "2026-01-02T11:00:00Z"


class Place:
    """A namespace with an operator, for all tests of this file."""

    def __init__(self, plane: ControlPlane, namespace: str, operator: OperatorProcess) -> None:
        self.plane, self.namespace, self.operator = plane, namespace, operator

    def apply(self, name: str, **spec: Any) -> None:
        model = {"uri": "pvc://models/nano", "config": nano_config()}
        given = {"model": model, "memory": {"deviceMemory": "80Gi"}, **spec}
        self.plane.apply(
            {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": given},
            self.namespace,
        )

    def degraded(self, name: str) -> tuple[str, str]:
        status = (self.plane.get("mdep", name, self.namespace) or {}).get("status") or {}
        found = {one["type"]: one for one in status.get("conditions") or ()}
        return (found["Degraded"]["reason"], found["Degraded"]["message"]) if found else ("", "")

    def becomes(self, name: str, reason: str) -> str:
        self.plane.wait_for(
            lambda: self.degraded(name)[0] == reason,
            f"Degraded of {name} to be {reason}",
        )
        return self.degraded(name)[1]

    def pod(self, name: str, component: str) -> str:
        selector = ",".join(f"{key}={value}" for key, value in names.selector(name, component).items())
        found: list[dict[str, Any]] = self.plane.wait_for(
            lambda: self.plane.list("pods", self.namespace, selector), f"a pod of the {component}"
        )
        return str(found[0]["metadata"]["name"])

    def write(self, pod: str, status: dict[str, Any]) -> None:
        self.plane.kubectl(
            "patch", "pod", pod, "-n", self.namespace, "--subresource=status", "--type=merge",
            "-p", json.dumps({"status": status}),
        )  # fmt: skip


@pytest.fixture(scope="module")
def place(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    namespace = plane.create_namespace()
    log: Path = tmp_path_factory.mktemp("operator") / "operator.log"
    with running_operator(plane.kubeconfig, log, ["--namespace", namespace]) as operator:
        place = Place(plane, namespace, operator)
        place.apply("nano")
        place.becomes("nano", "AsExpected")
        yield place
    plane.delete_namespace(namespace)


def container(component: str = "engine", **state: Any) -> dict[str, Any]:
    status = {"name": component, "image": "i", "imageID": "", "ready": False, "restartCount": 0, **state}
    return {"phase": "Pending", "containerStatuses": [status]}


def waiting(reason: str, message: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def crash(component: str, code: int, message: str, reason: str = "Error") -> dict[str, Any]:
    ended = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return container(
        component, state=waiting("CrashLoopBackOff", "back-off"), lastState=ended, restartCount=3
    )


def condition(kind: str, reason: str | None = None, message: str = "") -> dict[str, Any]:
    one = {"type": kind, "status": "False", "lastTransitionTime": LONG_AGO, "message": message}
    return {"phase": "Pending", "conditions": [one | ({"reason": reason} if reason else {})]}


UNBOUND = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
SEEN_BY_THE_KUBELET: list[tuple[str, str, dict[str, Any], str, list[str]]] = [
    ("image pull", "engine", container(state=waiting("ImagePullBackOff", "manifest unknown")),
     "ImagePullFailed", ["manifest unknown", "correct the image"]),
    ("wrong Secret", "engine",
     container(state=waiting("CreateContainerConfigError", 'secret "hub" not found')),
     "ContainerNotCreated", ['secret "hub" not found', "create the Secret"]),
    ("mount", "engine", condition("PodReadyToStartContainers"), "VolumesNotMounted",
     ["PersistentVolumeClaim models", "the node can mount it"]),
    ("claim pending", "engine", condition("PodScheduled", "Unschedulable", UNBOUND), "ClaimNotBound",
     ["unbound immediate", "create the claim"]),
    ("unschedulable", "engine", condition("PodScheduled", "Unschedulable", "0/3 nodes: Insufficient gpu"),
     "Unschedulable", ["Insufficient gpu", "add a node that fits"]),
    ("out of memory", "engine", crash("engine", 137, "", "OOMKilled"), "OutOfMemory",
     ["raise spec.resources.memory"]),
    ("missing weights", "engine", crash("engine", 2, "no such folder: /models/models/nano"), "ModelNotLoaded",
     ["no such folder", "check that spec.model.uri"]),
    ("adapter of another model", "engine", crash("engine", 2, "adapter sql: hf://a/sql: the rank is 64"),
     "AdapterNotLoaded", ["adapter sql: hf://a/sql", "spec.model.adapters"]),
    ("crash loop", "engine", crash("engine", 1, "CUDA error"), "EngineCrashing",
     ["CUDA error", "kubectl logs --previous"]),
    ("crash loop of a gateway", "gateway", crash("gateway", 1, "no route"), "GatewayCrashing",
     ["no route", "kubectl logs --previous"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("component", "status", "reason", "says"),
    [case[1:] for case in SEEN_BY_THE_KUBELET],
    ids=[case[0] for case in SEEN_BY_THE_KUBELET],
)
def test_what_a_pod_suffers_from_is_named_with_what_to_do(
    place: Place, component: str, status: dict[str, Any], reason: str, says: list[str]
) -> None:
    pod = place.pod("nano", component)
    try:
        place.write(pod, status)
        message = place.becomes("nano", reason)
    finally:
        place.write(pod, {"containerStatuses": None, "conditions": None})
    assert f"pod {pod}" in message
    assert [words for words in says if words not in message] == []
    place.becomes("nano", "AsExpected")


def test_a_revision_that_makes_no_progress_is_taken_back_and_a_new_spec_begins_afresh(place: Place) -> None:
    def image() -> str:
        found = place.plane.get("deployment", "back-engine", place.namespace) or {}
        return str(found["spec"]["template"]["spec"]["containers"][0]["image"])

    def answers(pod: str) -> None:
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": LONG_AGO}
        place.write(pod, {"phase": "Running", "conditions": [ready]})

    rollout = {"progressDeadline": "2s", "minReadyTime": "0s"}
    place.apply("back", rollout=rollout)
    pods = [place.pod("back", component) for component in ("engine", "gateway")]
    for pod in pods:
        answers(pod)
    place.plane.wait_for(
        lambda: place.plane.get("configmap", "back-last-ready", place.namespace), "a revision that was ready"
    )
    before = image()
    place.apply("back", rollout=rollout, engine={"image": "registry.test/engine:broken"})
    message = place.becomes("back", "RolledBack")
    assert "ProgressDeadlineExceeded" in message
    assert "correct the spec" in message
    assert image() == before
    assert place.plane.get("pod", pods[0], place.namespace) is not None, "what served serves on"
    status = (place.plane.get("mdep", "back", place.namespace) or {})["status"]
    assert status["rollout"]["failedRevision"] not in ("", status["rollout"]["readyRevision"])
    assert {one["type"]: one["status"] for one in status["conditions"]}["Ready"] == "True"

    place.apply("back", rollout=rollout, engine={"image": "registry.test/engine:mended"})
    place.plane.wait_for(lambda: image() == "registry.test/engine:mended", "the mended image")
    place.plane.kubectl("delete", "mdep", "back", "-n", place.namespace)


def privileged() -> dict[str, Any]:
    return {"podTemplate": {"spec": {"hostNetwork": True}}}


REFUSED: list[tuple[str, Callable[[Place], None], dict[str, Any], str, list[str]]] = [
    ("pod security", lambda place: place.plane.kubectl(
        "label", "ns", place.namespace, "pod-security.kubernetes.io/enforce=restricted"), privileged(),
     "PodsRefused", ["violates PodSecurity", "spec.podTemplate"]),
    ("bad template", lambda _: None, {"podTemplate": {"spec": {"dnsPolice": "Default"}}}, "InvalidSpec",
     ["spec.podTemplate.spec.dnsPolice"]),
    ("plan does not fit", lambda _: None, {"memory": {"deviceMemory": "16Gi"}}, "PlanDoesNotFit", ["Gi"]),
    # The last: in this namespace there are no more pods afterwards.
    ("quota", lambda place: place.plane.kubectl(
        "create", "quota", "none", "--hard=pods=0", "-n", place.namespace), {}, "PodsRefused",
     ["exceeded quota", "raise the quota"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("prepare", "spec", "reason", "says"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_the_cluster_or_the_planner_refuses_is_named_with_what_to_do(
    place: Place,
    request: pytest.FixtureRequest,
    prepare: Callable[[Place], None],
    spec: dict[str, Any],
    reason: str,
    says: list[str],
) -> None:
    name = request.node.callspec.id.replace(" ", "-")
    prepare(place)
    place.apply(name, **spec)
    message = place.becomes(name, reason)
    assert [words for words in says if words not in message] == []
