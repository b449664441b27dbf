"""The ConfigMap X-engine: settings of the state cache, which engines take from their environment. Pure.

They are apart from the arguments in the pod template because they can change without a new pod.
"""

from mamba_api import names
from mamba_operator.kinds import CONFIG_MAP
from mamba_operator.manifest import Manifest
from mamba_operator.render.context import Context, child


def engine_settings(context: Context) -> dict[str, str]:
    """Environment variables of `mambaserve serve`.

    The planner's choice is passed on, because it knows the declared workload and the engine does not.
    """
    cache = context.deployment.spec.state_cache
    plan = context.plan
    dtype = plan.state_dtype if plan else cache.state_dtype
    return {
        f"{names.ENV_PREFIX}STRATEGY": plan.strategy if plan else cache.strategy,
        f"{names.ENV_PREFIX}STATE_DTYPE": "auto" if dtype == "Auto" else dtype,
        f"{names.ENV_PREFIX}TRACK_INTERVAL": str(cache.track_interval),
        f"{names.ENV_PREFIX}MAX_CHECKPOINTS_PER_PATH": str(cache.max_checkpoints_per_path),
        f"{names.ENV_PREFIX}EVICTION": cache.eviction,
        f"{names.ENV_PREFIX}PREFIX_CACHING": "true" if cache.prefix_caching else "false",
    }


def engine_config(context: Context) -> Manifest:
    """What `engine_settings` says, for `envFrom`."""
    return {
        **child(context, CONFIG_MAP, context.children.engine, "engine"),
        "data": engine_settings(context),
    }
