"""The command line of an engine container: `mambaserve serve …` from the spec. Pure."""

from mamba_api import names
from mamba_operator.render.context import Context
from mamba_operator.render.number import number

ADMIN_TOKEN_MOUNT = "/run/mambaserve/admin"  # noqa: S105 - where the token is mounted, not the token


def engine_arguments(context: Context) -> list[str]:
    """Arguments after `mambaserve`; what the ConfigMap carries is not among them."""
    deployment = context.deployment
    spec, engine = deployment.spec, deployment.spec.engine
    arguments = [
        "serve",
        "--model", spec.model.uri,
        "--served-model-name", deployment.served_name,
        "--host", "0.0.0.0",  # noqa: S104 - the pod's own network; the NetworkPolicy says who may come
        "--port", str(names.HTTP_PORT),
        "--admin-host", "$(POD_IP)",
        "--admin-port", str(names.ADMIN_PORT),
        "--admin-token-file", f"{ADMIN_TOKEN_MOUNT}/{names.ADMIN_TOKEN_KEY}",
        "--device", "cuda" if spec.resources.gpus else "cpu",
        "--dtype", "auto" if engine.dtype == "Auto" else engine.dtype,
        "--page-size", str(engine.page_size),
        "--chunked-prefill-tokens", str(engine.chunked_prefill_tokens),
        "--utilization", number(spec.memory.utilization),
    ]  # fmt: skip
    if spec.model.max_model_len is not None:
        arguments += ["--max-model-len", str(spec.model.max_model_len)]
    if engine.max_running_requests is not None:
        arguments += ["--max-running-requests", str(engine.max_running_requests)]
    if spec.memory.arena is not None:
        arguments += ["--arena-bytes", str(spec.memory.arena.bytes)]
    if spec.memory.device_memory is not None:
        arguments += ["--device-memory", str(spec.memory.device_memory.bytes)]
    if not engine.overlap_schedule:
        arguments.append("--no-overlap")
    if engine.batch_invariant:
        arguments.append("--batch-invariant")
    return [*arguments, *engine.extra_args]
