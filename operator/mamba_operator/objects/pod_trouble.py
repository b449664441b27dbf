"""What pods suffer from, in the words of conditions. Pure; called by `status`."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mamba_api import names
from mamba_api.v1alpha1.conditions import Reason
from mamba_operator.objects.manifest import Manifest, is_terminating, metadata, name_of
from mamba_operator.objects.timestamp import parse_timestamp

PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
BEFORE_THE_FIRST = frozenset({"ContainerCreating", "PodInitializing"})
"""What each container waits for before a pod's first has started; the second if it has init containers."""
NOT_CREATED = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
CRASHES_BEFORE_TROUBLE = 1
"""Restarts that may be chance; a container in back-off is trouble at once."""
FAILURES_BEFORE_TROUBLE = 2
"""Pods of a component that failed lately and whose place none has taken; one alone is no trouble."""
RECENTLY = 600.0
"""Seconds in which one alone is told, while another starts in its place."""
LATELY = 3600.0
"""Seconds. An engine that fills its node's disk while it downloads is evicted only every some ten minutes."""
LONGEST_END = 60.0
"""Seconds beyond its grace period in which a kubelet has ended a pod; a node that is gone never does."""
LONGEST_MOUNT = 60.0
"""Seconds that a pod may wait for its volumes and its network; what is created with it comes within a few."""
WRONG_INPUT = 2
"""Exit code of `mambaserve` when what it was given cannot be used: arguments, settings, the model's files."""
EXCEEDED_QUOTA = "exceeded quota"
"""What the API server says of a pod for which a quota has no room."""
TEMPLATE_LABEL = "pod-template-hash"
MAX_WORDS = 500
SEVERITY = (
    Reason.OUT_OF_MEMORY, Reason.IMAGE_PULL_FAILED, Reason.CONTAINER_NOT_CREATED, Reason.DOWNLOAD_FAILED,
    Reason.MODEL_NOT_LOADED,
    Reason.ENGINE_CRASHING, Reason.GATEWAY_CRASHING, Reason.PODS_FAILED, Reason.NODE_LOST,
    Reason.VOLUMES_NOT_MOUNTED, Reason.CLAIM_NOT_BOUND, Reason.UNSCHEDULABLE,
)  # fmt: skip


_OF_CLAIMS = re.compile(
    r"persistentvolumeclaim|persistent volumes to bind|volume node affinity", re.IGNORECASE
)
"""What the scheduler says of a pod that waits for a volume and not for a node."""
ADVICE: dict[Reason, str] = {
    Reason.IMAGE_PULL_FAILED: "correct the image, or give the pods a Secret to pull it with",
    Reason.CONTAINER_NOT_CREATED: "make the Secret, ConfigMap or key that is named, or correct its name",
    Reason.DOWNLOAD_FAILED: "check spec.model.uri, its Secret, the way to the Hub and the room on the volume",
    Reason.MODEL_NOT_LOADED: "check that spec.model.uri has all files, and spec.engine.extraArgs",
    Reason.ENGINE_CRASHING: "`kubectl logs --previous` of the pod has the rest",
    Reason.GATEWAY_CRASHING: "`kubectl logs --previous` of the pod has the rest",
    Reason.PODS_FAILED: "give its node what the message names, or ask for it in the pods' requests",
    Reason.NODE_LOST: "bring the node back or delete it; `kubectl delete pod --force` frees one pod alone",
    Reason.VOLUMES_NOT_MOUNTED: "check that each exists and can be mounted on that node",
    Reason.CLAIM_NOT_BOUND: "make the claim, or a volume that its class and access mode can have",
    Reason.UNSCHEDULABLE: "add such a node, or ask for less in spec.resources or spec.scheduling",
    Reason.PODS_REFUSED: "raise the quota, meet the rule with spec.podTemplate, or mend the webhook",
    Reason.PROGRESS_DEADLINE_EXCEEDED: "look at its newest pods, and undo the change or mend what they lack",
}
"""What to do, at the end of the message."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something a person has to look at."""

    reason: Reason
    message: str


