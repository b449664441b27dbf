"""The key that engines ask gateways for where `spec.gateway.auth` asks clients for one. Pure.

Of the deployment's own: clients' keys are no engine's business, and theirs may be replaced at any time.
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
    """Make the Secret. `token` is that of the admin port; the key tells nothing of it. Its name lets gateways
    speak for clients, and ask for what is cached."""
    key = hashlib.sha256(f"engine key {token}".encode()).hexdigest()
    return {
        **child(context, SECRET, _secret_name(context), "engine"),
        "type": "Opaque",
        "stringData": {names.ENGINE_KEY_KEY: f"{key} {names.GATEWAY_KEY}"},
    }


def key_volume(context: Context) -> dict[str, Any]:
    """Volume of a pod that asks for the key or shows it."""
    return {"name": VOLUME, "secret": {"secretName": _secret_name(context), "defaultMode": 0o440}}


def key_mount() -> dict[str, Any]:
    """Its mount."""
    return {"name": VOLUME, "mountPath": MOUNT, "readOnly": True}


def mounts_key(pod: Any) -> bool:
    """Whether a pod of that spec asks for the key, or shows it."""
    try:
        return any(one["name"] == VOLUME for one in pod["spec"].get("volumes") or ())
    except (AttributeError, KeyError, TypeError):
        return False


def _secret_name(context: Context) -> str:
    return context.children.engine_key(context.deployment.metadata.uid or "")
