"""`serving_gateways`: the gateway pods that send requests to the engines of one MambaDeployment.

Those are its own, and those of the MambaGateways that serve its model. The watches of roll-outs and canaries
read them: whoever reads the deployment's own gateways alone learns nothing of clients of a shared address.
Reads the watches; makes no request.
"""

from collections.abc import Iterator

from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import MAMBA_GATEWAY, POD
from mamba_operator.objects.manifest import Key, Manifest, section
from mamba_operator.objects.pod_trouble import answers, is_gateway


def serving_gateways(indices: Indices, key: Key) -> list[Manifest]:
    """Return the pods of gateways in front of a deployment that answer, its own ones first.

    Which MambaGateways serve the deployment stands in their status, where the operator has written it.
    """
    owners = [key, *_shared_gateways(indices, key)]
    pods = (pod for owner in owners for pod in indices.of(POD, owner))
    return [pod for pod in pods if is_gateway(pod) and answers(pod)]


def _shared_gateways(indices: Indices, key: Key) -> Iterator[Key]:
    """Yield the MambaGateways that serve a deployment."""
    for gateway in indices.keys(MAMBA_GATEWAY):
        if gateway.namespace == key.namespace and any(
            _serves(one, key.name) for one in indices.of(MAMBA_GATEWAY, gateway)
        ):
            yield gateway


def _serves(gateway: Manifest, deployment: str) -> bool:
    models = section(gateway, "status").get("models") or ()
    return any(isinstance(model, dict) and model.get("deployment") == deployment for model in models)
