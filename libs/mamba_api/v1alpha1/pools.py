"""Models of `spec.disaggregation`: one pool of engines for prompts, another one for answers.

A pool names only what differs from the rest of the spec. `pool_deployments` completes it.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mamba_api.choices import Eviction, Role, StrategyChoice, Transport
from mamba_api.quantity import Duration, Quantity
from mamba_api.v1alpha1.base import ApiModel, Rule
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
from mamba_api.v1alpha1.pods import ReplicaCount, Resources, Scaling


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


class PoolScaling(Scaling):
    """Bounds for the number of engines of one pool, which the operator then decides."""

    mode: Literal["Internal", "External"] = "Internal"
    """Internal: with minReplicas below maxReplicas the operator decides the number of engines of the pool,
    based on the reports of engines and gateways; otherwise replicas of the pool is a fixed number. External
    is refused, because the scale subresource writes the number of unified engines."""
    min_replicas: ReplicaCount | None = None
    """Minimum number of engines of the pool, at least 1: a gateway wakes no single pool. While fewer engines
    answer, the condition Available is False. If absent, there is no bound and no autoscaling."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Maximum number of engines of the pool. If absent, there is no bound and no autoscaling."""
    ttft_target: Duration | None = None
    """Target for the time from the arrival of a prompt at a prefill engine until its state is computed; the
    operator provides enough prefill engines to meet it. If absent, prompts may wait 2 s for their turn.
    Refused in the decode pool."""
    tpot_target: Duration | None = None
    """Target for the time per output token; the operator provides enough decode engines to meet it. If
    absent, there is no bound. Refused in the prefill pool."""
    scale_down_delay: Duration = Duration("300s")
    """How long the largest recommendation holds before engines of the pool are removed. Bursts are remembered
    for twelve times as long, and the engines that they needed are kept meanwhile."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *Scaling.rules,
        Rule(
            cel="self.mode != 'External'",
            message=(
                "mode External is refused in a pool, because kubectl scale and autoscalers write the number "
                "of unified engines: remove mode, and set minReplicas and maxReplicas so that the operator "
                "decides, or replicas of the pool"
            ),
            holds=lambda self: self.mode != "External",
        ),
        Rule(
            cel="!has(self.minReplicas) || self.minReplicas > 0",
            message=(
                "minReplicas 0 is refused in a pool, because a request needs an engine of each pool and "
                "wakes none: set it to at least 1"
            ),
            holds=lambda self: self.min_replicas is None or self.min_replicas > 0,
        ),
    )


class Pool(ApiModel):
    """One pool of engines."""

    replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Number of engines in the pool, within scaling.minReplicas and maxReplicas of the pool. Where the
    operator decides, it starts from this number, and from each other number that is written here later. A
    change replaces no engine."""
    resources: Resources | None = None
    """Fields of spec.resources that differ in this pool; an absent field has the value of the spec. A change
    replaces the engine pods of this pool."""
    state_cache: PoolStateCache | None = None
    """Fields of spec.stateCache that differ in this pool. A change acts as one of spec.stateCache, on this
    pool alone."""
    workload: PoolWorkload | None = None
    """Fields of spec.workload that differ in this pool. A change replaces the engine pods of this pool."""
    scaling: PoolScaling | None = None
    """Bounds for the number of engines of the pool. If absent, replicas is a fixed number."""

    rules = (
        Rule(
            cel="!has(self.scaling) || !has(self.scaling.minReplicas) || "
            "self.replicas >= self.scaling.minReplicas || (has(self.scaling.maxReplicas) && "
            "self.scaling.minReplicas < self.scaling.maxReplicas)",
            message=(
                "replicas of the pool is below its scaling.minReplicas, and nothing would raise it: set "
                "replicas to the number of engines wanted, lower minReplicas, or set a maxReplicas above it, "
                "so that the operator decides"
            ),
            holds=lambda self: (
                self.scaling is None
                or self.scaling.min_replicas is None
                or self.replicas >= self.scaling.min_replicas
                or (
                    self.scaling.max_replicas is not None
                    and self.scaling.min_replicas < self.scaling.max_replicas
                )
            ),
        ),
        Rule(
            cel="!has(self.scaling) || !has(self.scaling.maxReplicas) || "
            "self.replicas <= self.scaling.maxReplicas",
            message=(
                "replicas of the pool is above its scaling.maxReplicas: lower replicas or raise maxReplicas"
            ),
            holds=lambda self: (
                self.scaling is None
                or self.scaling.max_replicas is None
                or self.replicas <= self.scaling.max_replicas
            ),
        ),
    )


def _target_of_the_other_pool(pool: Role, field: str, other: Role, work: str) -> Rule:
    """Return the rule that a pool has no target for the work of the other pool's engines."""
    scaling = f"self.{pool}.scaling"
    attribute = "ttft_target" if field == "ttftTarget" else "tpot_target"
    return Rule(
        cel=f"!has({scaling}) || !has({scaling}.{field})",
        message=f"{pool}.scaling.{field} is refused: {work}; set {other}.scaling.{field} instead",
        holds=lambda self: (own := getattr(self, pool).scaling) is None or getattr(own, attribute) is None,
    )


class Disaggregation(ApiModel):
    """Two pools of engines: one computes prompts and hands their states over, the other writes answers."""

    prefill: Pool = Pool()
    """Engines that compute prompts."""
    decode: Pool = Pool()
    """Engines that write answers. They also compute the rest of a prompt if that is short."""
    hand_over_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Number of uncached prompt tokens from which on a prefill engine computes the prompt. A decode engine
    computes fewer tokens itself. Defaults to the planner's choice, which status.handOverTokens shows. A
    change replaces the gateway pods."""
    transport: Transport = "Sockets"
    """How states travel between engines of both pools. Sockets: over TCP. Nixl: the network card of the
    reader reads the memory of the source (RDMA), or UCX does so over TCP; for engines without GPUs, whose
    engine.image has the package nixl, which the default image lacks. A change replaces the engine pods."""

    rules = (
        _target_of_the_other_pool(
            "prefill", "tpotTarget", "decode", "engines of the prefill pool write no answers"
        ),
        _target_of_the_other_pool(
            "decode", "ttftTarget", "prefill", "prompts wait for engines of the prefill pool"
        ),
    )
