"""`spec.stateCache`: how recurrent states are kept, checkpointed and reused."""

from typing import Annotated, Literal

from pydantic import Field

from mamba_api.v1alpha1.base import ApiModel

Strategy = Literal["NoBuffer", "ExtraBuffer", "ExtraBufferLazy"]
StateDtype = Literal["float32", "float16"]


class StateCache(ApiModel):
    """The state cache of every engine."""

    strategy: Literal["Auto", "NoBuffer", "ExtraBuffer", "ExtraBufferLazy"] = "Auto"
    """How a running sequence writes checkpoints: NoBuffer has no spare slot and donates its own when it
    ends, ExtraBufferLazy has one spare slot and borrows another around a boundary, ExtraBuffer has two and
    misses no boundary; Auto lets the planner choose. A change is live where possible."""
    state_dtype: Literal["Auto", "float32", "float16"] = "Auto"
    """Type of the stored SSM state; Auto lets the planner choose. float16 doubles the slots."""
    track_interval: Annotated[int, Field(ge=1, le=1_048_576)] = 256
    """Most tokens between checkpoints while decoding (the first of an answer are closer together); a multiple
    of spec.engine.pageSize."""
    max_checkpoints_per_path: Annotated[int, Field(ge=1, le=1024)] = 4
    """Most checkpoints kept along one path of the radix tree."""
    eviction: Literal["RecomputeCost", "LRU"] = "RecomputeCost"
    """Which checkpoint goes first when memory is short: the cheapest to recompute, or the least recently
    used."""
    prefix_caching: bool = True
    """Reuse checkpoints between requests that share a prefix."""
