"""How fast an engine would be on a kind of GPU, from data sheets: arithmetic and bandwidth, partly reached.

An assumption and no measurement; every answer made of it says so. Pure.
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
"""Shares of what data sheets say that engines reach."""
TOGETHER = 16
"""Sequences whose experts a step is taken to read."""
LEAST_CHUNK = 64
"""Prompt tokens that a step computes however slow the GPU is."""
ASSUMED = f"data sheet, {ARITHMETIC:.0%} of its arithmetic and {BANDWIDTH:.0%} of its bandwidth reached"


def profile_of(model: ModelConfig, plan: MemoryPlan, constraints: Constraints, gpu: Gpu) -> EngineProfile:
    """The engine that runs `plan` on `gpu`."""
    always, experts = active_parameters(model)
    share = min(1.0, model.moe.experts_per_token / model.moe.experts) if model.moe is not None else 0.0
    touched = 1 - (1 - share) ** TOGETHER
    read = (always + experts * touched) * plan.weights_bytes / max(model.parameters, 1)
    moved = gpu.bandwidth * BANDWIDTH
    slabs = plan.slabs - 1
    speed = gpu.flops * ARITHMETIC / (2 * (always + experts * share))
    return EngineProfile(
        name=f"{gpu.name} {plan.strategy}",
        origin=ASSUMED,
        prefill_tokens_per_second=speed,
        attention_ratio=attention_ratio(model),
        step_seconds=read / moved,
        sequence_seconds=2 * plan.state_bytes / moved,
        context_seconds=plan.kv_bytes_per_token / moved,
        chunk_tokens=_chunk(constraints, speed, read / moved),
        max_running=max(1, min(constraints.max_running_requests or MOST_RUNNING["cuda"], slabs)),
        slabs=slabs,
        tokens_per_state=plan.pages_per_slab * plan.page_size,
        page_tokens=plan.page_size,
        track_interval=constraints.track_interval,
        strategy=plan.strategy,
        overlap=plan.overlap,
    )


def _chunk(constraints: Constraints, speed: float, step_seconds: float) -> int:
    """Prompt tokens of a step: what fills its time while answers are written."""
    most = constraints.chunked_prefill_tokens
    target = STEP_TIME["cuda"] if constraints.step_time is None else constraints.step_time
    if not target:
        return most
    return max(LEAST_CHUNK, min(most, int((target - step_seconds) * speed)))
