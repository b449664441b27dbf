"""The Service X: the endpoint users call, `http://X.NAMESPACE.svc/v1`. Pure."""

from mamba_api import names
from mamba_operator.kinds import SERVICE
from mamba_operator.manifest import Manifest
from mamba_operator.render.context import Context, child


def gateway_service(context: Context) -> Manifest:
    """The address is the cluster's choice."""
    deployment = context.deployment
    return {
        **child(context, SERVICE, context.children.gateway, "gateway"),
        "spec": {
            "type": "ClusterIP",
            "selector": names.selector(deployment.name, "gateway"),
            "ports": [
                {
                    "name": names.HTTP_PORT_NAME,
                    "port": names.SERVICE_PORT,
                    "targetPort": names.HTTP_PORT_NAME,
                    "protocol": "TCP",
                }
            ],
        },
    }
