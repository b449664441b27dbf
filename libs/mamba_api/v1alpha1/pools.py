"""Models of `spec.disaggregation`: one pool of engines for prompts, another one for answers.

A pool names only what differs from the rest of the spec. `pool_deployments` completes it.
"""

from typing import Annotated

from pydantic import Field

from mamba_api.choices import Eviction, StrategyChoice
from mamba_api.quantity import Quantity
from mamba_api.v1alpha1.base import ApiModel, refused
from mamba_api.v1alpha1.engine import (
    CheckpointDepth,
    CheckpointsPerPath,
    Concurrency,
    DiskCache,
    MeanTokens,
    Share,
    TrackInterval,
    above_zero,
)
from mamba_api.v1alpha1.pods import Resources, Scaling


class PoolStateCache(ApiModel):
    """Fields of spec.stateCache that differ in one pool; an absent field has the value of the spec.

    stateDtype and prefixCaching are no fields of a pool: both pools hold states of one type, and hand them
    over through their prefix caches.
    """

    strategy: StrategyChoice | None = None
    """stateCache.strategy of this pool."""
    track_interval: TrackInterval | None = None
    """stateCache.trackInterval of this pool."""
    max_checkpoints_per_path: CheckpointsPerPath | None = None
    """stateCache.maxCheckpointsPerPath of this pool."""
    min_checkpoint_depth: CheckpointDepth | None = None
    """stateCache.minCheckpointDepth of this pool."""
    eviction: Eviction | None = None
    """stateCache.eviction of this pool."""
    host_memory: Quantity | None = None
    """stateCache.hostMemory of this pool."""
    disk: DiskCache | None = None
    """stateCache.disk of this pool, as a whole."""

    rules = (above_zero("hostMemory", "stateCache.hostMemory"),)


class PoolWorkload(ApiModel):
    """Fields of spec.workload that differ in one pool; an absent field has the value of the spec."""

    prompt_tokens: MeanTokens | None = None
    """workload.promptTokens of this pool."""
    output_tokens: MeanTokens | None = None
    """workload.outputTokens of this pool. Prefill engines are planned without outputs."""
    shared_prefix_ratio: Share | None = None
    """workload.sharedPrefixRatio of this pool."""
    concurrency: Concurrency | None = None
    """Number of sequences that one engine of this pool should run at once: prompts of a prefill engine,
    answers of a decode engine. workload.concurrency of the spec is the default of the decode pool alone."""


class Pool(ApiModel):
    """One pool of engines."""

    replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Number of engines in the pool. A change replaces no engine."""
    resources: Resources | None = None
    """Fields of spec.resources that differ in this pool; an absent field has the value of the spec. A change
    replaces the engine pods of this pool."""
    state_cache: PoolStateCache | None = None
    """Fields of spec.stateCache that differ in this pool. A change acts as one of spec.stateCache, on this
    pool alone."""
    workload: PoolWorkload | None = None
    """Fields of spec.workload that differ in this pool. A change replaces the engine pods of this pool."""
    scaling: Scaling | None = None
    """Scaling of the pool. Refused by this version, whose pools have a fixed number of engines."""

    rules = (refused("scaling", "each pool has a fixed number of engines: set replicas of the pool instead"),)


class Disaggregation(ApiModel):
    """Two pools of engines: one computes prompts and hands their states over, the other writes answers."""

    prefill: Pool = Pool()
    """Engines that compute prompts."""
    decode: Pool = Pool()
    """Engines that write answers. They also compute what is left of a prompt when it is short."""
