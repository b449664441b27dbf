"""Problems of pods as reasons and messages of conditions, and predicates over pods. Pure."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mamba_api import names
from mamba_api.v1alpha1.conditions import Reason
from mamba_operator.objects.manifest import Manifest, is_terminating, metadata, name_of
from mamba_operator.objects.recorded_status import parse_timestamp

PULL_FAILED = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
BEFORE_THE_FIRST = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons for which a container waits before the first container of its pod has started. PodInitializing
occurs if the pod has init containers."""
NOT_CREATED = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
CRASHES_BEFORE_TROUBLE = 1
"""Number of restarts that are not reported, as they may be accidental. A container in back-off is reported at
once."""
FAILURES_BEFORE_TROUBLE = 2
"""Number of recently failed pods of a component, not replaced by a ready one, from which the failures are
reported."""
SINGLE_FAILURE_SECONDS = 600.0
"""Seconds for which the failure of a single engine is mentioned while another one starts in its place."""
REPEATED_FAILURE_SECONDS = 3600.0
"""Seconds within which failed pods count. An engine that fills its node's disk with a download is evicted
only about every ten minutes."""
MAX_END_SECONDS = 60.0
"""Seconds after the end of its grace period from which a terminating pod is overdue, so that its node counts
as lost."""
MAX_MOUNT_SECONDS = 60.0
"""Seconds that a pod may wait for its volumes and network. Children that are created together with it exist
within a few seconds."""
WRONG_INPUT = 2
"""Exit code of `mambaserve` for unusable input: arguments, settings, or the model's files."""
EXCEEDED_QUOTA = "exceeded quota"
"""Part of the API server's message about a pod for which a quota has no room."""
TEMPLATE_LABEL = "pod-template-hash"
MAX_MESSAGE_CHARACTERS = 500
"""Maximum number of characters of the message of a container or condition that are repeated in a
condition."""
SEVERITY = (
    Reason.OUT_OF_MEMORY, Reason.IMAGE_PULL_FAILED, Reason.CONTAINER_NOT_CREATED, Reason.DOWNLOAD_FAILED,
    Reason.MODEL_NOT_LOADED, Reason.ADAPTER_NOT_LOADED,
    Reason.ENGINE_CRASHING, Reason.GATEWAY_CRASHING, Reason.PODS_FAILED, Reason.NODE_LOST,
    Reason.VOLUMES_NOT_MOUNTED, Reason.CLAIM_NOT_BOUND, Reason.UNSCHEDULABLE,
)  # fmt: skip


_WAITS_FOR_VOLUME = re.compile(
    r"persistentvolumeclaim|persistent volumes to bind|volume node affinity", re.IGNORECASE
)
"""Pattern of the scheduler's message about a pod that waits for a volume and not for a node."""
_ADAPTER = re.compile(r"\badapter [A-Za-z0-9][A-Za-z0-9._/:@-]*: ")
"""Pattern of the last words of an engine that could not load an adapter, which name it."""
ADVICE: dict[Reason, str] = {
    Reason.IMAGE_PULL_FAILED: "correct the image, or give the pods a Secret with which to pull it",
    Reason.CONTAINER_NOT_CREATED: "create the Secret, ConfigMap or key that is named, or correct its name",
    Reason.DOWNLOAD_FAILED: "check spec.model.uri, its Secret, the network and the space of the volume",
    Reason.MODEL_NOT_LOADED: "check that spec.model.uri has all files, and spec.engine.extraArgs",
    Reason.ADAPTER_NOT_LOADED: (
        "correct the adapter in spec.model.adapters or remove it; engines that already serve continue"
    ),
    Reason.ENGINE_CRASHING: "look for the cause in `kubectl logs --previous` of the pod",
    Reason.GATEWAY_CRASHING: "look for the cause in `kubectl logs --previous` of the pod",
    Reason.PODS_FAILED: "give its node the resource that the message names, or add it to the pods' requests",
    Reason.NODE_LOST: "bring the node back or delete it; `kubectl delete pod --force` frees one pod alone",
    Reason.VOLUMES_NOT_MOUNTED: (
        "check that each object exists and that the node can mount it, and check the node's network"
    ),
    Reason.CLAIM_NOT_BOUND: "create the claim, or a volume that fits its class and access mode",
    Reason.UNSCHEDULABLE: "add a node that fits, or request less in spec.resources or spec.scheduling",
    Reason.PODS_REFUSED: "raise the quota, satisfy the rule with spec.podTemplate, or repair the webhook",
    Reason.PROGRESS_DEADLINE_EXCEEDED: "check the newest pods, and undo the change or correct what they lack",
}
"""Advice for each reason. It ends the message of the condition."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A problem of a pod that a user has to look at, with its reason and message."""

    reason: Reason
    message: str


