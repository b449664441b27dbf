"""The key that engines require of gateways where `spec.gateway.auth` requires one of clients. Pure.

Each deployment has its own key: engines never see the keys of clients, which may be replaced at any time.
"""

import hashlib
from typing import Any

from mamba_api import names
from mamba_operator.objects.kinds import SECRET
from mamba_operator.objects.manifest import Manifest
from mamba_operator.render.context import Context, child

VOLUME = "engine-key"
MOUNT = "/run/mambaserve/engine-key"
KEY_FILE = f"{MOUNT}/{names.ENGINE_KEY_KEY}"


def engine_key_secret(context: Context, token: str) -> Manifest:
    """Return the Secret with the key.

    The key is derived from `token`, the token of the admin port, and does not reveal it. The name of the key
    lets gateways speak for clients and read cached prefixes.
    """
    key = hashlib.sha256(f"engine key {token}".encode()).hexdigest()
    return {
        **child(context, SECRET, _secret_name(context), "engine"),
        "type": "Opaque",
        "stringData": {names.ENGINE_KEY_KEY: f"{key} {names.GATEWAY_KEY}"},
    }


def key_volume(context: Context) -> dict[str, Any]:
    """Return the volume of a pod that requires the key or presents it."""
    return {"name": VOLUME, "secret": {"secretName": _secret_name(context), "defaultMode": 0o440}}


def key_mount() -> dict[str, Any]:
    """Return the mount of the key's volume."""
    return {"name": VOLUME, "mountPath": MOUNT, "readOnly": True}


def mounts_key(pod: Any) -> bool:
    """Return whether a pod of that spec requires the key or presents it."""
    try:
        return any(volume["name"] == VOLUME for volume in pod["spec"].get("volumes") or ())
    except (AttributeError, KeyError, TypeError):
        return False


def _secret_name(context: Context) -> str:
    return context.children.engine_key(context.deployment.metadata.uid or "")
