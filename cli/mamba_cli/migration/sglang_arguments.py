"""Arguments of SGLang's server, and what becomes of each."""

from collections.abc import Mapping

from mamba_cli.migration.migrated import (
    Migrated,
    Take,
    dtype,
    field_of,
    first_name,
    kv_cache_dtype,
    model_of,
    one_gpu,
    replicas,
    revision,
    share,
    state_dtype,
    switch,
    tokens,
    whole_number,
    without,
)
from mamba_cli.migration.vllm_arguments import (
    ADDRESS,
    ALWAYS,
    BY_TEMPLATE,
    CHECKPOINTS,
    CONFIG_FILE,
    KEYS,
    LOGS,
    NO_SPECULATION,
    QUANTIZED,
)

STRATEGIES = {
    "auto": "Auto",
    "no_buffer": "NoBuffer",
    "extra_buffer": "ExtraBuffer",
    "extra_buffer_lazy": "ExtraBufferLazy",
}
ONE_MODEL = without("the planner divides one arena between states and pages as traffic needs them")


def strategy(value: str) -> str:
    """Return the strategy as the MambaDeployment names it. Raises ValueError."""
    if value not in STRATEGIES:
        raise ValueError(f"{value} is no strategy: {', '.join(STRATEGIES)} are known")
    return STRATEGIES[value]


def two_pools(migrated: Migrated, argument: str, value: str) -> None:
    """Turn one side of disaggregation into both pools of one object."""
    if value in ("prefill", "decode"):
        migrated.put(argument, "disaggregation", {"prefill": {}, "decode": {}})


SGLANG: Mapping[str, Take] = {
    "--api-key": KEYS,
    "--attention-backend": without("the kernels that fit the device are chosen"),
    "--chat-template": without("put the template into the model directory as chat_template.jinja"),
    "--chunked-prefill-size": field_of("engine.chunkedPrefillTokens", tokens),
    "--config": CONFIG_FILE,
    "--context-length": field_of("model.maxModelLen", tokens),
    "--disable-cuda-graph": switch("engine.decodeGraphs", "Off"),
    "--disable-overlap-schedule": switch("engine.overlapSchedule", False),
    "--disable-radix-cache": switch("stateCache.prefixCaching", False),
    "--disaggregation-mode": two_pools,
    "--disaggregation-transfer-backend": without(
        "states travel over sockets, or as disaggregation.transport says"
    ),
    "--dp-size": replicas,
    "--dp": replicas,
    "--dtype": field_of("engine.dtype", dtype),
    "--enable-deterministic-inference": switch("engine.batchInvariant", True),
    "--enable-hierarchical-cache": without(
        "spec.stateCache.hostMemory is the size of the tier in main memory"
    ),
    "--enable-metrics": ALWAYS,
    "--enable-mixed-chunk": ALWAYS,
    "--grammar-backend": without("structured output is always on"),
    "--hicache-ratio": without("spec.stateCache.hostMemory is the size of the tier in main memory"),
    "--hicache-size": field_of("stateCache.hostMemory", lambda value: f"{whole_number(value)}G"),
    "--host": ADDRESS,
    "--kv-cache-dtype": field_of("engine.kvCacheDtype", kv_cache_dtype),
    "--log-level": LOGS,
    "--mamba-full-memory-ratio": ONE_MODEL,
    "--mamba-radix-cache-strategy": field_of("stateCache.strategy", strategy),
    "--mamba-scheduler-strategy": field_of("stateCache.strategy", strategy),
    "--mamba-ssm-dtype": field_of("stateCache.stateDtype", state_dtype),
    "--mamba-track-interval": field_of("stateCache.trackInterval", whole_number),
    "--mamba-max-states-per-path": field_of("stateCache.maxCheckpointsPerPath", whole_number),
    "--max-mamba-cache-size": ONE_MODEL,
    "--max-prefill-tokens": CHECKPOINTS,
    "--max-running-requests": field_of("engine.maxRunningRequests", whole_number),
    "--max-total-tokens": ONE_MODEL,
    "--mem-fraction-static": field_of("memory.utilization", share),
    "--model": model_of,
    "--model-path": model_of,
    "--page-size": field_of("engine.pageSize", whole_number),
    "--port": ADDRESS,
    "--quantization": QUANTIZED,
    "--reasoning-parser": BY_TEMPLATE,
    "--revision": revision,
    "--schedule-policy": without("requests are served in a fair order of their keys"),
    "--served-model-name": first_name,
    "--speculative-algorithm": NO_SPECULATION,
    "--speculative-num-steps": NO_SPECULATION,
    "--speculative-eagle-topk": NO_SPECULATION,
    "--speculative-num-draft-tokens": NO_SPECULATION,
    "--tensor-parallel-size": one_gpu,
    "--tp": one_gpu,
    "--tp-size": one_gpu,
    "--tool-call-parser": BY_TEMPLATE,
    "--trust-remote-code": without("code of a model is never run"),
}