def trouble(pods: Iterable[Manifest], now: datetime) -> Trouble | None:
    """Return the most severe problem of all pods; None if there is no problem.

    Of equally severe problems, the one of the first pod by name counts.
    """
    ordered = sorted(pods, key=name_of)
    problems = [problem for pod in ordered if _is_current(pod) for problem in _pod_troubles(pod, now)]
    problems += [_lost(pod, "has not ended it") for pod in ordered if is_overdue(pod, now)]
    for is_of_component in (is_engine, is_gateway):
        problems += _failures([pod for pod in ordered if is_of_component(pod)], now)
    return min(problems, key=lambda problem: SEVERITY.index(problem.reason), default=None)


def has_ended(pod: Manifest) -> bool:
    """Return whether a pod has ended, for instance by eviction, and only its record remains."""
    return _phase(pod) in ("Failed", "Succeeded")


def _is_current(pod: Manifest) -> bool:
    return not has_ended(pod) and not is_terminating(pod)


def _failures(pods: Sequence[Manifest], now: datetime) -> Iterator[Trouble]:
    """Yield the problem of a component whose pods are refused or evicted by nodes one after the other.

    Living pods do not show it, because a Deployment creates the next pod at once.
    """
    recent = _failed(pods, now, REPEATED_FAILURE_SECONDS)
    if len(recent) < FAILURES_BEFORE_TROUBLE:
        return
    first = max(recent, key=lambda pod: _since(pod, now))
    yield _trouble(Reason.PODS_FAILED, f"pods fail one after the other: {_failure(first)}")


def replaced_failure(pods: Iterable[Manifest], now: datetime) -> str:
    """Return the failure of the last engine pod, such as an eviction, that another pod now replaces.

    Empty if none failed recently. A single failure is not reported as a problem.
    """
    recent = _failed([pod for pod in pods if is_engine(pod)], now, SINGLE_FAILURE_SECONDS)
    return _failure(min(recent, key=lambda pod: _since(pod, now))).removesuffix(".") if recent else ""


def _failed(pods: Sequence[Manifest], now: datetime, seconds: float) -> list[Manifest]:
    """Return the pods that failed within `seconds`, unless pods of their template now answer."""
    recent = [pod for pod in pods if _phase(pod) == "Failed" and _since(pod, now) < seconds]
    if living := [pod for pod in pods if _is_current(pod)]:
        # Failures of an earlier template say nothing about pods of the current one.
        waiting = {_template(pod) for pod in living if not answers(pod)}
        recent = [pod for pod in recent if _template(pod) in waiting]
    return recent


def _failure(pod: Manifest) -> str:
    status = pod.get("status") or {}
    reason = f"{status['reason']}: " if status.get("reason") and status.get("message") else ""
    return f"pod {name_of(pod)}: {reason}{last_words(status)}"


def _template(pod: Manifest) -> str | None:
    """Return the hash of the template from which a Deployment created the pod; None if it has no label."""
    return (metadata(pod).get("labels") or {}).get(TEMPLATE_LABEL)


def _since(pod: Manifest, now: datetime) -> float:
    """Return the seconds since the last recorded change of a pod; its status has no time of its failure."""
    status = pod.get("status") or {}
    times = [metadata(pod).get("creationTimestamp"), status.get("startTime")]
    times += [condition.get("lastTransitionTime") for condition in status.get("conditions") or ()]
    parsed = [when for time in times if time and (when := parse_timestamp(str(time))) is not None]
    return (now - max(parsed)).total_seconds() if parsed else float("inf")


def _phase(pod: Manifest) -> str | None:
    return (pod.get("status") or {}).get("phase")


def is_loading(pod: Manifest) -> bool:
    """Return whether an engine runs and is not ready yet."""
    status = pod.get("status") or {}
    return (
        is_engine(pod)
        and not is_terminating(pod)
        and status.get("phase") == "Running"
        and not says_ready(status)
        and not _is_on_lost_node(pod)
    )


def _is_on_lost_node(pod: Manifest) -> bool:
    """Return whether the control plane has marked the pod as not ready because its node is lost.

    Unlike a kubelet, the control plane then writes no reason, and leaves the condition ContainersReady as it
    was.
    """
    all_conditions = (pod.get("status") or {}).get("conditions") or ()
    conditions = {condition.get("type"): condition for condition in all_conditions}
    ready, containers = conditions.get("Ready") or {}, conditions.get("ContainersReady") or {}
    return (ready.get("status"), containers.get("status")) == ("False", "True") and not ready.get("reason")


def is_overdue(pod: Manifest, now: datetime) -> bool:
    """Return whether the pod should have ended long ago, so that its node counts as lost."""
    until = parse_timestamp(str(metadata(pod).get("deletionTimestamp")))
    late = until is not None and (now - until).total_seconds() > MAX_END_SECONDS
    return late and _phase(pod) == "Running" and bool((pod.get("spec") or {}).get("nodeName"))


