"""`EngineHistory`: since when engines fail, and since when none of them has moved.

The status of a pod does not tell when its image could not be pulled for the first time, nor does anything
date the end of another pod. The operator remembers both while it runs; one that begins anew counts from its
first look, and so waits longer and never shorter. Called by `reconcile`, once for each look at the pods.
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
"""What the pod itself is the cause of. Other troubles wait for the progress deadline: room, volumes."""


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """What is known of the past of one deployment's engines."""

    failing_since: Mapping[str, datetime] = field(default_factory=dict)
    """By name of each engine pod that fails for a reason of its own: since when without a break."""
    still_since: datetime | None = None
    """Since when no engine pod came, went, got a node, became ready or stopped to be so."""


class EngineHistory:
    """The past of one deployment's engines."""

    def __init__(self) -> None:
        self._failing: dict[str, datetime] = {}
        self._shape: Any = None
        self._still_since: datetime | None = None

    def observe(self, pods: Sequence[Manifest], now: datetime) -> EngineTimes:
        """Add one look at the pods of the deployment."""
        engines = [pod for pod in pods if is_engine(pod)]
        failing = [
            name_of(pod) for pod in engines if (found := trouble([pod], now)) and found.reason in FATAL
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
