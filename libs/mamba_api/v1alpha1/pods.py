"""Where and how many: `spec.resources`, `scheduling`, `scaling`, `disaggregation` and `rollout`.

What the cluster is asked for on behalf of one engine, and how many engines there are. None of it changes what
an engine computes.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_snake
from pydantic.config import JsonDict

from mamba_api.quantity import Duration, Quantity
from mamba_api.v1alpha1.base import ApiModel, FreeForm, ObjectName, Rule


def _no_default(schema: JsonDict) -> None:
    """The API server writes none into the object: there it could not be told from what the object says."""
    schema.pop("default", None)


_UNSAID = Field(json_schema_extra=_no_default)
GpuResource = Annotated[
    str, Field(min_length=1, max_length=316, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")
]  # fmt: skip
ProfileName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]


class Resources(ApiModel):
    """Requests and limits of the engine container."""

    profile: ProfileName | None = None
    """Named set of resources, scheduling.nodeSelector, tolerations and runtimeClassName, and
    memory.deviceMemory, such as nvidia-l4 or one of the operator's settings. What this object says itself
    wins, field by field and label by label; Planned shows what came of it. Where the set behind the name
    changes, engine pods are replaced as by a change here."""
    gpus: Annotated[int, Field(ge=0, le=64), _UNSAID] = 1
    """GPUs of each engine pod: 1, or 0 to serve on the CPU; this version refuses more. Absent = what the
    profile says, else 1."""
    gpu_resource: Annotated[GpuResource, _UNSAID] = "nvidia.com/gpu"
    """Extended resource that stands for one GPU; absent = what the profile says, else nvidia.com/gpu."""
    cpu: Quantity | None = None
    """CPU cores the engine container asks for; absent = what the profile says, else no request."""
    memory: Quantity | None = None
    """Main memory the engine container asks for and is limited to; absent = what the profile says, else no
    request and no limit."""

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
        """Whether the profile says how many GPUs there are."""
        return self.profile is not None and "gpus" not in self.model_fields_set

    @model_serializer(mode="wrap")
    def _as_said(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A default that the object did not say is not written: read again, it would win over a profile."""
        unsaid = {"gpus", "gpu_resource"} - self.model_fields_set
        return {key: value for key, value in written(self).items() if to_snake(key) not in unsaid}


LabelKey = Annotated[str, Field(min_length=1, max_length=316)]
LabelValue = Annotated[str, Field(max_length=63)]


class Scheduling(ApiModel):
    """Placement of engine pods; each field means what it means in a pod."""

    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=64)] = {}
    """Labels a node must have."""
    tolerations: Annotated[list[FreeForm], Field(max_length=64)] = []
    """Taints the pods tolerate, besides those that keep other pods off GPUs: NoSchedule with the name of
    resources.gpuResource, or of the whole GPU of a slice, such as nvidia.com/gpu."""
    affinity: FreeForm | None = None
    """Affinity rules of the pods."""
    priority_class_name: ObjectName | None = None
    """Priority class of the pods."""
    runtime_class_name: ObjectName | None = None
    """Runtime class of the pods, such as nvidia."""


ReplicaCount = Annotated[int, Field(ge=0, le=10_000)]


def _held(field: str) -> tuple[Rule, Rule]:
    """Rules of a target: only the operator's autoscaler holds it, and it cannot be no time."""
    attribute = to_snake(field)
    return (
        Rule(
            cel=f"!has(self.{field}) || (self.mode == 'Internal' && has(self.minReplicas) && "
            "has(self.maxReplicas) && self.minReplicas < self.maxReplicas)",
            message=f"{field} is held by the operator's autoscaler alone: use mode Internal with minReplicas "
            f"below maxReplicas, or remove {field}",
            holds=lambda self: getattr(self, attribute) is None or self.automatic,
        ),
        Rule(
            cel=f"!has(self.{field}) || self.{field}.matches('[1-9]')",
            message=f"{field} is 0, which no number of engines can hold: give it some time",
            holds=lambda self: (target := getattr(self, attribute)) is None or target.seconds > 0,
        ),
    )


