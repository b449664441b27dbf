"""Where and how many: `spec.resources`, `scheduling`, `scaling`, `disaggregation` and `rollout`.

What the cluster is asked for on behalf of one engine, and how many engines there are. None of it changes what
an engine computes.
"""

from typing import Annotated, Literal

from pydantic import Field

from mamba_api.quantity import Duration, Quantity
from mamba_api.v1alpha1.base import ApiModel, FreeForm, ObjectName, Rule


class Resources(ApiModel):
    """Requests and limits of the engine container."""

    gpus: Annotated[int, Field(ge=0, le=64)] = 1
    """GPUs of each engine pod; 0 = serve on the CPU."""
    gpu_resource: Annotated[
        str, Field(min_length=1, max_length=316, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")
    ] = "nvidia.com/gpu"  # fmt: skip
    """Extended resource that stands for one GPU."""
    cpu: Quantity | None = None
    """CPU cores the engine container asks for; absent = no request."""
    memory: Quantity | None = None
    """Main memory the engine container asks for and is limited to; absent = no request and no limit."""


LabelKey = Annotated[str, Field(min_length=1, max_length=316)]
LabelValue = Annotated[str, Field(max_length=63)]


class Scheduling(ApiModel):
    """Placement of engine pods; each field means what it means in a pod."""

    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=64)] = {}
    """Labels a node must have."""
    tolerations: Annotated[list[FreeForm], Field(max_length=64)] = []
    """Taints the pods tolerate."""
    affinity: FreeForm | None = None
    """Affinity rules of the pods."""
    priority_class_name: ObjectName | None = None
    """Priority class of the pods."""
    runtime_class_name: ObjectName | None = None
    """Runtime class of the pods, such as nvidia."""


ReplicaCount = Annotated[int, Field(ge=0, le=10_000)]


class Scaling(ApiModel):
    """Autoscaling of the engines."""

    mode: Literal["Internal", "External"] = "Internal"
    """Internal: the operator scales on the pool that binds, pages or slots. External: a
    HorizontalPodAutoscaler, KEDA or kubectl scale writes spec.replicas through the scale subresource."""
    min_replicas: ReplicaCount = 1
    """Fewest engines; 0 lets the deployment sleep until a request arrives."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Most engines."""
    ttft_target: Duration | None = None
    """Time to first token to hold, such as 1s; Internal mode only."""
    tpot_target: Duration | None = None
    """Time per output token to hold, such as 50ms; Internal mode only."""
    scale_down_delay: Duration = Duration("300s")
    """How long less demand must last before engines are removed."""

    rules = (
        Rule(
            cel="self.minReplicas <= self.maxReplicas",
            message="minReplicas is above maxReplicas: raise maxReplicas or lower minReplicas",
            holds=lambda self: self.min_replicas <= self.max_replicas,
        ),
        Rule(
            cel="self.mode != 'External' || (!has(self.ttftTarget) && !has(self.tpotTarget))",
            message=(
                "mode External leaves the count to whoever writes the scale subresource, so ttftTarget and "
                "tpotTarget would do nothing: remove them or use mode Internal"
            ),
            holds=lambda self: (
                self.mode != "External" or (self.ttft_target is None and self.tpot_target is None)
            ),
        ),
    )


class Disaggregation(ApiModel):
    """Sizes of the two pools; absent = every engine does both."""

    prefill_replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Engines that only prefill."""
    decode_replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Engines that only decode."""


class Rollout(ApiModel):
    """Replacement of engine pods; each is drained before it ends."""

    max_surge: Annotated[int, Field(ge=0, le=1000)] = 1
    """Pods above the wanted count while rolling out."""
    max_unavailable: Annotated[int, Field(ge=0, le=1000)] = 0
    """Pods below the wanted count while rolling out."""
    drain_timeout: Duration = Duration("300s")
    """Longest wait for a draining engine's requests before it ends anyway."""
    progress_deadline: Duration = Duration("30m")
    """Longest time without progress, loading of weights included, before the roll-out is called stuck."""

    rules = (
        Rule(
            cel="self.maxSurge > 0 || self.maxUnavailable > 0",
            message="maxSurge and maxUnavailable are both 0, so no pod could ever be replaced: raise one",
            holds=lambda self: self.max_surge > 0 or self.max_unavailable > 0,
        ),
    )
