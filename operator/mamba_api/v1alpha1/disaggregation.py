"""`spec.disaggregation`: separate pools for prefill and decode."""

from typing import Annotated

from pydantic import Field

from mamba_api.v1alpha1.base import ApiModel


class Disaggregation(ApiModel):
    """Sizes of the two pools; absent = every engine does both."""

    prefill_replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Engines that only prefill."""
    decode_replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Engines that only decode."""
