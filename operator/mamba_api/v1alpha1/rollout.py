"""`spec.rollout`: how pods are replaced."""

from typing import Annotated

from pydantic import Field

from mamba_api.quantity import Duration
from mamba_api.v1alpha1.base import ApiModel, Rule


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
