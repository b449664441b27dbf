"""Memory of the smallest GPU that an engine pod may get, read from the labels of nodes. Pure.

Called by `pin`; `placement` decides which nodes count. The labels are those of NVIDIA's feature discovery.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from mamba_operator.observation.placement import Labels, Node, may_run_on, number_of

_SHARED = ".shared"
"""Suffix that feature discovery adds to the name of a resource whose devices several pods share."""
MIB = 1024 * 1024


def smallest_gpu(nodes: Iterable[Node], pod: Mapping[str, Any], resource: str) -> int | None:
    """Return the bytes of the smallest GPU that the pod may get; None where no label states a size.

    Args:
        nodes: the nodes with GPUs.
        pod: the spec of the pod.
        resource: the extended resource that stands for one GPU, or for a slice of one (MIG).
    """
    sizes = (_size(node.labels, resource) for node in nodes if may_run_on(node, pod))
    return min((size for size in sizes if size is not None), default=None)


def _size(labels: Labels, resource: str) -> int | None:
    name = resource.removesuffix(_SHARED)
    mib = number_of(labels.get(f"{name}.memory"))
    if mib is None:
        return None
    # Pods that take turns on a GPU share its memory, and nothing keeps one pod from taking the others' share.
    sharers = (
        number_of(labels.get(f"{name}.replicas"))
        if labels.get(f"{name}.sharing-strategy") != "none"
        else None
    )
    return int(mib * MIB / max(sharers or Decimal(1), Decimal(1)))
