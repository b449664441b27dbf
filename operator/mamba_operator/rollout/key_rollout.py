"""Whether gateways show a key to engines, and whether engines ask for it. Pure; called by `plan`.

A gateway that shows none to an engine that asks would lose requests. So all gateways show it before the first
engine asks, and go on until the last one does not ask any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mamba_operator.objects.manifest import Manifest
from mamba_operator.objects.pod_trouble import has_ended, is_engine, is_gateway
from mamba_operator.objects.workload_state import workload_state
from mamba_operator.render.engine_key import mounts_key


@dataclass(frozen=True, slots=True)
class KeyRollout:
    """Which side uses the key now: gateways show it, engines ask for it."""

    presented: bool = False
    """By gateways."""
    required: bool = False
    """By engines."""
    blocked: bool = False
    """Engines are to ask, and gateways are left that show none."""


def key_rollout(
    authenticated: bool, engine: Manifest | None, gateway: Manifest | None, pods: Sequence[Manifest]
) -> KeyRollout:
    """Who is to have it next.

    Args:
        wanted: whether clients are asked for keys, and engines are to be out of reach for everybody else.
        engine, gateway: the Deployments.
        pods: of the deployment; those that are on their way out still serve.
    """
    living = [pod for pod in pods if not has_ended(pod)]
    if not authenticated:
        return KeyRollout(presented=has_key(engine) or any(is_engine(pod) and mounts_key(pod) for pod in living))
    gateways = [pod for pod in living if is_gateway(pod)]
    required = engine is None or has_key(engine) or _all_present(gateway, gateways)
    return KeyRollout(presented=True, required=required, blocked=not required)


def _all_present(gateway: Manifest | None, pods: Sequence[Manifest]) -> bool:
    state = workload_state(gateway)
    return has_key(gateway) and state.current and state.ready > 0 and all(map(mounts_key, pods))


def has_key(workload: Any) -> bool:
    """Whether pods of a Deployment ask for the key, or show it."""
    try:
        return mounts_key(workload["spec"]["template"])
    except (KeyError, TypeError):
        return False
