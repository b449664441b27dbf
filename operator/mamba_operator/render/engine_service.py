"""The headless Service X-engine: the list of engines that gateways watch through its EndpointSlices. Pure."""

from mamba_api import names
from mamba_operator.kinds import SERVICE
from mamba_operator.manifest import Manifest
from mamba_operator.render.context import Context, child


def engine_service(context: Context) -> Manifest:
    """Only ready pods are published as ready; a draining one fails /readyz and leaves the list."""
    deployment = context.deployment
    return {
        **child(context, SERVICE, context.children.engine, "engine"),
        "spec": {
            "clusterIP": "None",
            "type": "ClusterIP",
            "selector": names.selector(deployment.name, "engine"),
            "ports": [
                {
                    "name": names.HTTP_PORT_NAME,
                    "port": names.HTTP_PORT,
                    "targetPort": names.HTTP_PORT_NAME,
                    "protocol": "TCP",
                }
            ],
        },
    }