def trouble(pods: Iterable[Manifest], now: datetime) -> Trouble | None:
    """The worst trouble of all pods, by the name of the first pod that has it."""
    ordered = sorted(pods, key=name_of)
    found = [one for pod in ordered if _is_current(pod) for one in _pod_troubles(pod, now)]
    found += [_lost(pod, "has not ended it") for pod in ordered if is_overdue(pod, now)]
    for is_one in (is_engine, is_gateway):
        found += _failures([pod for pod in ordered if is_one(pod)], now)
    return min(found, key=lambda one: SEVERITY.index(one.reason), default=None)


def has_ended(pod: Manifest) -> bool:
    """Whether a pod is a mere record, as one that was evicted is; another has long taken its place."""
    return _phase(pod) in ("Failed", "Succeeded")


def _is_current(pod: Manifest) -> bool:
    return not has_ended(pod) and not is_terminating(pod)


def _failures(pods: Sequence[Manifest], now: datetime) -> Iterator[Trouble]:
    """Of pods of one component: that nodes refuse or evict each that is made, one after the other. None that
    lives tells of it, since a Deployment makes the next one at once."""
    lately = _failed(pods, now, LATELY)
    if len(lately) < FAILURES_BEFORE_TROUBLE:
        return
    first = max(lately, key=lambda pod: _since(pod, now))
    yield _trouble(Reason.PODS_FAILED, f"pods fail one after the other: {_failure(first)}")


def replaced_failure(pods: Iterable[Manifest], now: datetime) -> str:
    """What the engine died of whose place another one takes, where it failed as a pod, evicted for one; empty
    where none did lately. No trouble, as long as it is one."""
    lately = _failed([pod for pod in pods if is_engine(pod)], now, RECENTLY)
    return _failure(min(lately, key=lambda pod: _since(pod, now))).removesuffix(".") if lately else ""


def _failed(pods: Sequence[Manifest], now: datetime, seconds: float) -> list[Manifest]:
    """Those that failed in that time, and whose place no pod that answers has taken."""
    lately = [pod for pod in pods if _phase(pod) == "Failed" and _since(pod, now) < seconds]
    if living := [pod for pod in pods if _is_current(pod)]:
        # What failed before the template was mended says nothing of the pods that are made of it now.
        waiting = {_template(pod) for pod in living if not answers(pod)}
        lately = [pod for pod in lately if _template(pod) in waiting]
    return lately


def _failure(pod: Manifest) -> str:
    status = pod.get("status") or {}
    reason = f"{status['reason']}: " if status.get("reason") and status.get("message") else ""
    return f"pod {name_of(pod)}: {reason}{last_words(status)}"


def _template(pod: Manifest) -> str | None:
    """Which template a Deployment made the pod of."""
    return (metadata(pod).get("labels") or {}).get(TEMPLATE_LABEL)


def _since(pod: Manifest, now: datetime) -> float:
    """Seconds since the last that was noted of a pod; its status has no time of its failure."""
    status = pod.get("status") or {}
    times = [metadata(pod).get("creationTimestamp"), status.get("startTime")]
    times += [one.get("lastTransitionTime") for one in status.get("conditions") or ()]
    found = [then for time in times if time and (then := parse_timestamp(str(time))) is not None]
    return (now - max(found)).total_seconds() if found else float("inf")


def _phase(pod: Manifest) -> str | None:
    return (pod.get("status") or {}).get("phase")


def is_loading(pod: Manifest) -> bool:
    """Whether an engine runs and is not ready yet."""
    status = pod.get("status") or {}
    return (
        is_engine(pod)
        and not is_terminating(pod)
        and status.get("phase") == "Running"
        and not says_ready(status)
        and not _is_on_lost_node(pod)
    )


def _is_on_lost_node(pod: Manifest) -> bool:
    """Whether the control plane took Ready from it. Unlike a kubelet it gives no reason, and leaves it that
    all containers are ready, which they were when the node was last heard of."""
    said = {one.get("type"): one for one in (pod.get("status") or {}).get("conditions") or ()}
    ready, containers = said.get("Ready") or {}, said.get("ContainersReady") or {}
    return (ready.get("status"), containers.get("status")) == ("False", "True") and not ready.get("reason")


