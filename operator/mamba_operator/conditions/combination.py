"""`combined`: the conditions of a MambaDeployment from those of its pools. Pure; called by `status`.

Requests need an engine of each pool, so the worst pool decides, and its name is in the message.
"""

from collections.abc import Mapping
from dataclasses import replace

from mamba_api.choices import Role
from mamba_api.v1alpha1.conditions import ConditionType, Reason
from mamba_operator.conditions.chain import ConditionResult

BAD_WHEN_TRUE = frozenset({ConditionType.DEGRADED, ConditionType.RECONCILING, ConditionType.STALLED})
NOT_READY: dict[Role, Reason] = {
    "prefill": Reason.NO_READY_PREFILL_ENGINE,
    "decode": Reason.NO_READY_DECODE_ENGINE,
}
"""Reason that names the pool without a ready engine."""
Results = Mapping[ConditionType, ConditionResult]


def combined(of_roles: Mapping[Role, Results], outgoing: str = "") -> dict[ConditionType, ConditionResult]:
    """Return the conditions of the whole.

    Args:
        of_roles: the conditions of the engines of each role; there is only one for unified engines.
        outgoing: sentence about engines of other roles that still answer; empty where none does.
    """
    types = next(iter(of_roles.values()))
    result = {type_: _worst(type_, {role: own[type_] for role, own in of_roles.items()}) for type_ in types}
    if outgoing and result[ConditionType.AVAILABLE].status != "True":
        result[ConditionType.AVAILABLE] = ConditionResult("True", Reason.REPLICAS_AVAILABLE, outgoing)
    return result


def _worst(type_: ConditionType, of_roles: Mapping[Role, ConditionResult]) -> ConditionResult:
    """Return the result of the worst role, with the name of that role where it differs from the other."""
    if len(set(of_roles.values())) == 1:
        return next(iter(of_roles.values()))
    rank = {role: _badness(type_, result) for role, result in of_roles.items()}
    most = max(rank.values())
    roles = [role for role in of_roles if rank[role] == most]
    worst = of_roles[roles[0]]
    same_reason = [role for role in roles if of_roles[role].reason == worst.reason]
    messages = dict.fromkeys(f"{role}: {of_roles[role].message}" for role in same_reason)
    if worst.reason == Reason.NO_READY_REPLICA and len(same_reason) == 1:
        return replace(worst, reason=NOT_READY[roles[0]], message="; ".join(messages))
    return replace(worst, message="; ".join(messages))


def _badness(type_: ConditionType, result: ConditionResult) -> int:
    """Return how bad a result is: the larger, the worse."""
    if type_ == ConditionType.PROGRESSING:
        if result.status == "True":
            return 1
        # What is stuck or rolled back is worse than what moves.
        return 0 if result.reason == Reason.UP_TO_DATE else 2
    order = ("False", "Unknown", "True") if type_ in BAD_WHEN_TRUE else ("True", "Unknown", "False")
    return order.index(result.status)