class Scaling(ApiModel):
    """Who decides how many engines run, and between which bounds."""

    mode: Literal["Internal", "External"] = "Internal"
    """Internal: with minReplicas below maxReplicas the operator decides, by what engines and gateways report;
    else spec.replicas is a fixed number that people write. External: a HorizontalPodAutoscaler or KEDA writes
    spec.replicas through the scale subresource, and nothing else changes the number."""
    min_replicas: ReplicaCount | None = None
    """Fewest engines. 0 in mode Internal lets the engines stop until a request arrives, which starts one, or
    spec.replicas of them without maxReplicas. While fewer answer, the condition Available is False. Absent =
    no bound, and none stops itself."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Most engines, whoever decides; more is refused. Above 1,024 gateways choose some engines by their load
    alone, not by what they have cached. Absent = no bound, and no autoscaling."""
    ttft_target: Duration | None = None
    """Time to first token that the operator gives requests enough engines for; absent = prompts may wait 2 s
    for their turn. Needs mode Internal with minReplicas below maxReplicas."""
    tpot_target: Duration | None = None
    """Time per output token that the operator gives requests enough engines for; absent = no bound. Needs
    mode Internal with minReplicas below maxReplicas."""
    scale_down_delay: Duration = Duration("300s")
    """How long the largest recommendation holds before engines are given up, and how long no request may have
    come before the last ones stop. Bursts are remembered for twelve times as long, and the engines that they
    needed kept."""

    rules = (
        Rule(
            cel=("!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas"),
            message="minReplicas is above maxReplicas: raise maxReplicas or lower minReplicas",
            holds=lambda self: (
                self.min_replicas is None
                or self.max_replicas is None
                or self.min_replicas <= self.max_replicas
            ),
        ),
        *_held("ttftTarget"),
        *_held("tpotTarget"),
    )

    @property
    def automatic(self) -> bool:
        """Whether the operator decides how many engines run, beyond none and some."""
        return (
            self.mode == "Internal"
            and self.min_replicas is not None
            and self.max_replicas is not None
            and self.min_replicas < self.max_replicas
        )


class Disaggregation(ApiModel):
    """Sizes of the two pools. Refused by this version, whose engines do both."""

    prefill_replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Engines that only prefill."""
    decode_replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Engines that only decode."""


IN_PLACE_AFTER = Duration("10m")
"""More than a cloud takes for a node with GPUs."""
LONGEST_DEADLINE = "596523h"
"""A Deployment counts its seconds in 32 bits."""


class Rollout(ApiModel):
    """Replacement of pods; each is drained before it ends. Gateways are replaced one by one, none missing."""

    max_surge: Annotated[int, Field(ge=0, le=1000)] = 1
    """Engine pods above the wanted count while rolling out."""
    max_unavailable: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Engine pods below the wanted count while rolling out; absent = 0. A 0 that is written, without
    inPlaceAfter, also holds where there is no room for one engine more: the roll-out then waits for room."""
    in_place_after: Duration | None = None
    """How long a pod that a roll-out adds waits for room, on a node or in a quota, that engines of the older
    revision have. Then one of those is drained first, and requests wait at the gateway for the new
    one; one engine more than there is no room for may be missing meanwhile, also where maxUnavailable is 0.
    Absent = 10m, or never where maxUnavailable 0 is written. Longer than progressDeadline: never. A node that
    has to be made first takes minutes."""
    min_ready_time: Duration = Duration("30s")
    """How long a new engine serves beside those of the older revision before the next of them goes: the
    `minReadySeconds` of the engine Deployment. If the new ones fail more requests meanwhile than the old
    ones, engines go back to the older revision."""
    pause: bool = False
    """Leaves engines on the revision that they have: what would replace pods waits until this is false again.
    Scaling goes on, and a pod that is lost is made anew of the older revision. Gateways do not wait."""
    drain_timeout: Duration = Duration("300s")
    """Longest wait for the requests of a draining engine or gateway before it ends anyway. A change replaces
    engine and gateway pods."""
    progress_deadline: Duration = Duration("30m")
    """Longest time the engines may take without progress, loading of weights included, before the roll-out is
    called stuck. Longer than minReadyTime. A change replaces the engine pods."""

    @property
    def unavailable(self) -> int:
        """Engine pods below the wanted count while rolling out."""
        return self.max_unavailable or 0

    @property
    def in_place_wait(self) -> Duration | None:
        """How long an added pod waits for room until an old one goes first; None: none ever does."""
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