def is_overdue(pod: Manifest, now: datetime) -> bool:
    """Whether its node should have ended it long ago."""
    until = parse_timestamp(str(metadata(pod).get("deletionTimestamp")))
    late = until is not None and (now - until).total_seconds() > LONGEST_END
    return late and _phase(pod) == "Running" and bool((pod.get("spec") or {}).get("nodeName"))


def _lost(pod: Manifest, what: str) -> Trouble:
    node = (pod.get("spec") or {}).get("nodeName")
    return _trouble(Reason.NODE_LOST, f"pod {name_of(pod)}: its node {node} {what}")


def is_downloading(pod: Manifest) -> bool:
    """Whether an engine's pod downloads its model to a claim of the user's, or waits for one that does."""
    statuses = (pod.get("status") or {}).get("initContainerStatuses") or ()
    return is_engine(pod) and not is_terminating(pod) and any(
        one.get("name") == names.LOADER_CONTAINER and (one.get("state") or {}).get("running") is not None
        for one in statuses
    )  # fmt: skip


def is_being_created(pod: Manifest) -> bool:
    """Whether an engine waits for its first container, as it does for what it mounts."""
    return is_engine(pod) and waits_for_mounts(pod)


def waits_for_mounts(pod: Manifest) -> bool:
    """Whether any pod does."""
    status = pod.get("status") or {}
    first = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    waits = {((one.get("state") or {}).get("waiting") or {}).get("reason") for one in first}
    return not is_terminating(pod) and bool(waits) and waits <= BEFORE_THE_FIRST


def is_engine(pod: Manifest) -> bool:
    """Whether the pod is an engine."""
    return _component(pod) == "engine"


def is_loader(pod: Manifest) -> bool:
    """Whether the pod downloads the model."""
    return _component(pod) == "loader"


def is_gateway(pod: Manifest) -> bool:
    """Whether the pod is a gateway."""
    return _component(pod) == "gateway"


def _component(pod: Manifest) -> str | None:
    return (metadata(pod).get("labels") or {}).get(names.LABEL_COMPONENT)


