"""`secrets_to_make`: the Secrets that pods mount and the operator never reads. Pure; called by `plan`.

The operator finds out whether a Secret exists by creating it, and does so only where a pod may wait for it.
"""

from collections.abc import Callable

from mamba_operator.children.changes import Apply, Change
from mamba_operator.children.engine_rollout import EngineRollout
from mamba_operator.objects.manifest import Manifest
from mamba_operator.objects.pod_trouble import is_being_created, waits_for_mounts
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.render.access import admin_secret
from mamba_operator.render.engine_key import engine_key_secret
from mamba_operator.rollout.key_rollout import has_key


def secrets_to_make(engines: EngineRollout, snapshot: Snapshot, new_token: Callable[[], str]) -> list[Apply]:
    """Return the Secrets to create before other children, since a pod without them waits with a warning."""
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
    """Return whether pods of any component may wait for what they mount."""
    return any(map(waits_for_mounts, snapshot.pods))


def _mounts_another(engine: Manifest, secret: str) -> bool:
    """Return whether the pods mount an admin token of another name, as those of an earlier operator do."""
    try:
        volumes = engine["spec"]["template"]["spec"]["volumes"]
        return any(
            volume["name"] == "admin" and volume["secret"]["secretName"] != secret for volume in volumes
        )
    except (KeyError, TypeError):
        # Somebody damaged the template. It is repaired anyway, which needs no token.
        return False
