"""From a MambaDeployment's spec to the planner's terms. Pure; the operator and local mode plan with it.

One mapping for both, so that what a cluster shows and what a workstation runs are the same plan.
"""

from mamba_api.v1alpha1 import Spec
from mamba_planner.constraints import Constraints, Workload


def constraints_of(
    spec: Spec, utilization: float | None = None, tensor_parallel: int | None = None
) -> Constraints:
    """What the spec fixes. Raises `UnusableInput`."""
    cache, engine = spec.state_cache, spec.engine
    return Constraints(
        strategy=None if cache.strategy == "Auto" else cache.strategy,
        state_dtype=None if cache.state_dtype == "Auto" else cache.state_dtype,
        dtype=None if engine.dtype == "Auto" else engine.dtype,
        page_size=engine.page_size,
        track_interval=cache.track_interval,
        max_model_len=spec.model.max_model_len,
        max_running_requests=engine.max_running_requests,
        chunked_prefill_tokens=engine.chunked_prefill_tokens,
        max_checkpoints_per_path=cache.max_checkpoints_per_path,
        prefix_caching=cache.prefix_caching,
        overlap=engine.overlap_schedule,
        utilization=utilization or spec.memory.utilization,
        arena_bytes=spec.memory.arena.bytes if spec.memory.arena else None,
        tensor_parallel=tensor_parallel or engine.tensor_parallel,
    )


def workload_of(spec: Spec) -> Workload | None:
    """The declared workload; None = none declared."""
    if (declared := spec.workload) is None:
        return None
    return Workload(
        prompt_tokens=declared.prompt_tokens,
        output_tokens=declared.output_tokens,
        shared_prefix_ratio=declared.shared_prefix_ratio,
        concurrency=declared.concurrency,
        declared=True,
    )
