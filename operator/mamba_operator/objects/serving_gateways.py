"""`serving_gateways`: the gateway pods that send requests to the engines of one MambaDeployment.

Those are its own, and those of the MambaGateways that serve its model. The watches of roll-outs and canaries
read them, and so does the autoscaler: whoever reads the deployment's own gateways alone learns nothing of
clients of a shared address.
Reads the watches; makes no request.
"""

from collections.abc import Iterator

from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import MAMBA_GATEWAY, POD
from mamba_operator.objects.manifest import Key, Manifest, section
from mamba_operator.objects.pod_trouble import answers, is_gateway


def serving_gateways(indices: Indices, key: Key) -> list[Manifest]:
    """Return the pods of gateways in front of a deployment that answer, its own pods first.

    The MambaGateways that serve the deployment are found by their status, which the operator writes.
    """
    owners = [key, *(gateway for gateway, _ in shared_gateways(indices, key))]
    pods = (pod for owner in owners for pod in indices.of(POD, owner))
    return [pod for pod in pods if is_gateway(pod) and answers(pod)]


def shared_gateways(indices: Indices, key: Key) -> Iterator[tuple[Key, list[str]]]:
    """Yield the MambaGateways that serve a deployment, each with its names of the deployment's model."""
    for gateway in indices.keys(MAMBA_GATEWAY):
        if gateway.namespace == key.namespace:
            served = [name for one in indices.of(MAMBA_GATEWAY, gateway) for name in _served(one, key.name)]
            if served:
                yield gateway, served


def _served(gateway: Manifest, deployment: str) -> Iterator[str]:
    """Yield the names under which a MambaGateway counts requests for a deployment."""
    for model in section(gateway, "status").get("models") or ():
        if isinstance(model, dict) and model.get("deployment") == deployment:
            names_of = (model.get("name"), *(model.get("adapters") or ()))
            yield from (str(name) for name in names_of if name)
