"""Assumed speed of an engine on a kind of GPU: a share of the arithmetic and bandwidth of its data sheet.

The speed is not measured, and every report that uses it says so. Pure.
"""

from mamba_cli.fleet.engine_profile import EngineProfile
from mamba_cli.fleet.size_search.gpu import Gpu
from mamba_planner.arithmetic import active_parameters, attention_ratio
from mamba_planner.constraints import Constraints
from mamba_planner.memory import MOST_RUNNING
from mamba_planner.memory_plan import MemoryPlan
from mamba_planner.model_config import ModelConfig
from mamba_server.engine.stepping.step_pace import STEP_TIME

ARITHMETIC, BANDWIDTH = 0.5, 0.7
"""Shares of the data sheet's arithmetic and bandwidth that an engine is assumed to reach."""
BATCH = 16
"""Sequences that a step is assumed to decode, on which the number of experts it reads depends."""
MIN_CHUNK_TOKENS = 64
"""Prompt tokens that a step computes on any GPU, however slow."""
ASSUMED = f"data sheet, {ARITHMETIC:.0%} of its arithmetic and {BANDWIDTH:.0%} of its bandwidth reached"


def profile_of(model: ModelConfig, plan: MemoryPlan, constraints: Constraints, gpu: Gpu) -> EngineProfile:
    """Return the profile of an engine that runs `plan` on `gpu`."""
    always, experts = active_parameters(model)
    share = min(1.0, model.moe.experts_per_token / model.moe.experts) if model.moe is not None else 0.0
    expert_share = 1 - (1 - share) ** BATCH
    bytes_read = (always + experts * expert_share) * plan.weights_bytes / max(model.parameters, 1)
    bandwidth = gpu.bandwidth * BANDWIDTH
    slabs = plan.slabs - 1
    speed = gpu.flops * ARITHMETIC / (2 * (always + experts * share))
    return EngineProfile(
        name=f"{gpu.name} {plan.strategy}",
        origin=ASSUMED,
        prefill_tokens_per_second=speed,
        attention_ratio=attention_ratio(model),
        step_seconds=bytes_read / bandwidth,
        sequence_seconds=2 * plan.state_bytes / bandwidth,
        context_seconds=plan.kv_bytes_per_token / bandwidth,
        chunk_tokens=_chunk(constraints, speed, bytes_read / bandwidth),
        max_running=max(1, min(constraints.max_running_requests or MOST_RUNNING["cuda"], slabs)),
        slabs=slabs,
        tokens_per_state=plan.pages_per_slab * plan.page_size,
        page_tokens=plan.page_size,
        track_interval=constraints.track_interval,
        strategy=plan.strategy,
        overlap=plan.overlap,
    )


def _chunk(constraints: Constraints, speed: float, step_seconds: float) -> int:
    """Return the prompt tokens that fill the target time of a step beside the decoding of answers."""
    limit = constraints.chunked_prefill_tokens
    target = STEP_TIME["cuda"] if constraints.step_time is None else constraints.step_time
    if not target:
        return limit
    return max(MIN_CHUNK_TOKENS, min(limit, int((target - step_seconds) * speed)))
