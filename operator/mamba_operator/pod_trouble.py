"""What pods suffer from, in the words of conditions. Pure; called by `status`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mamba_api import names
from mamba_api.conditions import Reason
from mamba_operator.manifest import Manifest, is_terminating, metadata

PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
CRASHES_BEFORE_TROUBLE = 1
"""Restarts that may be chance; a container in back-off is trouble at once."""
MAX_WORDS = 500
SEVERITY = (Reason.OUT_OF_MEMORY, Reason.IMAGE_PULL_FAILED, Reason.ENGINE_CRASHING, Reason.UNSCHEDULABLE)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something a person has to look at."""

    reason: Reason
    message: str


def trouble(pods: Iterable[Manifest]) -> Trouble | None:
    """The worst trouble of all pods, by the name of the first pod that has it."""
    found = [one for pod in sorted(pods, key=_name) if not is_terminating(pod) for one in _of(pod)]
    return min(found, key=lambda one: SEVERITY.index(one.reason), default=None)


def is_loading(pod: Manifest) -> bool:
    """Whether an engine runs and is not ready yet."""
    status = pod.get("status") or {}
    return (
        is_engine(pod) and not is_terminating(pod) and status.get("phase") == "Running" and not _ready(status)
    )


def is_being_created(pod: Manifest) -> bool:
    """Whether an engine waits for its first container, as it does for what it mounts."""
    status = pod.get("status") or {}
    waits = [
        ((one.get("state") or {}).get("waiting") or {}).get("reason")
        for one in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    ]
    return is_engine(pod) and not is_terminating(pod) and "ContainerCreating" in waits


def is_engine(pod: Manifest) -> bool:
    """Whether the pod is an engine."""
    return (metadata(pod).get("labels") or {}).get(names.LABEL_COMPONENT) == "engine"


def is_draining(pod: Manifest) -> bool:
    """Whether an engine finishes its requests before it ends."""
    return is_engine(pod) and is_terminating(pod) and (pod.get("status") or {}).get("phase") == "Running"


def _name(pod: Manifest) -> str:
    return str(metadata(pod).get("name", ""))


def _ready(status: Manifest) -> bool:
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ())


def _of(pod: Manifest) -> Iterator[Trouble]:
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            yield Trouble(Reason.UNSCHEDULABLE, f"pod {_name(pod)}: {_words(condition)}")
    for container in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        yield from _of_container(pod, container)


def _of_container(pod: Manifest, container: dict[str, Any]) -> Iterator[Trouble]:
    where = f"pod {_name(pod)}, container {container.get('name')}"
    waiting = (container.get("state") or {}).get("waiting") or {}
    ended = (container.get("state") or {}).get("terminated") or (container.get("lastState") or {}).get(
        "terminated"
    )
    if waiting.get("reason") in PULL:
        yield Trouble(Reason.IMAGE_PULL_FAILED, f"{where}: {_words(waiting)}")
    if ended and ended.get("reason") == "OOMKilled" and not container.get("ready"):
        yield Trouble(Reason.OUT_OF_MEMORY, f"{where} was killed for memory: raise spec.resources.memory")
    elif waiting.get("reason") == "CrashLoopBackOff" or (
        ended and not container.get("ready") and container.get("restartCount", 0) > CRASHES_BEFORE_TROUBLE
    ):
        code = f"exit code {ended.get('exitCode')}: " if ended else ""
        yield Trouble(
            Reason.ENGINE_CRASHING, f"{where} ended again and again: {code}{_words(ended or waiting)}"
        )


def _words(source: dict[str, Any]) -> str:
    text = str(source.get("message") or source.get("reason") or "no message").strip()
    return text if len(text) <= MAX_WORDS else "…" + text[-MAX_WORDS:]
