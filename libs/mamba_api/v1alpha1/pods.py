"""Placement and number of engines: `spec.resources`, `scheduling`, `scaling`, `rollout`.

These parts say what the cluster provides for one engine, and how many engines there are. None of them changes
what an engine computes.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_snake
from pydantic.config import JsonDict

from mamba_api.quantity import Duration, Quantity
from mamba_api.v1alpha1.base import ApiModel, FreeForm, ObjectName, Rule
from mamba_api.v1alpha1.canary import Canary


def _no_default(schema: JsonDict) -> None:
    """Remove a default from the schema, so that the API server does not write it into the object.

    Such a default could not be distinguished from a value that the user wrote.
    """
    schema.pop("default", None)


_NOT_DEFAULTED = Field(json_schema_extra=_no_default)
GpuResource = Annotated[
    str, Field(min_length=1, max_length=316, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")
]  # fmt: skip
ProfileName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]


class Resources(ApiModel):
    """Requests and limits of the engine container."""

    profile: ProfileName | None = None
    """Name of a set of resources, scheduling.nodeSelector, tolerations, runtimeClassName and
    memory.deviceMemory, such as nvidia-l4 or one from the operator's settings. Values of this object win over
    those of the profile, field by field and label by label; the condition Planned shows the result. If the
    definition of the profile changes, engine pods are replaced, as after a change of this object."""
    gpus: Annotated[int, Field(ge=0, le=64), _NOT_DEFAULTED] = 1
    """GPUs of each engine pod: 1, or 0 to serve on the CPU; this version refuses more. Defaults to the value
    of the profile, else 1."""
    gpu_resource: Annotated[GpuResource, _NOT_DEFAULTED] = "nvidia.com/gpu"
    """Extended resource that represents one GPU. Defaults to the value of the profile, else
    nvidia.com/gpu."""
    cpu: Quantity | None = None
    """CPU cores that the engine container requests. Defaults to the value of the profile, else no request."""
    memory: Quantity | None = None
    """Main memory that the engine container requests and is limited to. Defaults to the value of the profile,
    else neither request nor limit."""

    rules = (
        Rule(
            cel="!has(self.gpus) || self.gpus <= 1",
            message=(
                "resources.gpus above 1 is refused by this version: an engine uses one GPU and the others "
                "would idle; set it to 1 and run more engines with spec.replicas"
            ),
            holds=lambda self: self.gpus <= 1,
        ),
    )

    @property
    def leaves_gpus_open(self) -> bool:
        """Whether the profile decides the number of GPUs."""
        return self.profile is not None and "gpus" not in self.model_fields_set

    @model_serializer(mode="wrap")
    def _without_unset(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out defaults that the object did not set: when read again, they would win over a profile."""
        unset = {"gpus", "gpu_resource"} - self.model_fields_set
        return {key: value for key, value in serialize(self).items() if to_snake(key) not in unset}


LabelKey = Annotated[str, Field(min_length=1, max_length=316)]
LabelValue = Annotated[str, Field(max_length=63)]


class Scheduling(ApiModel):
    """Placement of engine pods; each field has the meaning that it has in a pod."""

    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=64)] = {}
    """Labels that a node must have."""
    tolerations: Annotated[list[FreeForm], Field(max_length=64)] = []
    """Taints that the pods tolerate, in addition to those that keep other pods off GPUs: NoSchedule with the
    name of resources.gpuResource, or of the whole GPU of a slice, such as nvidia.com/gpu."""
    affinity: FreeForm | None = None
    """Affinity rules of the pods."""
    priority_class_name: ObjectName | None = None
    """Priority class of the pods."""
    runtime_class_name: ObjectName | None = None
    """Runtime class of the pods, such as nvidia."""


ReplicaCount = Annotated[int, Field(ge=0, le=10_000)]


def _target_rules(field: str) -> tuple[Rule, Rule]:
    """Return the rules of a target: only the operator's autoscaler can hold it, and it cannot be zero."""
    attribute = to_snake(field)
    return (
        Rule(
            cel=f"!has(self.{field}) || (self.mode == 'Internal' && has(self.minReplicas) && "
            "has(self.maxReplicas) && self.minReplicas < self.maxReplicas)",
            message=f"{field} can only be held by the operator's autoscaler: use mode Internal with "
            f"minReplicas below maxReplicas, or remove {field}",
            holds=lambda self: getattr(self, attribute) is None or self.automatic,
        ),
        Rule(
            cel=f"!has(self.{field}) || self.{field}.matches('[1-9]')",
            message=f"{field} is 0, which no number of engines can hold: set it above 0",
            holds=lambda self: (target := getattr(self, attribute)) is None or target.seconds > 0,
        ),
    )


