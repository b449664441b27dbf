"""Conversion of a MambaDeployment to the settings of its engine, and of its model at a shared gateway. Pure.

Callers add the settings that depend on where the engine runs (addresses, files, the planner's choice).
"""

from typing import Any

from mamba_api.choices import Role, Transport
from mamba_api.quantity import Quantity
from mamba_api.v1alpha1 import DiskCache, Engine, MambaDeployment, StateCache
from mamba_api.v1alpha1.gateway import NamedKeyLimits
from mamba_api.v1alpha1.gateway_usage import PRICED, ModelPrices, Prices, PricesByModel, Usage
from mamba_settings.adapter_settings import adapter_text
from mamba_settings.engine_settings import EngineSettings

SMALLEST_BODY_LIMIT = 1024
"""Smallest limit in bytes that an engine accepts; the gateway in front of it enforces the spec's limit."""


def disk_budget(disk: DiskCache) -> int:
    """Return the bytes that an engine stores in its disk cache.

    The rest of the space, a sixteenth, is for files that are being written and for the file system itself.
    """
    return disk.size.bytes - disk.size.bytes // 16


def engine_settings(
    deployment: MambaDeployment,
    role: Role = "unified",
    *,
    transfer_port: int | None = None,
    transport: Transport = "Sockets",
) -> EngineSettings:
    """Return the settings in the spec, including its defaults. Absent fields stay unset.

    `spec.stateCache` is copied field by field under the same names. The directory of the disk cache depends
    on where the engine runs, so the caller adds it.

    Args:
        deployment: the deployment; with disaggregation the deployment of one pool (`pool_deployments`).
        role: work of the engine.
        transfer_port: port of the transfer server; None = any free port for an engine of a pool, and no
            server for a unified one.
        transport: how states travel between the engines of two pools.
    """
    spec = deployment.spec
    engine, memory = spec.engine, spec.memory
    cache = {name: getattr(spec.state_cache, name) for name in StateCache.model_fields}
    values: dict[str, Any] = {
        **cache,
        "state_dtype": _auto(spec.state_cache.state_dtype),
        "host_memory": _bytes(spec.state_cache.host_memory),
        "model": spec.model.uri,
        "served_model_name": deployment.served_name,
        "max_model_len": spec.model.max_model_len,
        "lora": tuple(adapter_text(adapter.name, adapter.uri) for adapter in spec.model.adapters) or None,
        "max_loras": spec.model.adapter_places,
        "max_lora_rank": spec.model.max_adapter_rank,
        "max_lora_expert_rank": spec.model.max_adapter_expert_rank,
        "device": "cuda" if spec.resources.gpus else "cpu",
        "dtype": _auto(engine.dtype),
        "quantization": engine.quantization,
        "page_size": engine.page_size,
        # Left out by default, so that a spec without it changes no pod.
        "kv_cache_dtype": engine.kv_cache_dtype if engine.kv_cache_dtype != "Auto" else None,
        "step_time": engine.step_time.seconds if engine.step_time is not None else None,
        "chunked_prefill_tokens": engine.chunked_prefill_tokens,
        "max_running_requests": engine.max_running_requests,
        "overlap": engine.overlap_schedule,
        "batch_invariant": engine.batch_invariant,
        "decode_graphs": engine.decode_graphs.lower(),
        "speculation": _drafts(engine),
        "speculative_tokens": engine.speculative_tokens,
        "utilization": memory.utilization,
        "device_memory": _bytes(memory.device_memory),
        "arena_bytes": _bytes(memory.arena),
        "max_body_bytes": max(spec.gateway.limits.max_body_size.bytes, SMALLEST_BODY_LIMIT),
        "drain_timeout": spec.rollout.drain_timeout.seconds,
    }
    if role != "unified":
        values |= {"role": role, "transfer_port": transfer_port or 0}
        if transport != "Sockets":
            values["transfer_transport"] = transport.lower()
    if spec.workload is not None:
        values |= {f"workload_{name}": value for name, value in spec.workload}
    return EngineSettings(**{name: value for name, value in values.items() if value is not None})


def _drafts(engine: Engine) -> str | None:
    if engine.speculation is None or engine.draft_uri is not None:
        return engine.speculation
    return engine.speculation.lower()


def _bytes(size: Quantity | None) -> int | None:
    return size.bytes if size is not None else None


def _auto(choice: str) -> str:
    return "auto" if choice == "Auto" else choice


def model_entry_settings(deployment: MambaDeployment, hand_over_tokens: int | None) -> dict[str, Any]:
    """Return the settings of a deployment's model at a gateway of several models, without its engines.

    The limits of single keys and the address of a Redis depend on the gateway, so the caller adds them.
    """
    limits, routing = deployment.spec.gateway.limits, deployment.spec.gateway.routing
    settings: dict[str, Any] = {
        "prefix_index_scope": f"{deployment.namespace}/{deployment.name}",
        "max_in_flight": limits.max_in_flight,
        "max_queue": limits.max_queued,
        "queue_timeout": limits.queue_timeout.seconds,
        "hold_timeout": limits.queue_timeout.seconds,
        "request_timeout": limits.request_timeout.seconds,
        "prefix_weight": routing.prefix_weight,
        "load_weight": routing.load_weight,
        "hand_over_tokens": hand_over_tokens,
    }
    if limits.per_key is not None:
        settings["requests_per_minute"] = limits.per_key.requests_per_minute
        settings["tokens_per_minute"] = limits.per_key.tokens_per_minute
        settings["concurrent_requests"] = limits.per_key.concurrent_requests
    return {name: value for name, value in settings.items() if value is not None}


def key_limit(key: NamedKeyLimits) -> str:
    """Return the limits of one key in the form of the gateway's option `--key-limit`."""
    values = {
        "requests": key.requests_per_minute,
        "tokens": key.tokens_per_minute,
        "concurrent": key.concurrent_requests,
        "weight": key.weight,
    }
    return f"{key.name}:" + ",".join(f"{name}={value}" for name, value in values.items() if value is not None)


def usage_settings(usage: Usage) -> dict[str, str]:
    """Return the gateway's settings of its ledger by their names, as the environment has them.

    Values that are the gateway's own defaults are left out, so that a spec without them changes no pod.
    """
    settings = {}
    if usage.retention_days != Usage().retention_days:
        settings["usage_days"] = str(usage.retention_days)
    if usage.readers:
        settings["usage_reader"] = " ".join(usage.readers)
    if (prices := usage.prices) is not None:
        settings["price_currency"] = prices.currency
        settings |= {f"price_{name}": amount for name, amount in _amounts(prices).items()}
        if isinstance(prices, PricesByModel) and prices.models:
            settings["model_price"] = "\n".join(map(_model_price, prices.models))
    return settings


def _amounts(prices: Prices | ModelPrices) -> dict[str, str]:
    amounts = {name: getattr(prices, name) for name in PRICED}
    return {name: repr(amount) for name, amount in amounts.items() if amount is not None}


def _model_price(prices: ModelPrices) -> str:
    """Return the prices of one model in the form of the gateway's option `--model-price`."""
    amounts = _amounts(prices).items()
    return f"{prices.model}:" + ",".join(f"{name.replace('_', '-')}={amount}" for name, amount in amounts)
