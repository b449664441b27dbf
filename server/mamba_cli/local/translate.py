"""From a MambaDeployment to the arguments of `serve` and `gateway`. Pure.

The operator renders pods from the same spec; the words here are those of the command line.
"""

from mamba_api.v1alpha1 import MambaDeployment
from mamba_server.budget import Plan


def serve_argv(
    deployment: MambaDeployment, plan: Plan, *, model: str, device: str, port: int, admin_port: int
) -> list[str]:
    """Arguments of `mambaserve serve` for this deployment as planned.

    On a CPU the arena is passed on, because free memory changes between two looks; on a GPU the engine plans
    with the memory the device really has.
    """
    spec = deployment.spec
    argv = [
        "serve", "--model", model, "--host", "127.0.0.1", "--port", str(port),
        "--admin-port", str(admin_port), "--served-model-name", deployment.served_name, "--device", device,
        "--dtype", "auto" if spec.engine.dtype == "Auto" else spec.engine.dtype,
        "--strategy", plan.strategy, "--state-dtype", plan.state_dtype,
        "--track-interval", str(spec.state_cache.track_interval),
        "--page-size", str(spec.engine.page_size),
        "--max-model-len", str(plan.max_model_len),
        "--max-running-requests", str(plan.max_running_requests),
        "--chunked-prefill-tokens", str(spec.engine.chunked_prefill_tokens),
        "--eviction", spec.state_cache.eviction,
        "--max-checkpoints-per-path", str(spec.state_cache.max_checkpoints_per_path),
    ]  # fmt: skip
    if device == "cpu" or spec.memory.arena is not None:
        argv += ["--arena-bytes", str(plan.arena_bytes)]
    else:
        argv += ["--utilization", f"{spec.memory.utilization:g}"]
        if spec.memory.device_memory is not None:
            argv += ["--device-memory", str(spec.memory.device_memory.bytes)]
    argv += ["--prefix-caching"] if spec.state_cache.prefix_caching else ["--no-prefix-caching"]
    argv += ["--overlap"] if spec.engine.overlap_schedule else ["--no-overlap"]
    argv += ["--batch-invariant"] if spec.engine.batch_invariant else []
    return argv + list(spec.engine.extra_args)


def gateway_argv(*, backend: str, host: str, port: int) -> list[str]:
    """Arguments of `mambaserve gateway` in front of the engine at `backend`."""
    return ["gateway", "--backend", backend, "--host", host, "--port", str(port)]
