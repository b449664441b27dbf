"""The PersistentVolumeClaim that keeps downloaded weights, when `spec.model.cache` asks for it. Pure."""

from typing import Any

from mamba_operator.kinds import CLAIM
from mamba_operator.manifest import Manifest
from mamba_operator.render.context import Context, child


def model_cache(context: Context) -> Manifest | None:
    """None when no cache is asked for, or the weights are not downloaded."""
    model = context.deployment.spec.model
    if model.cache is None or model.location.scheme != "hf":
        return None
    spec: dict[str, Any] = {
        "accessModes": [model.cache.access_mode],
        "resources": {"requests": {"storage": str(model.cache.size)}},
    }
    if model.cache.storage_class_name:
        spec["storageClassName"] = model.cache.storage_class_name
    return {**child(context, CLAIM, context.children.model_cache, "engine"), "spec": spec}
