"""Which nodes an engine pod may run on. Pure; called by `gpu_memory`.

Node selector, required node affinity and taints, read as the scheduler reads a pod. States of a node that
pass count for nothing: a cordon, and what the control plane finds of its health.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from mamba_api.errors import InvalidQuantity
from mamba_api.quantity import parse_quantity
from mamba_operator.objects.manifest import Manifest, metadata

NODE_NAME = "metadata.name"
KEEPS_OFF = ("NoSchedule", "NoExecute")
"""Effects that keep pods off a node; PreferNoSchedule does not."""
PASSING = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Keys of taints that the control plane sets and takes away: not-ready, pressure, a cordon."""

Labels = Mapping[str, Any]
"""Labels of one node, and its name under `metadata.name`."""


@dataclass(frozen=True, slots=True)
class Node:
    """What decides whether a pod may run on a node, and what GPUs it gets there."""

    labels: Labels
    taints: tuple[Mapping[str, Any], ...] = ()
    """Those that keep pods off for good."""


def node_of(manifest: Manifest) -> Node:
    """What is kept of a Node, some hundred bytes of its ten thousand."""
    meta, spec = metadata(manifest), manifest.get("spec") or {}
    taints = (taint for taint in spec.get("taints") or () if taint.get("effect") in KEEPS_OFF)
    return Node(
        {**(meta.get("labels") or {}), NODE_NAME: meta.get("name")},
        tuple(taint for taint in taints if not str(taint.get("key")).startswith(PASSING)),
    )


def may_run_on(node: Node, pod: Mapping[str, Any]) -> bool:
    """Whether the spec of the pod lets it run there; what is malformed says no."""
    return _is_chosen(node.labels, pod) and all(_is_tolerated(taint, pod) for taint in node.taints)


def _is_tolerated(taint: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    tolerations = pod.get("tolerations")
    return isinstance(tolerations, list) and any(_tolerates(one, taint) for one in tolerations)


def _tolerates(toleration: Any, taint: Mapping[str, Any]) -> bool:
    if not isinstance(toleration, Mapping):
        return False
    # An empty key or effect is any.
    for part in ("key", "effect"):
        if toleration.get(part) and toleration[part] != taint.get(part):
            return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Equal":
        return (toleration.get("value") or "") == (taint.get("value") or "")
    return bool(operator == "Exists")


def _is_chosen(labels: Labels, pod: Mapping[str, Any]) -> bool:
    selector = pod.get("nodeSelector") or {}
    affinity = _part(_part(pod, "affinity"), "nodeAffinity")
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not isinstance(selector, Mapping) or any(labels.get(key) != value for key, value in selector.items()):
        return False
    if required is None:
        return True
    terms = required.get("nodeSelectorTerms") if isinstance(required, Mapping) else None
    return isinstance(terms, list) and any(_term_holds(labels, term) for term in terms)


def _term_holds(labels: Labels, term: Any) -> bool:
    if not isinstance(term, Mapping):
        return False
    requirements = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
    # An empty term chooses no node, says the API.
    return bool(requirements) and all(_requirement_holds(labels, one) for one in requirements)


_OPERATORS: dict[str, Callable[[Any, list[Any]], bool]] = {
    "In": lambda value, wanted: value is not None and value in wanted,
    "NotIn": lambda value, wanted: value not in wanted,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, wanted: _compared(value, wanted, lambda a, b: a > b),
    "Lt": lambda value, wanted: _compared(value, wanted, lambda a, b: a < b),
}


def _requirement_holds(labels: Labels, one: Any) -> bool:
    if not isinstance(one, Mapping) or one.get("operator") not in _OPERATORS:
        return False
    wanted = one.get("values")
    return _OPERATORS[one["operator"]](
        labels.get(str(one.get("key"))), wanted if isinstance(wanted, list) else []
    )


def _compared(value: Any, wanted: list[Any], holds: Callable[[Decimal, Decimal], bool]) -> bool:
    have, bound = number_of(value), number_of(wanted[0] if wanted else None)
    return have is not None and bound is not None and holds(have, bound)


def number_of(text: Any) -> Decimal | None:
    """What a label counts; None for what is no number."""
    try:
        return parse_quantity(str(text))
    except InvalidQuantity:
        return None


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = of.get(name)
    return value if isinstance(value, Mapping) else {}