def node_of(pod: Manifest) -> str:
    """Return the name of the node that the pod was given; empty while it has none."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def waits_for_node(pod: Manifest) -> bool:
    """Tell whether the pod has no node yet, since none has room or since a gate holds it back."""
    return not has_place(pod) and (
        bool((pod.get("spec") or {}).get("schedulingGates"))
        or any(
            one.get("type") == "PodScheduled" and one.get("status") == "False"
            for one in (pod.get("status") or {}).get("conditions") or ()
        )
    )


def has_place(pod: Manifest) -> bool:
    """Tell whether the pod takes up room on a node."""
    return not has_ended(pod) and (bool(node_of(pod)) or _phase(pod) == "Running")


def is_draining(pod: Manifest, now: datetime) -> bool:
    """Whether an engine finishes its requests before it ends."""
    running = is_engine(pod) and is_terminating(pod) and _phase(pod) == "Running"
    return running and not is_overdue(pod, now)


def answers(pod: Manifest) -> bool:
    """Whether a pod answers and was not asked to end."""
    return not is_terminating(pod) and says_ready(pod.get("status") or {})


def serves(pod: Manifest) -> bool:
    """Whether the pod is an engine that `answers`."""
    return is_engine(pod) and answers(pod)


def says_ready(status: Manifest) -> bool:
    """Whether a pod of that status answers, by its condition."""
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ())


def _pod_troubles(pod: Manifest, now: datetime) -> Iterator[Trouble]:
    status = pod.get("status") or {}
    if _is_on_lost_node(pod):
        yield _lost(pod, "is not ready")
    if gates := [str(one.get("name")) for one in (pod.get("spec") or {}).get("schedulingGates") or ()]:
        who = "whoever set them, a queue for instance, lets it go"
        said = f"pod {name_of(pod)} is held back by the scheduling gates {', '.join(gates)}: {who}"
        yield Trouble(Reason.UNSCHEDULABLE, said)
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            words = last_words(condition)
            claim = _OF_CLAIMS.search(words) is not None
            yield _trouble(
                Reason.CLAIM_NOT_BOUND if claim else Reason.UNSCHEDULABLE, f"pod {name_of(pod)}: {words}"
            )
        if condition.get("type") == "PodReadyToStartContainers" and condition.get("status") == "False":
            # Volumes are mounted before that; no other part of the status tells that one is not.
            since = parse_timestamp(str(condition.get("lastTransitionTime")))
            if since is not None and (now - since).total_seconds() >= LONGEST_MOUNT:
                yield _trouble(
                    Reason.VOLUMES_NOT_MOUNTED, f"pod {name_of(pod)} still waits for {_mounts(pod)}"
                )
    for container in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        yield from _of_container(pod, container)


def _of_container(pod: Manifest, container: dict[str, Any]) -> Iterator[Trouble]:
    node = f" on node {node_of(pod)}" if node_of(pod) else ""
    where = f"pod {name_of(pod)}{node}, container {container.get('name')}"
    waiting = (container.get("state") or {}).get("waiting") or {}
    ended = (container.get("state") or {}).get("terminated") or (container.get("lastState") or {}).get(
        "terminated"
    )
    if waiting.get("reason") in PULL:
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
            _crash(pod, container, ended or {}),
            f"{where} ended again and again: {code}{last_words(ended or waiting)}",
        )


def _trouble(reason: Reason, message: str) -> Trouble:
    return Trouble(reason, advised(reason, message))


def advised(reason: Reason, message: str) -> str:
    """What was said, which may be a sentence with its full stop, and what to do."""
    return f"{message.removesuffix('.')}; {ADVICE[reason]}"


def advised_refusal(message: str) -> str:
    """Return what the cluster said when it refused to make a pod, and what to do."""
    said = advised(Reason.PODS_REFUSED, message)
    if EXCEEDED_QUOTA not in message:
        return said
    return f"{said}; spec.rollout.maxSurge 0 with maxUnavailable 1 replaces engines within the quota"


def _crash(pod: Manifest, container: dict[str, Any], ended: dict[str, Any]) -> Reason:
    if is_loader(pod):
        return Reason.DOWNLOAD_FAILED
    if not is_engine(pod):
        return Reason.GATEWAY_CRASHING
    if container.get("name") == names.LOADER_CONTAINER:
        return Reason.DOWNLOAD_FAILED
    ours = container.get("name") == names.ENGINE_CONTAINER
    return (
        Reason.MODEL_NOT_LOADED if ours and ended.get("exitCode") == WRONG_INPUT else Reason.ENGINE_CRASHING
    )


def _memory(pod: Manifest, container: dict[str, Any]) -> str:
    """What to raise for a container that was killed for memory."""
    if is_engine(pod) and container.get("name") == names.ENGINE_CONTAINER:
        return "spec.resources.memory"
    if is_gateway(pod) and container.get("name") == names.GATEWAY_CONTAINER:
        return "the memory in spec.gateway.podTemplate"
    return (
        "its memory limit where the container comes from: a pod template, a LimitRange or what adds sidecars"
    )


def _mounts(pod: Manifest) -> str:
    """What has to exist before the pod can start."""
    found = []
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        if secret := (volume.get("secret") or {}).get("secretName"):
            found.append(f"Secret {secret}")
        if config := (volume.get("configMap") or {}).get("name"):
            found.append(f"ConfigMap {config}")
        if claim := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
            found.append(f"PersistentVolumeClaim {claim}")
    return f"its network or its volumes: {', '.join(found)}" if found else "its network"


def last_words(source: dict[str, Any]) -> str:
    """What a part of a status says of itself: of a long text its end, where the cause stands."""
    text = str(source.get("message") or source.get("reason") or "no message").strip()
    return text if len(text) <= MAX_WORDS else "…" + text[-MAX_WORDS:]
