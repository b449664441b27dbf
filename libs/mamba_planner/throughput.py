"""Expected throughput of a plan, in relative terms: good for ordering candidates, not for promises. Pure.

Decode is bound by bandwidth (weights, states read and written, KV), prefill by arithmetic; time is counted in
bytes moved, and `FLOPS_PER_BYTE` turns arithmetic into it.
"""

from dataclasses import dataclass

from mamba_planner.arithmetic import active_parameters
from mamba_planner.constraints import Constraints, Workload
from mamba_planner.model_config import ModelConfig
from mamba_planner.strategy import Reservation, decode_spacing

BETWEEN_TURNS = 2
"""Conversations under way for each request at once: as many wait for people as for answers."""
KEPT_WITHOUT_BUFFER = 0.75
"""Of what a cache saves, what is left where checkpoints go into free slots alone: a full one keeps old ones,
and new ones find no slot. Found with the engine's scheduler and cache (`benchmarks.planner`)."""
FLOPS_PER_BYTE = 200
"""Between an A100 (156) and an H100 (295), dense 16-bit."""


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """What a candidate would carry."""

    running: int
    state: int
    """Bytes of one state."""
    kv: int
    """Bytes of KV per token."""
    weights: int


def expected_saved(
    strategy: Reservation, constraints: Constraints, workload: Workload, running: int, paths: int
) -> float:
    """Share of prompt tokens resumed instead of recomputed, 0-1.

    Reuse is possible for `shared_prefix_ratio` of the prompt, less the recompute tail: half the distance
    between the last checkpoints of an answer where decoding has slots for them; the whole last answer where
    it has only what is free (NoBuffer), since a cache in use leaves nothing free; in between where borrowing
    fails because fewer checkpoints than running sequences are left (ExtraBufferLazy). It comes true as far as
    checkpoints last. Nobody knows who returns, so a cache with room for as many `paths` as will come back
    saves half of it, one with twice the room two thirds, and one with half the room a third, not nothing.
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
        lasting *= KEPT_WITHOUT_BUFFER
    return lasting * reusable / workload.prompt_tokens


def expected_throughput(model: ModelConfig, workload: Workload, traffic: StepTraffic, saved: float) -> float:
    """Tokens per byte-time, prompt and output together; comparable between candidates of one model."""
    if traffic.running == 0:
        return 0.0
    always, experts = active_parameters(model)
    chosen = 0.0
    touched = 0.0
    if model.moe is not None:
        share = min(1.0, model.moe.experts_per_token / model.moe.experts)
        chosen = share
        touched = 1 - (1 - share) ** traffic.running
    per_parameter = traffic.weights / max(model.parameters, 1)
    read = (always + experts * touched) * per_parameter
    mean = workload.prompt_tokens + workload.output_tokens / 2
    step = read + traffic.running * (2 * traffic.state + traffic.kv * mean)
    prefill = workload.prompt_tokens * (1 - saved) * 2 * (always + experts * chosen) / FLOPS_PER_BYTE
    request = workload.output_tokens * step / traffic.running + prefill
    return workload.tokens / request
