"""How much memory one GPU has that an engine pod may get, by the labels of nodes. Pure; called by `plan`.

Read as the scheduler reads a pod: node selector and required node affinity. Labels are those of NVIDIA's
feature discovery.
"""

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

from mamba_api.errors import InvalidQuantity
from mamba_api.quantity import parse_quantity

NODE_NAME = "metadata.name"
_SHARED = ".shared"
"""What feature discovery adds to the name of a resource whose devices several pods share."""
MIB = 1024 * 1024

Labels = Mapping[str, Any]
"""Labels of one node, and its name under `metadata.name`."""


def smallest_gpu(nodes: Iterable[Labels], pod: Mapping[str, Any], resource: str) -> int | None:
    """Bytes of the smallest GPU that the pod may be given; None where no label tells.

    Args:
        nodes: labels of each node.
        pod: the spec of the pod.
        resource: the extended resource that stands for one GPU, a slice of one (MIG) among them.
    """
    sizes = [size for node in nodes if may_run_on(node, pod) and (size := _size(node, resource)) is not None]
    return min(sizes, default=None)


def _size(node: Labels, resource: str) -> int | None:
    name = resource.removesuffix(_SHARED)
    mib = _number(node.get(f"{name}.memory"))
    if mib is None:
        return None
    # Pods that take turns on a GPU share its memory, and nothing keeps one from taking the others' part.
    sharers = (
        _number(node.get(f"{name}.replicas")) if node.get(f"{name}.sharing-strategy") != "none" else None
    )
    return int(mib * MIB / max(sharers or Decimal(1), Decimal(1)))


def may_run_on(node: Labels, pod: Mapping[str, Any]) -> bool:
    """Whether node selector and required node affinity let the pod run there; what is malformed says no."""
    selector = pod.get("nodeSelector") or {}
    affinity = _part(_part(pod, "affinity"), "nodeAffinity")
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not isinstance(selector, Mapping) or any(node.get(key) != value for key, value in selector.items()):
        return False
    if required is None:
        return True
    terms = required.get("nodeSelectorTerms") if isinstance(required, Mapping) else None
    return isinstance(terms, list) and any(_term_holds(node, term) for term in terms)


def _term_holds(node: Labels, term: Any) -> bool:
    if not isinstance(term, Mapping):
        return False
    requirements = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
    # An empty term chooses no node, says the API.
    return bool(requirements) and all(_requirement_holds(node, one) for one in requirements)


_OPERATORS: dict[str, Callable[[Any, list[Any]], bool]] = {
    "In": lambda value, wanted: value is not None and value in wanted,
    "NotIn": lambda value, wanted: value not in wanted,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, wanted: _compared(value, wanted, lambda a, b: a > b),
    "Lt": lambda value, wanted: _compared(value, wanted, lambda a, b: a < b),
}


def _requirement_holds(node: Labels, one: Any) -> bool:
    if not isinstance(one, Mapping) or one.get("operator") not in _OPERATORS:
        return False
    wanted = one.get("values")
    return _OPERATORS[one["operator"]](
        node.get(str(one.get("key"))), wanted if isinstance(wanted, list) else []
    )


def _compared(value: Any, wanted: list[Any], holds: Callable[[Decimal, Decimal], bool]) -> bool:
    have, bound = _number(value), _number(wanted[0] if wanted else None)
    return have is not None and bound is not None and holds(have, bound)


def _number(text: Any) -> Decimal | None:
    """What a label counts; None for what is no number."""
    try:
        return parse_quantity(str(text))
    except InvalidQuantity:
        return None


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = of.get(name)
    return value if isinstance(value, Mapping) else {}
