"""The engines as an InferencePool, which HTTPRoutes of the Gateway API can name. Pure."""

from mamba_api import names
from mamba_operator.objects.kinds import INFERENCE_POOL, SERVICE
from mamba_operator.objects.manifest import Manifest
from mamba_operator.render.context import Context, child


def inference_pool(context: Context) -> Manifest | None:
    """Return the InferencePool; None where the spec has none."""
    deployment = context.deployment
    if deployment.spec.gateway.inference_pool is None:
        return None
    return {
        **child(context, INFERENCE_POOL, context.children.inference_pool, "gateway"),
        "spec": {
            "selector": {"matchLabels": names.selector(deployment.name, "engine")},
            "targetPorts": [{"number": names.HTTP_PORT}],
            "endpointPickerRef": {
                "group": SERVICE.group,
                "kind": SERVICE.kind,
                "name": context.children.gateway,
                "port": {"number": names.ENDPOINT_PICKER_PORT},
                # Without the picker, prompts miss their cached prefix and callers are not checked.
                "failureMode": "FailClose",
            },
        },
    }
