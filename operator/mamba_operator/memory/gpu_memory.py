"""How much memory one GPU has that an engine pod may get, by the labels of nodes. Pure.

Called by `plan_pin`; `placement` says which nodes count. Labels are those of NVIDIA's feature discovery.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from mamba_operator.observation.placement import Labels, Node, may_run_on, number_of

_SHARED = ".shared"
"""What feature discovery adds to the name of a resource whose devices several pods share."""
MIB = 1024 * 1024


def smallest_gpu(nodes: Iterable[Node], pod: Mapping[str, Any], resource: str) -> int | None:
    """Bytes of the smallest GPU that the pod may be given; None where no label tells.

    Args:
        nodes: each node with GPUs.
        pod: the spec of the pod.
        resource: the extended resource that stands for one GPU, a slice of one (MIG) among them.
    """
    sizes = (_size(node.labels, resource) for node in nodes if may_run_on(node, pod))
    return min((size for size in sizes if size is not None), default=None)


def _size(labels: Labels, resource: str) -> int | None:
    name = resource.removesuffix(_SHARED)
    mib = number_of(labels.get(f"{name}.memory"))
    if mib is None:
        return None
    # Pods that take turns on a GPU share its memory, and nothing keeps one from taking the others' part.
    sharers = (
        number_of(labels.get(f"{name}.replicas"))
        if labels.get(f"{name}.sharing-strategy") != "none"
        else None
    )
    return int(mib * MIB / max(sharers or Decimal(1), Decimal(1)))
