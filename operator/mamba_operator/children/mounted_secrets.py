"""Secrets that pods mount: whether engines require the gateways' key, and which Secrets to create. Pure.

Called by `plan`. If an engine required the key while a gateway presents none, requests would be lost. So all
gateways present the key before the first engine requires it, and until no engine requires it any more. The
operator never reads the Secrets. It finds out whether one exists by creating it, and does so only if a pod
may be waiting for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mamba_operator.children.child_comparison import Apply, Change
from mamba_operator.children.engine_rollout import EngineRollout
from mamba_operator.objects.manifest import Manifest
from mamba_operator.objects.pod_trouble import (
    has_ended,
    is_being_created,
    is_engine,
    is_gateway,
    waits_for_mounts,
)
from mamba_operator.objects.recorded_status import workload_state
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.render.access import admin_secret, engine_key_secret, mounts_key


@dataclass(frozen=True, slots=True)
class KeyRollout:
    """One step of the introduction or removal of the gateways' key: who presents it, and who requires it."""

    presented: bool = False
    """Whether gateways present the key to engines."""
    required: bool = False
    """Whether engines require the key."""
    blocked: bool = False
    """Whether engines cannot require the key yet, because a gateway that presents none is still running."""


def key_rollout(
    authenticated: bool, engine: Manifest | None, gateway: Manifest | None, pods: Sequence[Manifest]
) -> KeyRollout:
    """Return the next step of the introduction or removal of the key.

    Args:
        authenticated: whether the gateway requires API keys of clients, so that engines must refuse direct
            requests.
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


def secrets_to_make(engines: EngineRollout, snapshot: Snapshot, new_token: Callable[[], str]) -> list[Apply]:
    """Return the Secrets to create before other children, as pods cannot start without them."""
    context, manifests = engines.context, list[Manifest]()
    engine = snapshot.child("Deployment", context.children.engine)
    gateway = snapshot.child("Deployment", context.children.gateway)
    if context.key_presented and (pods_wait(snapshot) or not has_key(gateway)):
        manifests.append(engine_key_secret(context, new_token()))
    waiting = any(map(is_being_created, snapshot.pods))
    if not engines.later and (waiting or engine is None or _mounts_another(engine, context.admin_secret)):
        manifests.append(admin_secret(context, new_token()))
    return [Apply(manifest, Change.MISSING, create_only=True) for manifest in manifests]


def pods_wait(snapshot: Snapshot) -> bool:
    """Return whether a pod of any component waits, possibly for something that it mounts."""
    return any(map(waits_for_mounts, snapshot.pods))


def _mounts_another(engine: Manifest, secret: str) -> bool:
    """Return whether the engines mount another admin token than `secret`, such as an earlier operator's."""
    try:
        volumes = engine["spec"]["template"]["spec"]["volumes"]
        return any(
            volume["name"] == "admin" and volume["secret"]["secretName"] != secret for volume in volumes
        )
    except (KeyError, TypeError):
        # The template is damaged. It will be repaired, which needs no token.
        return False
