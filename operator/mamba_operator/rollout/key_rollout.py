"""Order in which authentication between gateways and engines is rolled out. Pure; called by `plan`.

A gateway that presents no key to an engine that requires one would lose requests. So all gateways present the
key before the first engine requires it, and until no engine requires it any more.
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
    """The sides that use the key in the current step of the roll-out."""

    presented: bool = False
    """Whether gateways present the key to engines."""
    required: bool = False
    """Whether engines require the key."""
    blocked: bool = False
    """Whether engines do not yet require the key although they shall: some gateway pods still present
    none."""


def key_rollout(
    authenticated: bool, engine: Manifest | None, gateway: Manifest | None, pods: Sequence[Manifest]
) -> KeyRollout:
    """Return the sides that use the key in the next step of the roll-out.

    Args:
        authenticated: whether the gateway requires API keys, so that engines must be out of reach directly.
        engine: the engine Deployment.
        gateway: the gateway Deployment.
        pods: the pods of the deployment; terminating pods still serve.
    """
    living = [pod for pod in pods if not has_ended(pod)]
    if not authenticated:
        return KeyRollout(
            presented=has_key(engine) or any(is_engine(pod) and mounts_key(pod) for pod in living)
        )
    gateways = [pod for pod in living if is_gateway(pod)]
    required = engine is None or has_key(engine) or _all_present(gateway, gateways)
    return KeyRollout(presented=True, required=required, blocked=not required)


def _all_present(gateway: Manifest | None, pods: Sequence[Manifest]) -> bool:
    state = workload_state(gateway)
    return has_key(gateway) and state.current and state.ready > 0 and all(map(mounts_key, pods))


def has_key(workload: Any) -> bool:
    """Return whether the pod template of a Deployment mounts the key."""
    try:
        return mounts_key(workload["spec"]["template"])
    except (KeyError, TypeError):
        return False
