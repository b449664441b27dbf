"""`spec.workload`: what the traffic is expected to look like."""

from typing import Annotated

from pydantic import Field

from mamba_api.v1alpha1.base import ApiModel


class Workload(ApiModel):
    """The planner's assumption until measured values replace it."""

    prompt_tokens: Annotated[int, Field(ge=1, le=16_777_216)] = 2048
    """Mean prompt length in tokens."""
    output_tokens: Annotated[int, Field(ge=1, le=16_777_216)] = 256
    """Mean output length in tokens."""
    shared_prefix_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of prompt tokens that an earlier request had too."""
    concurrency: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Sequences one engine should run at once; the plan prefers a choice that meets it."""