class Scaling(ApiModel):
    """Policy for the number of engines: who decides it, and its bounds."""

    mode: Literal["Internal", "External"] = "Internal"
    """Internal: with minReplicas below maxReplicas the operator decides, based on the reports of engines and
    gateways; otherwise spec.replicas is a fixed number that people write. External: a HorizontalPodAutoscaler
    or KEDA writes spec.replicas through the scale subresource, and nothing else changes the number."""
    min_replicas: ReplicaCount | None = None
    """Minimum number of engines. 0 in mode Internal lets the engines stop until a request arrives, which
    starts one engine, or spec.replicas of them without maxReplicas. While fewer engines answer, the condition
    Available is False. If absent, there is no bound, and engines do not stop by themselves."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Maximum number of engines in every mode; a larger number is refused. Above 1,024 engines, gateways
    choose some of them by load alone and not by their cached prefixes. If absent, there is no bound and no
    autoscaling."""
    ttft_target: Duration | None = None
    """Time to first token that the operator provides enough engines for. If absent, prompts may wait 2 s for
    their turn. Needs mode Internal with minReplicas below maxReplicas."""
    tpot_target: Duration | None = None
    """Time per output token that the operator provides enough engines for. If absent, there is no bound.
    Needs mode Internal with minReplicas below maxReplicas."""
    scale_down_delay: Duration = Duration("300s")
    """How long the largest recommendation holds before engines are removed, and how long no request may have
    arrived before the last engines stop. Bursts are remembered for twelve times as long, and the engines that
    they needed are kept meanwhile."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=("!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas"),
            message="minReplicas is above maxReplicas: raise maxReplicas or lower minReplicas",
            holds=lambda self: (
                self.min_replicas is None
                or self.max_replicas is None
                or self.min_replicas <= self.max_replicas
            ),
        ),
        *_target_rules("ttftTarget"),
        *_target_rules("tpotTarget"),
    )

    @property
    def automatic(self) -> bool:
        """Whether the operator decides the number of engines, beyond starting and stopping the last ones."""
        return (
            self.mode == "Internal"
            and self.min_replicas is not None
            and self.max_replicas is not None
            and self.min_replicas < self.max_replicas
        )


IN_PLACE_AFTER = Duration("10m")
"""Default of inPlaceAfter: longer than a cloud takes to provide a node with GPUs."""
LONGEST_DEADLINE = "596523h"
"""Longest progressDeadline: a Deployment counts seconds in 32 bits."""


class Rollout(ApiModel):
    """Replacement of pods.

    Each pod is drained before it ends. Gateways are replaced one by one, with none missing.
    """

    max_surge: Annotated[int, Field(ge=0, le=1000)] = 1
    """Maximum number of engine pods above the desired number during a roll-out."""
    max_unavailable: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Maximum number of engine pods below the desired number during a roll-out. Defaults to 0. An explicit 0
    without inPlaceAfter also holds where there is no room for one more engine: the roll-out then waits for
    room."""
    in_place_after: Duration | None = None
    """How long a pod added by a roll-out waits for room, on a node or in a quota, that engines of the older
    revision occupy. After that one of those engines is drained first, and requests wait at the gateway for
    the new engine. Meanwhile one engine fewer serves, even if maxUnavailable is 0. Defaults to 10m, or to
    never if maxUnavailable is an explicit 0. A value above progressDeadline means never. Allow for the
    minutes that a cloud needs to provide a node."""
    min_ready_time: Duration = Duration("30s")
    """How long a new engine serves together with engines of the older revision before the next old engine is
    removed: the `minReadySeconds` of the engine Deployment. If the new engines fail more requests than the
    old ones during this time, engines go back to the older revision."""
    pause: bool = False
    """Keeps engines on their present revision: changes that would replace pods wait until this is false
    again. Scaling continues, and a lost pod is replaced by one of the older revision. Gateways do not
    wait."""
    drain_timeout: Duration = Duration("300s")
    """Maximum time that a draining engine or gateway waits for its requests before it ends. A change replaces
    engine and gateway pods."""
    progress_deadline: Duration = Duration("30m")
    """Maximum time that the engines may take without progress, including loading of weights, before the
    roll-out counts as stuck. Must be longer than minReadyTime. A change replaces the engine pods."""
    canary: Canary | None = None
    """Steps in which a change that replaces engines gets more of the traffic, compared with the revision that
    is ready. If absent, the roll-out has no steps: it replaces one engine after the other. While a canary is
    under way, a change of this field acts at once. With pause, no candidate starts and no step begins."""

    @property
    def unavailable(self) -> int:
        """Maximum number of engine pods below the desired number during a roll-out."""
        return self.max_unavailable or 0

    @property
    def in_place_wait(self) -> Duration | None:
        """How long an added pod waits for room before an old one is drained first. None means for ever."""
        if self.in_place_after is None and self.max_unavailable == 0:
            return None
        return self.in_place_after or IN_PLACE_AFTER

    rules = (
        Rule(
            cel="self.maxSurge > 0 || (has(self.maxUnavailable) && self.maxUnavailable > 0)",
            message="maxSurge and maxUnavailable are both 0, so no pod could ever be replaced: raise one",
            holds=lambda self: self.max_surge > 0 or self.unavailable > 0,
        ),
        Rule(
            cel=f"duration(self.progressDeadline) <= duration('{LONGEST_DEADLINE}')",
            message=f"progressDeadline is beyond what a Deployment can count to: at most {LONGEST_DEADLINE}",
            holds=lambda self: self.progress_deadline.seconds <= Duration(LONGEST_DEADLINE).seconds,
        ),
        Rule(
            cel="duration(self.progressDeadline) > duration(self.minReadyTime)",
            message="progressDeadline is not longer than minReadyTime, so that every roll-out would be "
            "called stuck: raise progressDeadline, or lower minReadyTime",
            holds=lambda self: self.progress_deadline.seconds > self.min_ready_time.seconds,
        ),
    )
