"""`serving_gateways`: the gateway pods that send requests to the engines of one MambaDeployment.

The pods belong to the deployment's own gateway and to the MambaGateways that serve its model. `RolloutWatch`,
`CanaryWatch` and the autoscaler read the reports of all of them: the deployment's own gateway alone knows
nothing of clients of a shared address. This module reads the watches and makes no request.
"""

from collections.abc import Iterator

from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import MAMBA_GATEWAY, POD
from mamba_operator.objects.manifest import Key, Manifest, section
from mamba_operator.objects.pod_trouble import answers, is_gateway


def serving_gateways(indices: Indices, key: Key) -> list[Manifest]:
    """Return the ready gateway pods in front of a deployment, those of its own gateway first.

    The MambaGateways that serve the deployment are found by their status, which the operator writes.
    """
    owners = [key, *(gateway for gateway, _ in shared_gateways(indices, key))]
    pods = (pod for owner in owners for pod in indices.of(POD, owner))
    return [pod for pod in pods if is_gateway(pod) and answers(pod)]


def shared_gateways(indices: Indices, key: Key) -> Iterator[tuple[Key, list[str]]]:
    """Yield each MambaGateway that serves a deployment, with its names of the model and of the adapters."""
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
