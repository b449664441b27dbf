"""Expected throughput of a plan in relative terms: good for ordering candidates, not for promises. Pure.

Decoding is bound by bandwidth (weights, states read and written, KV), prefill by arithmetic. Time is counted
in bytes moved, and `FLOPS_PER_BYTE` converts arithmetic into it.
"""

from dataclasses import dataclass

from mamba_planner.arithmetic import active_parameters
from mamba_planner.constraints import Constraints, Workload
from mamba_planner.model_config import ModelConfig
from mamba_planner.strategy import Reservation, decode_spacing

BETWEEN_TURNS = 2
"""Conversations in progress for each concurrent request: as many wait for people as for answers."""
NO_BUFFER_SHARE = 0.75
"""Share of a cache's savings that remains if checkpoints go only into free slots: a full cache keeps old
checkpoints, and new ones get no slot. Measured with the engine's scheduler and cache
(`benchmarks.planner`)."""
FLOPS_PER_BYTE = 200
"""FLOPs per byte of bandwidth: between an A100 (156) and an H100 (295), dense 16-bit."""


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """Load that a candidate would carry."""

    running: int
    state: int
    """Bytes of one state."""
    kv: int
    """Bytes of KV per token."""
    weights: int


def expected_saved(
    strategy: Reservation, constraints: Constraints, workload: Workload, running: int, paths: int
) -> float:
    """Return the share of prompt tokens resumed instead of recomputed, 0-1.

    Reuse is possible for `shared_prefix_ratio` of the prompt, minus the tail to recompute. The tail is half
    the distance between the last checkpoints of an answer if decoding has slots for them; the whole last
    answer if it has only free slots (NoBuffer), because a cache in use leaves none free; and in between if
    borrowing fails because fewer checkpoints than running sequences are left (ExtraBufferLazy). The reuse
    happens as far as checkpoints last. Nobody knows which conversations return, so a cache with room for as
    many `paths` as will return saves half of it, one with twice the room two thirds, and one with half the
    room a third, not nothing.
    """
    if not constraints.prefix_caching or running == 0:
        return 0.0
    tail = decode_spacing(workload.output_tokens, constraints.page_size, constraints.track_interval) / 2
    if not strategy.tracks_decode:
        tail = float(workload.output_tokens)
    elif strategy.borrows:
        tail *= 1 + max(0.0, 1 - paths / running)
    reusable = max(0.0, workload.shared_prefix_ratio * workload.prompt_tokens - tail)
    returning = BETWEEN_TURNS * max(workload.concurrency or 0, running) - running
    lasting = paths / (paths + returning)
    if not strategy.tracks_decode:
        lasting *= NO_BUFFER_SHARE
    return lasting * reusable / workload.prompt_tokens


def expected_throughput(model: ModelConfig, workload: Workload, traffic: StepTraffic, saved: float) -> float:
    """Return tokens per byte-time, prompt and output together; comparable within one model."""
    if traffic.running == 0:
        return 0.0
    always, experts = active_parameters(model)
    token_share = 0.0
    batch_share = 0.0
    if model.moe is not None:
        token_share = min(1.0, model.moe.experts_per_token / model.moe.experts)
        batch_share = 1 - (1 - token_share) ** traffic.running
    per_parameter = traffic.weights / max(model.parameters, 1)
    weights = (always + experts * batch_share) * per_parameter
    context = workload.prompt_tokens + workload.output_tokens / 2
    step = weights + traffic.running * (2 * traffic.state + traffic.kv * context)
    prefill = workload.prompt_tokens * (1 - saved) * 2 * (always + experts * token_share) / FLOPS_PER_BYTE
    request = workload.output_tokens * step / traffic.running + prefill
    return workload.tokens / request
