"""The operator on a real API server: what a user sees after `kubectl apply`, edits, deletes and outages."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from operator_objects import nano_config
from operator_process import OperatorProcess, running_operator
from property_runs import BUDGET
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube

CHILDREN = {
    ("Secret", "nano-admin-UID-KEY"), ("ServiceAccount", "nano"), ("Role", "nano"), ("RoleBinding", "nano"),
    ("ConfigMap", "nano-engine"), ("ConfigMap", "nano-wake"), ("Service", "nano-engine"), ("Service", "nano"),
    ("NetworkPolicy", "nano-engine"),
    ("Deployment", "nano-engine"), ("Deployment", "nano"),
}  # fmt: skip
KINDS = (
    "secrets,serviceaccounts,roles,rolebindings,configmaps,services,networkpolicies,poddisruptionbudgets,"
    "deployments,persistentvolumeclaims"
)
OURS = "app.kubernetes.io/managed-by=mambaserve-operator"


@pytest.fixture
def operator(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[OperatorProcess]:
    """Yield an operator of the test's own namespace, so that tests do not see each other's objects."""
    with running_operator(plane.kubeconfig, tmp_path / "operator.log", ["--namespace", namespace]) as running:
        yield running


def deployment(name: str = "nano", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.mambaserve.io/v1alpha1",
        "kind": "MambaDeployment",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": "pvc://models/nano", "config": nano_config()},
            "memory": {"deviceMemory": "80Gi"},
            **spec,
        },
    }


def children(plane: ControlPlane, namespace: str, owner: str = "nano") -> set[tuple[str, str]]:
    found = plane.list(KINDS, namespace, f"{OURS},app.kubernetes.io/instance={owner}")
    uid = ((plane.get("mdep", owner, namespace) or {}).get("metadata") or {}).get("uid", "")[:8]
    plain = {(one["kind"], one["metadata"]["name"].replace(uid or "no uid", "UID")) for one in found}
    return {(kind, re.sub("-admin-UID-[0-9a-f]{6}$", "-admin-UID-KEY", name)) for kind, name in plain}


def conditions(plane: ControlPlane, namespace: str, name: str = "nano") -> dict[str, tuple[str, str]]:
    found = plane.get("mdep", name, namespace) or {}
    return {
        one["type"]: (one["status"], one["reason"]) for one in found.get("status", {}).get("conditions", [])
    }


def settled(plane: ControlPlane, namespace: str, name: str = "nano") -> None:
    # Not `kubectl wait`, which other tests here use: it is a process, and nearly every test comes here.
    plane.wait_for(lambda: conditions(plane, namespace, name).get("Planned", ("",))[0] == "True", "the plan")
    plane.wait_for(lambda: len(children(plane, namespace, name)) == len(CHILDREN), "all children")


def eventually(plane: ControlPlane, look: Callable[[], Any], what: str, timeout: float = 30.0) -> Any:
    return plane.wait_for(look, what, timeout=timeout)


def test_apply_makes_every_child_and_a_status_and_what_is_done_to_a_child_by_hand_is_undone(
    plane: ControlPlane, namespace: str, operator: OperatorProcess
) -> None:
    plane.apply(deployment(), namespace)
    settled(plane, namespace)

    owner = plane.get("mdep", "nano", namespace)
    assert owner
    assert children(plane, namespace) == CHILDREN
    for child in plane.list(KINDS, namespace, OURS):
        [reference] = child["metadata"]["ownerReferences"]
        assert reference["uid"] == owner["metadata"]["uid"]
        assert reference["controller"]
    assert_told(plane, namespace)

    for kind in ("service", "deployment", "networkpolicy"):
        delete_by_hand(plane, namespace, kind)
    plane.kubectl("scale", "deploy/nano-engine", "--replicas=3", "-n", namespace)
    eventually(plane, lambda: replicas(plane, namespace) == 1, "the count to be repaired")
    eventually(plane, lambda: "spec.replicas" in events(plane, namespace).get("Repaired", ""), "the event")

    plane.kubectl("delete", "mdep/nano", "-n", namespace, "--timeout=30s")
    # The cluster's collector learns of a new CRD within half a minute.
    eventually(plane, lambda: not children(plane, namespace), "the children to be collected", timeout=90)


def delete_by_hand(plane: ControlPlane, namespace: str, kind: str) -> None:
    """Delete a child of the engines and wait for another one."""

    def uid() -> str:
        found = plane.get(kind, "nano-engine", namespace) or {}
        return str((found.get("metadata") or {}).get("uid", ""))

    before = uid()
    plane.kubectl("delete", kind, "nano-engine", "-n", namespace)
    eventually(plane, lambda: uid() not in ("", before), f"another {kind}")


def replicas(plane: ControlPlane, namespace: str) -> int:
    """Return the number of engines that are asked for."""
    return int((plane.get("deploy", "nano-engine", namespace) or {})["spec"]["replicas"])


def assert_told(plane: ControlPlane, namespace: str) -> None:
    """Check the plan, the conditions and the address in the status of a deployment without a ready pod."""
    status = (plane.get("mdep", "nano", namespace) or {})["status"]
    assert status["url"] == f"http://nano.{namespace}.svc/v1"
    assert status["observedGeneration"] == 1
    assert status["plan"]["strategy"] in ("NoBuffer", "ExtraBuffer", "ExtraBufferLazy")
    assert status["plan"]["slots"] > 100
    assert [one["type"] for one in status["conditions"]] == [
        "Planned", "Available", "Progressing", "Degraded", "UpToDate", "Reconciling", "Stalled", "Ready",
    ]  # fmt: skip
    found = conditions(plane, namespace)
    assert found["Planned"] == ("True", "PlanComputed")
    assert found["Available"] == ("False", "NoReadyReplica")
    assert found["Degraded"] == ("False", "AsExpected")
    assert found["Ready"][0] == "False"


def quiet(plane: ControlPlane, operator: OperatorProcess) -> None:
    """Wait until nothing is due and a second has passed without an event or the end of a pass."""
    looks: list[tuple[float, ...]] = []

    def still() -> bool:
        looks.append(tuple(operator.counted(name) for name in ("watch_events", "reconciles", "queue_depth")))
        time.sleep(0.1)
        return looks[-1][-1] == 0 and len(looks) > 5 and len(set(looks[-6:])) == 1

    eventually(plane, still, "the operator to be quiet")


def test_nothing_is_asked_or_written_once_everything_is_as_wanted(
    plane: ControlPlane, namespace: str, operator: OperatorProcess
) -> None:
    operator.wait_for("lease_taken")
    assert operator.get("/healthz") == "ok"
    assert operator.get("/readyz") == "ok"
    assert "mambaserve_operator_leader 1.0" in operator.get("/metrics")
    plane.apply(deployment(), namespace)
    settled(plane, namespace)
    eventually(plane, lambda: conditions(plane, namespace)["Progressing"][1] == "ScalingUp", "the roll-out")
    quiet(plane, operator)

    def versions() -> dict[str, str]:
        kinds = f"{KINDS},mambadeployments.serving.mambaserve.io"
        return {
            one["kind"] + one["metadata"]["name"]: one["metadata"]["resourceVersion"]
            for one in plane.list(kinds, namespace)
        }

    before = versions()
    seen, passes = operator.counted("watch_events"), operator.counted("reconciles")
    asked = operator.asked()
    assert asked > len(CHILDREN)
    # A wake that changes nothing we care about.
    plane.kubectl("annotate", "svc/nano", "-n", namespace, "note=1")
    eventually(plane, lambda: operator.counted("watch_events") > seen, "the wake")
    eventually(plane, lambda: operator.counted("reconciles") > passes, "the pass after it")
    quiet(plane, operator)
    after = versions()

    assert {name for name in after if after[name] != before[name]} == {"Servicenano"}
    assert operator.counted("reconciles") > passes
    assert operator.asked() == asked, "kopf's watches hold all that a pass has to see"


def play_kubelet(plane: ControlPlane, namespace: str) -> None:
    """Report every pod as running and ready, as the kubelet of a node would."""
    for number, pod in enumerate(plane.list("pods", namespace), start=1):
        now = "2026-01-01T00:00:00Z"
        status = {
            "phase": "Running",
            "podIP": f"10.0.0.{number}",
            "podIPs": [{"ip": f"10.0.0.{number}"}],
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": now}
                for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/status"
        code, answer = plane.api.request(
            "PATCH", path, {"status": status}, content_type="application/merge-patch+json"
        )
        assert code == 200, answer


def events(plane: ControlPlane, namespace: str) -> dict[str, str]:
    found = plane.list("events", namespace)
    return {
        one["reason"]: one["message"] for one in found if one["involvedObject"]["kind"] == "MambaDeployment"
    }


def test_plan_mode_shows_the_plan_and_touches_nothing(
    plane: ControlPlane, namespace: str, operator: OperatorProcess
) -> None:
    plane.apply(deployment(mode="Plan"), namespace)

    plane.kubectl("wait", "--for=condition=Planned", "mdep/nano", "-n", namespace, "--timeout=30s")
    quiet(plane, operator)

    assert children(plane, namespace) == set()
    assert conditions(plane, namespace)["Ready"] == ("False", "PlanMode")
    assert (plane.get("mdep", "nano", namespace) or {})["status"]["plan"]["ledger"]


def test_a_running_deployment_survives_a_change_that_cannot_fit_and_goes_on_when_it_is_mended(
    plane: ControlPlane, namespace: str, operator: OperatorProcess
) -> None:
    plane.apply(deployment(), namespace)
    settled(plane, namespace)
    before = (plane.get("deploy", "nano-engine", namespace) or {})["metadata"]["uid"]

    plane.apply(deployment(memory={"deviceMemory": "16Gi"}), namespace)
    plane.kubectl("wait", "--for=condition=Planned=False", "mdep/nano", "-n", namespace, "--timeout=30s")
    assert children(plane, namespace) == CHILDREN
    assert conditions(plane, namespace)["Planned"] == ("False", "PlanDoesNotFit")
    [planned] = [
        one
        for one in (plane.get("mdep", "nano", namespace) or {})["status"]["conditions"]
        if one["type"] == "Planned"
    ]
    assert "16.0Gi" in planned["message"]
    plane.apply(deployment(), namespace)
    plane.kubectl("wait", "--for=condition=Planned", "mdep/nano", "-n", namespace, "--timeout=30s")

    assert (plane.get("deploy", "nano-engine", namespace) or {})["metadata"]["uid"] == before


def test_someone_elses_object_of_the_same_name_is_not_taken_over(
    plane: ControlPlane, namespace: str, operator: OperatorProcess
) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "nano-engine"},
        "data": {"a": "b"},
    }
    plane.apply(theirs, namespace)
    plane.apply(deployment(), namespace)

    plane.kubectl("wait", "--for=condition=Degraded", "mdep/nano", "-n", namespace, "--timeout=30s")

    assert conditions(plane, namespace)["Degraded"] == ("True", "ApplyFailed")
    assert (plane.get("configmap", "nano-engine", namespace) or {})["data"] == {"a": "b"}
    plane.kubectl("delete", "configmap", "nano-engine", "-n", namespace)
    plane.kubectl("wait", "--for=condition=Degraded=False", "mdep/nano", "-n", namespace, "--timeout=90s")
    assert children(plane, namespace) == CHILDREN


def test_a_pod_template_the_api_server_refuses_is_a_condition_with_its_words(
    plane: ControlPlane, namespace: str, operator: OperatorProcess
) -> None:
    template = {"spec": {"containers": [{"name": "engine", "image": "x", "imagePullPolicy": "Sometimes"}]}}
    plane.apply(deployment(podTemplate=template), namespace)

    plane.kubectl("wait", "--for=condition=Degraded", "mdep/nano", "-n", namespace, "--timeout=30s")

    found = plane.get("mdep", "nano", namespace) or {}
    [degraded] = [one for one in found["status"]["conditions"] if one["type"] == "Degraded"]
    assert degraded["reason"] == "ApplyFailed"
    assert "Sometimes" in degraded["message"]
    # The others were applied all the same.
    assert children(plane, namespace) == CHILDREN - {("Deployment", "nano-engine")}


def test_a_spec_from_before_the_rules_is_a_condition_and_no_crash(
    plane: ControlPlane, namespace: str, operator: OperatorProcess
) -> None:
    # The API server lets it pass: what a merge key misses is not in the schema.
    plane.apply(deployment(podTemplate={"spec": {"containers": [{"image": "x"}]}}), namespace)

    plane.kubectl("wait", "--for=condition=Planned=False", "mdep/nano", "-n", namespace, "--timeout=30s")

    assert conditions(plane, namespace)["Planned"] == ("False", "InvalidSpec")
    assert children(plane, namespace) == set()
    plane.apply(deployment("good"), namespace)
    settled(plane, namespace, "good")


def test_sigterm_ends_it_at_once_and_what_it_leaves_can_be_deleted_because_it_has_no_finalizer(
    plane: ControlPlane, namespace: str, operator: OperatorProcess
) -> None:
    plane.apply(deployment(), namespace)
    settled(plane, namespace)

    started = time.monotonic()
    code = operator.stop()

    assert code == 0
    assert time.monotonic() - started < 8
    lease = plane.get("lease", "mambaserve-operator", namespace) or {}
    assert lease["spec"]["holderIdentity"] == ""

    owner = plane.get("mdep", "nano", namespace) or {}
    assert "finalizers" not in owner["metadata"]
    assert not [
        key for key in owner["metadata"].get("annotations", {}) if "kopf" in key or "mambaserve" in key
    ]
    plane.kubectl("delete", "mdep/nano", "-n", namespace, "--timeout=10s")
    assert plane.get("mdep", "nano", namespace) is None


@pytest.mark.parametrize("later", [0.0, 0.2] if BUDGET != "large" else [0.0, 0.1, 0.2, 0.4, 0.8])
def test_sigterm_ends_one_that_has_just_begun_to_act(
    plane: ControlPlane, namespace: str, operator: OperatorProcess, later: float
) -> None:
    operator.wait_for("lease_taken")
    time.sleep(later)  # kopf has the signals while its watches begin

    assert operator.stop() == 0
    lease = plane.get("lease", "mambaserve-operator", namespace) or {}
    assert lease["spec"]["holderIdentity"] == ""


def test_pods_that_are_ready_make_it_ready_and_a_change_of_strategy_replaces_none_of_them(
    plane: ControlPlane, namespace: str, operator: OperatorProcess
) -> None:
    plane.apply(deployment(stateCache={"strategy": "NoBuffer", "stateDtype": "float32"}), namespace)
    settled(plane, namespace)
    eventually(plane, lambda: len(plane.list("pods", namespace)) == 2, "the pods")
    play_kubelet(plane, namespace)
    plane.kubectl("wait", "--for=condition=Ready", "mdep/nano", "-n", namespace, "--timeout=30s")
    found = conditions(plane, namespace)
    assert found["Available"] == ("True", "ReplicasAvailable")
    assert found["Ready"] == ("True", "Serving")
    status = (plane.get("mdep", "nano", namespace) or {})["status"]
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    plane.kubectl("wait", "--for=condition=UpToDate", "mdep/nano", "-n", namespace, "--timeout=30s")
    template = (plane.get("deploy", "nano-engine", namespace) or {})["spec"]["template"]

    change = '{"spec":{"stateCache":{"strategy":"ExtraBufferLazy"}}}'
    plane.kubectl("patch", "mdep/nano", "-n", namespace, "--type=merge", "-p", change)

    # Nobody answers at the addresses of these pods.
    eventually(
        plane,
        lambda: conditions(plane, namespace)["UpToDate"] == ("False", "SwitchingStrategy"),
        "the switch",
    )
    assert conditions(plane, namespace)["Ready"] == ("True", "Serving")
    assert (plane.get("deploy", "nano-engine", namespace) or {})["spec"]["template"] == template
    config = (plane.get("configmap", "nano-engine", namespace) or {})["data"]["engine.json"]
    assert '"ExtraBufferLazy"' in config

    plane.kubectl("scale", "mdep/nano", "--replicas=3", "-n", namespace)
    eventually(plane, lambda: replicas(plane, namespace) == 3, "three engines")
