"""`EngineHistory`: the times since which engines fail, and since which none of them has moved.

The status of a pod does not say when a pull of its image first failed, and nothing records when another pod
ended. The operator remembers both while it runs; after a restart it counts from its first observation, so it
waits longer and never shorter. Called by `reconcile`, once for each observation of the pods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mamba_api.v1alpha1.conditions import Reason
from mamba_operator.objects.manifest import Manifest, is_terminating, metadata, name_of
from mamba_operator.objects.pod_trouble import answers, has_ended, has_place, is_engine, trouble

FATAL = frozenset(
    {
        Reason.IMAGE_PULL_FAILED,
        Reason.CONTAINER_NOT_CREATED,
        Reason.MODEL_NOT_LOADED,
        Reason.ENGINE_CRASHING,
        Reason.OUT_OF_MEMORY,
    }
)
"""Reasons that the pod itself causes. Others, such as missing room, wait for the progress deadline."""


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Times from the past of one deployment's engines."""

    failing_since: Mapping[str, datetime] = field(default_factory=dict)
    """Name of each engine pod that fails for a reason of its own -> time since which it fails without a
    break."""
    still_since: datetime | None = None
    """Time since which no engine pod came, went, got a node, or changed its readiness."""


class EngineHistory:
    """The past of one deployment's engines."""

    def __init__(self) -> None:
        self._failing: dict[str, datetime] = {}
        self._shape: Any = None
        self._still_since: datetime | None = None

    def observe(self, pods: Sequence[Manifest], now: datetime) -> EngineTimes:
        """Add one observation of the pods of the deployment, and return the times."""
        engines = [pod for pod in pods if is_engine(pod)]
        failing = [
            name_of(pod)
            for pod in engines
            if (pod_problem := trouble([pod], now)) and pod_problem.reason in FATAL
        ]
        self._failing = {name: self._failing.get(name, now) for name in failing}
        shape = {
            (name_of(pod), metadata(pod).get("uid"), has_place(pod), answers(pod), is_terminating(pod))
            for pod in engines
            if not has_ended(pod)
        }
        if shape != self._shape:
            self._shape, self._still_since = shape, now
        return EngineTimes(dict(self._failing), self._still_since)
