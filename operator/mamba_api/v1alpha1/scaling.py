"""`spec.scaling`: who decides how many engines run, and between which bounds."""

from typing import Annotated, Literal

from pydantic import Field

from mamba_api.quantity import Duration
from mamba_api.v1alpha1.base import ApiModel, Rule

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
