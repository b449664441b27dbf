"""`may_run_on`: decides whether an engine pod may run on a node. Pure; called by `pin`.

Node selector, required node affinity and taints are read as the scheduler reads them. Temporary states of a
node are ignored: a cordon, and the taints that the control plane sets for its health.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from mamba_api.errors import InvalidQuantity
from mamba_api.quantity import parse_quantity
from mamba_operator.objects.manifest import Manifest, metadata, section

NODE_NAME = "metadata.name"
EXCLUDING_EFFECTS = ("NoSchedule", "NoExecute")
"""Effects that keep pods off a node; PreferNoSchedule does not."""
TEMPORARY_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Prefixes of taints that the control plane sets and removes: not-ready, pressure, a cordon."""

Labels = Mapping[str, Any]
"""Labels of one node, and its name under `metadata.name`."""


@dataclass(frozen=True, slots=True)
class Node:
    """Facts about one node that determine whether a pod may run there, and which GPUs it gets."""

    labels: Labels
    taints: tuple[Mapping[str, Any], ...] = ()
    """Taints that keep pods off permanently."""


def node_of(manifest: Manifest) -> Node:
    """Return the facts of a Node object, which are a few hundred of its ten thousand bytes."""
    meta, spec = metadata(manifest), manifest.get("spec") or {}
    taints = (taint for taint in spec.get("taints") or () if taint.get("effect") in EXCLUDING_EFFECTS)
    return Node(
        {**(meta.get("labels") or {}), NODE_NAME: meta.get("name")},
        tuple(taint for taint in taints if not str(taint.get("key")).startswith(TEMPORARY_TAINTS)),
    )


def may_run_on(node: Node, pod: Mapping[str, Any]) -> bool:
    """Return whether the spec of a pod lets it run on a node; a malformed requirement excludes the node."""
    return _is_chosen(node.labels, pod) and all(_is_tolerated(taint, pod) for taint in node.taints)


def _is_tolerated(taint: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    tolerations = pod.get("tolerations")
    return isinstance(tolerations, list) and any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Any, taint: Mapping[str, Any]) -> bool:
    if not isinstance(toleration, Mapping):
        return False
    # A toleration without a key or an effect tolerates any of them.
    for part in ("key", "effect"):
        if toleration.get(part) and toleration[part] != taint.get(part):
            return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Equal":
        return (toleration.get("value") or "") == (taint.get("value") or "")
    return bool(operator == "Exists")


def _is_chosen(labels: Labels, pod: Mapping[str, Any]) -> bool:
    selector = pod.get("nodeSelector") or {}
    affinity = section(section(pod, "affinity"), "nodeAffinity")
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
    # By the API an empty term selects no node.
    return bool(requirements) and all(_requirement_holds(labels, requirement) for requirement in requirements)


_OPERATORS: dict[str, Callable[[Any, list[Any]], bool]] = {
    "In": lambda value, operands: value is not None and value in operands,
    "NotIn": lambda value, operands: value not in operands,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, operands: _compare(value, operands, lambda a, b: a > b),
    "Lt": lambda value, operands: _compare(value, operands, lambda a, b: a < b),
}


def _requirement_holds(labels: Labels, requirement: Any) -> bool:
    if not isinstance(requirement, Mapping) or requirement.get("operator") not in _OPERATORS:
        return False
    operands = requirement.get("values")
    return _OPERATORS[requirement["operator"]](
        labels.get(str(requirement.get("key"))), operands if isinstance(operands, list) else []
    )


def _compare(value: Any, operands: list[Any], holds: Callable[[Decimal, Decimal], bool]) -> bool:
    number, bound = number_of(value), number_of(operands[0] if operands else None)
    return number is not None and bound is not None and holds(number, bound)


def number_of(text: Any) -> Decimal | None:
    """Return the number in the value of a label; None if it is not a number."""
    try:
        return parse_quantity(str(text))
    except InvalidQuantity:
        return None