def _lost(pod: Manifest, what: str) -> Trouble:
    node = (pod.get("spec") or {}).get("nodeName")
    return _trouble(Reason.NODE_LOST, f"pod {name_of(pod)}: its node {node} {what}")


def is_downloading(pod: Manifest) -> bool:
    """Return whether an engine's pod is downloading its model to a user's claim."""
    statuses = (pod.get("status") or {}).get("initContainerStatuses") or ()
    return is_engine(pod) and not is_terminating(pod) and any(
        status.get("name") == names.LOADER_CONTAINER
        and (status.get("state") or {}).get("running") is not None
        for status in statuses
    )  # fmt: skip


def is_being_created(pod: Manifest) -> bool:
    """Return whether the pod is an engine that waits for its first container, for instance for volumes."""
    return is_engine(pod) and waits_for_mounts(pod)


def waits_for_mounts(pod: Manifest) -> bool:
    """Return whether a pod of any component waits for its first container."""
    status = pod.get("status") or {}
    containers = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    waits = {((container.get("state") or {}).get("waiting") or {}).get("reason") for container in containers}
    return not is_terminating(pod) and bool(waits) and waits <= BEFORE_THE_FIRST


def is_engine(pod: Manifest) -> bool:
    """Return whether the pod is an engine."""
    return _component(pod) == "engine"


def is_candidate(pod: Manifest) -> bool:
    """Return whether the pod is an engine of a canary's new revision."""
    return (metadata(pod).get("labels") or {}).get(names.LABEL_TRACK) == names.CANDIDATE


def role_of(pod: Manifest) -> str:
    """Return the role of an engine pod; pods of earlier versions have no label and are unified."""
    return str((metadata(pod).get("labels") or {}).get(names.LABEL_ROLE) or "unified")


def is_loader(pod: Manifest) -> bool:
    """Return whether the pod downloads the model."""
    return _component(pod) == "loader"


def is_gateway(pod: Manifest) -> bool:
    """Return whether the pod is a gateway."""
    return _component(pod) == "gateway"


def _component(pod: Manifest) -> str | None:
    return (metadata(pod).get("labels") or {}).get(names.LABEL_COMPONENT)


def node_of(pod: Manifest) -> str:
    """Return the name of the pod's node; empty while it has none."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def waits_for_node(pod: Manifest) -> bool:
    """Return whether the pod has no node yet: none has room, or a scheduling gate holds the pod back."""
    return not has_place(pod) and (
        bool((pod.get("spec") or {}).get("schedulingGates"))
        or any(
            condition.get("type") == "PodScheduled" and condition.get("status") == "False"
            for condition in (pod.get("status") or {}).get("conditions") or ()
        )
    )


def has_place(pod: Manifest) -> bool:
    """Return whether the pod takes up room on a node."""
    return not has_ended(pod) and (bool(node_of(pod)) or _phase(pod) == "Running")


def is_draining(pod: Manifest, now: datetime) -> bool:
    """Return whether the pod is an engine that finishes its requests before it ends."""
    running = is_engine(pod) and is_terminating(pod) and _phase(pod) == "Running"
    return running and not is_overdue(pod, now)


def answers(pod: Manifest) -> bool:
    """Return whether a pod is ready and not being deleted."""
    return not is_terminating(pod) and says_ready(pod.get("status") or {})


def serves(pod: Manifest) -> bool:
    """Return whether the pod is an engine that `answers`."""
    return is_engine(pod) and answers(pod)


def says_ready(status: Manifest) -> bool:
    """Return whether the status of a pod has the condition that it is ready."""
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ())


def _pod_troubles(pod: Manifest, now: datetime) -> Iterator[Trouble]:
    status = pod.get("status") or {}
    if _is_on_lost_node(pod):
        yield _lost(pod, "is not ready")
    if gates := [str(gate.get("name")) for gate in (pod.get("spec") or {}).get("schedulingGates") or ()]:
        message = (
            f"pod {name_of(pod)} is not scheduled, because it has the scheduling gates {', '.join(gates)}: "
            "their owner, such as a queue, has to remove them"
        )
        yield Trouble(Reason.UNSCHEDULABLE, message)
    for condition in status.get("conditions") or ():
        yield from _condition_troubles(pod, condition, now)
    for container in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        yield from _container_troubles(pod, container)


def _condition_troubles(pod: Manifest, condition: dict[str, Any], now: datetime) -> Iterator[Trouble]:
    if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
        message = last_words(condition)
        claim = _WAITS_FOR_VOLUME.search(message) is not None
        yield _trouble(
            Reason.CLAIM_NOT_BOUND if claim else Reason.UNSCHEDULABLE, f"pod {name_of(pod)}: {message}"
        )
    if condition.get("type") == "PodReadyToStartContainers" and condition.get("status") == "False":
        # Volumes are mounted before this condition becomes True; no other part of the status shows it.
        since = parse_timestamp(str(condition.get("lastTransitionTime")))
        if since is not None and (now - since).total_seconds() >= MAX_MOUNT_SECONDS:
            yield _trouble(Reason.VOLUMES_NOT_MOUNTED, f"pod {name_of(pod)} still waits for {_mounts(pod)}")


def _container_troubles(pod: Manifest, container: dict[str, Any]) -> Iterator[Trouble]:
    node = f" on node {node_of(pod)}" if node_of(pod) else ""
    where = f"pod {name_of(pod)}{node}, container {container.get('name')}"
    waiting, ended = _waiting_and_ended(container)
    if waiting.get("reason") in PULL_FAILED:
        yield _trouble(Reason.IMAGE_PULL_FAILED, f"{where}: {last_words(waiting)}")
    if waiting.get("reason") in NOT_CREATED:
        yield _trouble(Reason.CONTAINER_NOT_CREATED, f"{where}: {last_words(waiting)}")
    elif ended and ended.get("reason") == "OOMKilled" and not container.get("ready"):
        yield Trouble(Reason.OUT_OF_MEMORY, f"{where} was killed for memory: raise {_memory(pod, container)}")
    elif waiting.get("reason") == "CrashLoopBackOff" or (
        ended and not container.get("ready") and container.get("restartCount", 0) > CRASHES_BEFORE_TROUBLE
    ):
        code = f"exit code {ended.get('exitCode')}: " if ended else ""
        yield _trouble(
            _crash(pod, container, ended),
            f"{where} ended again and again: {code}{last_words(ended or waiting)}",
        )


def _waiting_and_ended(container: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the states `waiting` and, of this or the last run, `terminated`; empty where there is none."""
    state, last_state = container.get("state") or {}, container.get("lastState") or {}
    return state.get("waiting") or {}, state.get("terminated") or last_state.get("terminated") or {}


