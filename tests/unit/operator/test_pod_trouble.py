"""Trouble of pods: the worst first, the same pod each time, and nothing temporary."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_api.v1alpha1.conditions import REASONS_OF, ConditionType, Reason
from mamba_operator.objects.manifest import Manifest
from mamba_operator.objects.pod_trouble import (
    ADVICE,
    MAX_MESSAGE_CHARACTERS,
    is_draining,
    is_loading,
    replaced_failure,
    trouble,
)
from mamba_operator.objects.recorded_status import WorkloadState, workload_state
from operator_objects import NOW

READY = {"type": "Ready", "status": "True"}


def pod(
    name: str = "nano-engine-a", *, component: str = "engine", going: bool = False, **status: Any
) -> Manifest:
    meta: dict[str, Any] = {"name": name, "labels": {"app.kubernetes.io/component": component}}
    if going:
        meta["deletionTimestamp"] = "2026-01-02T11:59:00Z"
    return {"kind": "Pod", "metadata": meta, "status": {"phase": "Running", **status}}


def with_container(
    name: str = "nano-engine-a", *, of: str = "containerStatuses", **container: Any
) -> Manifest:
    return pod(name, **{of: [{"name": "engine", **container}]})


def of_gateway(**container: Any) -> Manifest:
    return pod("nano-1", component="gateway", containerStatuses=[{"name": "gateway", **container}])


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def ended(reason: str = "Error", code: int = 1, message: str = "") -> dict[str, Any]:
    return {"terminated": {"reason": reason, "exitCode": code, "message": message}}


UNSCHEDULABLE = pod(
    "nano-engine-z", phase="Pending",
    conditions=[
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"},
    ],
)  # fmt: skip

STARTS_LATE = {
    "type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": "2026-01-02T11:59:00Z",
}  # fmt: skip

FOUND: list[tuple[str, Manifest, Reason, str]] = [
    ("a pull that fails", with_container(state=waiting("ErrImagePull", "denied")), Reason.IMAGE_PULL_FAILED,
     "pod nano-engine-a, container engine: denied"),
    ("a name that is no image", with_container(state=waiting("InvalidImageName")), Reason.IMAGE_PULL_FAILED,
     "InvalidImageName"),
    ("a pull that is not allowed", with_container(state=waiting("ErrImageNeverPull")),
     Reason.IMAGE_PULL_FAILED, "ErrImageNeverPull"),
    ("an init container that cannot be pulled",
     with_container(of="initContainerStatuses", state=waiting("ImagePullBackOff")),
     Reason.IMAGE_PULL_FAILED, ""),
    ("back-off",
     with_container(state=waiting("CrashLoopBackOff"), lastState=ended(code=1, message="bad flag")),
     Reason.ENGINE_CRASHING, "exit code 1: bad flag"),
    ("weights that are not there",
     with_container(state=waiting("CrashLoopBackOff"), lastState=ended(code=2, message="no such folder")),
     Reason.MODEL_NOT_LOADED, "exit code 2: no such folder"),
    ("back-off that forgot its end", with_container(state=waiting("CrashLoopBackOff", "back-off 5m0s")),
     Reason.ENGINE_CRASHING, "ended again and again: back-off 5m0s"),
    ("a second end before the back-off", with_container(state=ended(code=3), restartCount=2),
     Reason.ENGINE_CRASHING, "exit code 3: Error"),
    ("killed for memory", with_container(state=ended("OOMKilled", 137)), Reason.OUT_OF_MEMORY,
     "raise spec.resources.memory"),
    ("killed for memory and waiting", with_container(
        state=waiting("CrashLoopBackOff"), lastState=ended("OOMKilled", 137), restartCount=9),
     Reason.OUT_OF_MEMORY, "was killed for memory"),
    ("a gateway that ends again and again", of_gateway(state=waiting("CrashLoopBackOff")),
     Reason.GATEWAY_CRASHING, "pod nano-1"),
    ("a gateway killed for memory", of_gateway(state=ended("OOMKilled", 137)), Reason.OUT_OF_MEMORY,
     "spec.gateway.podTemplate"),
    ("a Secret that is not there", with_container(
        state=waiting("CreateContainerConfigError", 'secret "hub" not found')),
     Reason.CONTAINER_NOT_CREATED, 'secret "hub" not found'),
    ("a program that is not there", with_container(
        state=waiting("RunContainerError", "no such file"), lastState=ended("StartError", 128)),
     Reason.CONTAINER_NOT_CREATED, "no such file"),
    ("a volume that is not mounted", {**pod(phase="Pending", conditions=[STARTS_LATE]), "spec": {"volumes": [
        {"name": "model", "persistentVolumeClaim": {"claimName": "weights"}},
        {"name": "admin", "secret": {"secretName": "token"}}, {"name": "scratch", "emptyDir": {}},
        {"name": "settings", "configMap": {"name": "nano-engine"}}]}}, Reason.VOLUMES_NOT_MOUNTED,
     "PersistentVolumeClaim weights, Secret token, ConfigMap nano-engine"),
    ("a claim that is not there", pod(phase="Pending", conditions=[{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": 'persistentvolumeclaim "weights" not found'}]), Reason.CLAIM_NOT_BOUND,
     "create the claim"),
    ("a claim without a volume", pod(phase="Pending", conditions=[{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."}]),
     Reason.CLAIM_NOT_BOUND, "has unbound immediate"),
    ("a sidecar killed for memory", pod(
        containerStatuses=[{"name": "proxy", "state": ended("OOMKilled", 137)}]),
     Reason.OUT_OF_MEMORY, "raise its memory limit in the container's source"),
    ("a loader killed for memory", pod(
        initContainerStatuses=[{"name": "loader", "state": ended("OOMKilled", 137)}]),
     Reason.OUT_OF_MEMORY, "raise its memory limit in the container's source"),
    ("a sidecar of a loader that ends again and again", pod(
        component="loader", initContainerStatuses=[{"name": "proxy", "state": waiting("CrashLoopBackOff")}]),
     Reason.DOWNLOAD_FAILED, "container proxy ended again and again"),
    ("a gate", {**pod(phase="Pending", conditions=[{
        "type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "blocked"}]),
        "spec": {"schedulingGates": [{"name": "example.com/queue"}]}},
     Reason.UNSCHEDULABLE, "has the scheduling gates example.com/queue: their owner"),
    ("no node", UNSCHEDULABLE, Reason.UNSCHEDULABLE, "pod nano-engine-z: 0/3 nodes"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "reason", "words"), [row[1:] for row in FOUND], ids=[row[0] for row in FOUND]
)
def test_trouble_is_named_with_its_pod_and_its_words(one: Manifest, reason: Reason, words: str) -> None:
    found = trouble([one], NOW)

    assert found is not None
    assert found.reason is reason
    assert words in found.message
    assert reason in REASONS_OF[ConditionType.DEGRADED]
    assert any(said in found.message for said in (ADVICE.get(reason, "raise"), "their owner"))


PASSING: list[tuple[str, Manifest]] = [
    ("no status yet", {"kind": "Pod", "metadata": {"name": "x"}}),
    ("a container that is being made", with_container(state=waiting("ContainerCreating"))),
    ("one that ended once", with_container(state=ended(), restartCount=1)),
    ("one that ended often and is ready again", with_container(ready=True, state={"running": {}},
     lastState=ended(), restartCount=50)),
    ("one that was killed for memory and is ready again", with_container(ready=True, state={"running": {}},
     lastState=ended("OOMKilled", 137), restartCount=1)),
    ("an init container that is done", with_container(of="initContainerStatuses", ready=True,
     state=ended("Completed", 0))),
    ("a pod that is scheduled", pod(conditions=[{"type": "PodScheduled", "status": "True"}])),
    ("a pod that was evicted", {**with_container(state=ended("OOMKilled", 137)), "status": {
        "phase": "Failed", "reason": "Evicted", "containerStatuses": [{"state": ended("OOMKilled", 137)}]}}),
    ("volumes that are being mounted", pod(phase="Pending", conditions=[
        {**STARTS_LATE, "lastTransitionTime": "2026-01-02T11:59:01Z"}])),
    ("volumes of which nothing is known", pod(phase="Pending", conditions=[
        {**STARTS_LATE, "lastTransitionTime": None}])),
    ("one without containers", pod(containerStatuses=None, initContainerStatuses=None, conditions=None)),
    ("a pod on its way out", {**with_container(state=waiting("ImagePullBackOff")), "metadata": {
        "name": "x", "deletionTimestamp": "2026-01-02T11:59:00Z"}}),
]  # fmt: skip


@pytest.mark.parametrize("one", [row[1] for row in PASSING], ids=[row[0] for row in PASSING])
def test_what_passes_by_itself_is_no_trouble(one: Manifest) -> None:
    assert trouble([one], NOW) is None


@given(st.permutations([row[1] for row in FOUND if row[2] is not Reason.OUT_OF_MEMORY]))
def test_the_worst_is_told_in_whatever_order_the_pods_are_listed(pods: list[Manifest]) -> None:
    found = trouble(pods, NOW)

    assert found is not None
    assert found.reason is Reason.IMAGE_PULL_FAILED
    killed = trouble([*pods, with_container("zzz", state=ended("OOMKilled", 137))], NOW)
    assert killed is not None
    assert killed.message.startswith("pod zzz")


@given(st.permutations([f"nano-engine-{letter}" for letter in "abcd"]))
def test_of_many_pods_with_one_trouble_the_first_by_name_is_told_so_that_the_message_stands_still(
    names: list[str],
) -> None:
    found = trouble((with_container(name, state=waiting("ErrImagePull")) for name in names), NOW)

    assert found is not None
    assert found.message.startswith("pod nano-engine-a,")


def test_of_long_last_words_the_end_is_kept_because_the_error_stands_there() -> None:
    words = "Traceback\n" * 200 + "RuntimeError: no such file"

    found = trouble([with_container(state=ended(message=words), restartCount=5)], NOW)

    assert found is not None
    assert found.message.endswith(f"RuntimeError: no such file; {ADVICE[Reason.ENGINE_CRASHING]}")
    assert len(found.message) < MAX_MESSAGE_CHARACTERS + 200


@pytest.mark.parametrize(
    ("one", "loading", "draining"),
    [
        (pod(), True, False),
        (pod(conditions=[READY]), False, False),
        (pod(going=True), False, True),
        (pod(conditions=[READY], going=True), False, True),
        (pod(phase="Pending"), False, False),
        (pod(phase="Pending", going=True), False, False),
        (pod(component="gateway"), False, False),
        (pod(component="gateway", going=True), False, False),
        ({"metadata": {"labels": None}}, False, False),
    ],
)
def test_an_engine_loads_until_it_is_ready_and_drains_once_it_goes(
    one: Manifest, loading: bool, draining: bool
) -> None:
    assert (is_loading(one), is_draining(one, NOW)) == (loading, draining)


LOST = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]


@pytest.mark.parametrize(
    ("conditions", "lost"),
    [
        (LOST, True),
        ([LOST[0]], False),
        ([{**LOST[0], "reason": "ReadinessGatesNotReady"}, LOST[1]], False),
        ([LOST[0], {"type": "ContainersReady", "status": "False"}], False),
        ([READY, LOST[1]], False),
    ],
)
def test_a_pod_that_the_control_plane_took_ready_from_is_on_a_lost_node_and_loads_nothing(
    conditions: list[Manifest], lost: bool
) -> None:
    one = {**pod(conditions=conditions), "spec": {"nodeName": "n1"}}

    found = trouble([one], NOW)

    assert (found.reason if found else None) == (Reason.NODE_LOST if lost else None)
    assert is_loading(one) == (not lost and conditions[0] is not READY)


@pytest.mark.parametrize(
    ("at", "where", "phase", "overdue"),
    [
        ("2026-01-02T11:58:59Z", "n1", "Running", True),
        ("2026-01-02T11:59:00Z", "n1", "Running", False),
        ("2026-01-02T11:00:00Z", None, "Running", False),
        ("2026-01-02T11:00:00Z", "n1", "Failed", False),
        ("no time", "n1", "Running", False),
    ],
)
def test_an_engine_that_is_to_go_drains_until_its_node_should_have_ended_it(
    at: str, where: str | None, phase: str, overdue: bool
) -> None:
    one = {**pod(phase=phase), "spec": {"nodeName": where}}
    one["metadata"] |= {"deletionTimestamp": at}

    found = trouble([one], NOW)

    assert (found.reason if found else None) == (Reason.NODE_LOST if overdue else None)
    assert is_draining(one, NOW) == (not overdue and phase == "Running")


def deployment(generation: int = 1, wanted: int | None = 3, **status: Any) -> Manifest:
    return {"metadata": {"generation": generation}, "spec": {"replicas": wanted}, "status": status}


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (None, WorkloadState()),
        ({"metadata": {}}, WorkloadState(exists=True, current=True, desired=1)),
        (deployment(wanted=None), WorkloadState(exists=True, desired=1)),
        (deployment(wanted=0, observedGeneration=1), WorkloadState(exists=True, current=True, desired=0)),
        (deployment(generation=2, observedGeneration=1), WorkloadState(exists=True, desired=3)),
        (
            deployment(observedGeneration=1, replicas=4, updatedReplicas=2, readyReplicas=3),
            WorkloadState(exists=True, current=True, desired=3, replicas=4, updated=2, ready=3),
        ),
        (
            deployment(observedGeneration=1, readyReplicas=None),
            WorkloadState(exists=True, current=True, desired=3),
        ),
    ],
)
def test_numbers_that_a_deployment_leaves_out_are_zero(
    given_: Manifest | None, expected: WorkloadState
) -> None:
    assert workload_state(given_) == expected


@pytest.mark.parametrize(
    ("condition", "stuck"),
    [
        ({"status": "False", "reason": "ProgressDeadlineExceeded", "message": "no room"}, "no room"),
        ({"status": "False", "reason": "ProgressDeadlineExceeded"}, "no progress within the deadline"),
        ({"status": "True", "reason": "ProgressDeadlineExceeded"}, None),
        ({"status": "False", "reason": "FailedCreate", "message": "quota"}, None),
    ],
)
def test_a_deployment_is_stuck_when_its_controller_says_so(
    condition: dict[str, str], stuck: str | None
) -> None:
    conditions = [{"type": "Available", "status": "True"}, {"type": "Progressing", **condition}]

    assert workload_state(deployment(conditions=conditions)).stuck == stuck


def test_what_to_do_follows_a_sentence_without_its_full_stop() -> None:
    said = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}

    found = trouble([pod(phase="Pending", conditions=[condition])], NOW)

    assert found is not None
    assert f"{said[:-1]}; {ADVICE[Reason.UNSCHEDULABLE]}" in found.message


def failed(name: str, at: str = "2026-01-02T11:50:00Z", *, component: str = "engine") -> Manifest:
    one = pod(name, component=component, phase="Failed", reason="OutOfcpu", message="Node has no cpu")
    one["status"]["startTime"] = at
    return one


def made_of(template: str, one: Manifest) -> Manifest:
    one["metadata"].setdefault("labels", {})["pod-template-hash"] = template
    return one


BEFORE = "2026-01-02T10:59:59Z"


@pytest.mark.parametrize(
    ("pods", "told"),
    [
        ([failed("a"), failed("b")], "a"),
        ([failed("a"), failed("b"), pod("c")], "a"),
        ([failed("a"), failed("b"), pod("c", conditions=[READY]), pod("d", phase="Pending")], "a"),
        ([failed("b", "2026-01-02T11:40:00Z"), failed("a")], "b"),
        ([failed("a"), failed("b"), pod("c", conditions=[READY])], None),
        ([failed("a")], None),
        ([failed("a"), failed("b", BEFORE)], None),
        ([failed("a"), failed("b", component="gateway")], None),
        ([failed("a", component="loader"), failed("b", component="loader")], None),
        ([pod("a", phase="Failed"), pod("b", phase="Failed")], None),
        ([made_of("1", failed("a")), made_of("1", failed("b")), made_of("2", pod("c"))], None),
        ([made_of("2", failed("a")), made_of("2", failed("b")), made_of("2", pod("c"))], "a"),
        ([made_of("1", failed("a")), made_of("2", failed("b"))], "a"),
    ],
)
def test_pods_fail_one_after_the_other_if_several_of_a_component_did_lately_and_none_took_their_place(
    pods: list[Manifest], told: str | None
) -> None:
    found = trouble(pods, NOW)

    assert (found.reason if found else None) == (Reason.PODS_FAILED if told else None)
    assert found is None or f"pod {told}: OutOfcpu: Node has no cpu; " in found.message


def test_the_one_engine_that_was_evicted_is_told_while_another_starts_in_its_place() -> None:
    def of(template: str, name: str, at: str, **status: Any) -> Manifest:
        one = pod(name, **status)
        one["metadata"] |= {"creationTimestamp": at}
        one["metadata"]["labels"]["pod-template-hash"] = template
        return one

    words = "Pod ephemeral local storage usage exceeds the total limit of containers 64Mi. "
    how = {"phase": "Failed", "reason": "Evicted", "message": words}
    evicted = of("t1", "nano-engine-a", "2026-01-02T11:55:00Z", **how)
    starting = of("t1", "nano-engine-b", "2026-01-02T11:59:00Z")

    said = replaced_failure([evicted, starting], NOW)

    assert said == (
        "pod nano-engine-a: Evicted: Pod ephemeral local storage usage exceeds the total limit of containers "
        "64Mi"
    )
    assert trouble([evicted, starting], NOW) is None
    assert replaced_failure([starting], NOW) == ""
    assert replaced_failure([evicted, of("t2", "nano-engine-c", "2026-01-02T11:59:00Z")], NOW) == ""
    long_ago = of("t1", "nano-engine-a", "2026-01-02T11:40:00Z", **how)
    assert replaced_failure([long_ago, starting], NOW) == ""