def _trouble(reason: Reason, message: str) -> Trouble:
    return Trouble(reason, advised(reason, message))


def advised(reason: Reason, message: str) -> str:
    """Return the message, without a full stop at its end, and the advice for the reason."""
    return f"{message.removesuffix('.')}; {ADVICE[reason]}"


def advised_refusal(message: str) -> str:
    """Return the cluster's message about the refusal of a pod, and the advice."""
    with_advice = advised(Reason.PODS_REFUSED, message)
    if EXCEEDED_QUOTA not in message:
        return with_advice
    return f"{with_advice}; spec.rollout.maxSurge 0 with maxUnavailable 1 replaces engines within the quota"


def _crash(pod: Manifest, container: dict[str, Any], ended: dict[str, Any]) -> Reason:
    if is_loader(pod):
        return Reason.DOWNLOAD_FAILED
    if not is_engine(pod):
        return Reason.GATEWAY_CRASHING
    if container.get("name") == names.LOADER_CONTAINER:
        return Reason.DOWNLOAD_FAILED
    ours = container.get("name") == names.ENGINE_CONTAINER
    if ours and _ADAPTER.search(str(ended.get("message") or "")):
        return Reason.ADAPTER_NOT_LOADED
    return (
        Reason.MODEL_NOT_LOADED if ours and ended.get("exitCode") == WRONG_INPUT else Reason.ENGINE_CRASHING
    )


def _memory(pod: Manifest, container: dict[str, Any]) -> str:
    """Return the limit to raise for a container that was killed for memory."""
    if is_engine(pod) and container.get("name") == names.ENGINE_CONTAINER:
        return "spec.resources.memory"
    if is_gateway(pod) and container.get("name") == names.GATEWAY_CONTAINER:
        return "the memory in spec.gateway.podTemplate"
    return (
        "its memory limit in the container's source: a pod template, a LimitRange or an injector of sidecars"
    )


def _mounts(pod: Manifest) -> str:
    """Name what the pod waits for: its network, and the objects that its volumes mount."""
    sources = []
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        if secret := (volume.get("secret") or {}).get("secretName"):
            sources.append(f"Secret {secret}")
        if config := (volume.get("configMap") or {}).get("name"):
            sources.append(f"ConfigMap {config}")
        if claim := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
            sources.append(f"PersistentVolumeClaim {claim}")
    return f"its network or its volumes: {', '.join(sources)}" if sources else "its network"


def last_words(source: dict[str, Any]) -> str:
    """Return the message of a part of a status. Of a long text, return the end, which has the cause."""
    text = str(source.get("message") or source.get("reason") or "no message").strip()
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else "…" + text[-MAX_MESSAGE_CHARACTERS:]
