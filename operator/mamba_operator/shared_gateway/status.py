"""`summarize`: the status of a MambaGateway from what was observed, resolved and changed. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from pydantic import ValidationError

from mamba_api import names
from mamba_api.v1alpha1 import Condition
from mamba_api.v1alpha1.conditions import OF_PODS, ConditionStatus, Reason, place_condition
from mamba_api.v1alpha1.gateway_status import GatewayConditionType, GatewayReason, GatewayStatus
from mamba_operator.conditions.chain import Failure
from mamba_operator.objects.manifest import Manifest
from mamba_operator.objects.pod_trouble import advised, advised_refusal, trouble
from mamba_operator.objects.recorded_status import WorkloadState, workload_state
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.shared_gateway.resolution import Resolution
from mamba_settings.models_document import MAX_MODELS

Result = tuple[ConditionStatus, GatewayReason | Reason, str]
"""(status, reason, message) of a condition."""
MAX_NAMES = 16
"""Largest number of names that a message lists."""


def recorded_gateway_status(owner: Manifest) -> GatewayStatus:
    """Return the recorded status; an empty one if it cannot be read."""
    try:
        return GatewayStatus.model_validate(owner.get("status") or {}, by_alias=True, by_name=False)
    except ValidationError:
        return GatewayStatus()


def summarize(
    snapshot: Snapshot,
    resolution: Resolution | None,
    failures: Sequence[Failure],
    not_served: Sequence[str],
    *,
    now: datetime,
) -> GatewayStatus:
    """Return the status to write.

    Args:
        snapshot: observed objects, before anything was changed.
        resolution: the names of the models; None for a spec that cannot be read.
        failures: changes that could not be made, and a spec that cannot be read.
        not_served: reasons why children cannot exist in this cluster.
        now: the time, with a time zone.
    """
    owner = snapshot.owner
    assert owner is not None
    old = recorded_gateway_status(owner)
    key, generation = snapshot.key, int(owner["metadata"].get("generation") or 0)
    gateways = workload_state(snapshot.child("Deployment", names.GatewayChildren(key.name).gateway))
    results = _results(snapshot, resolution, gateways, failures, not_served, now)
    conditions: list[Condition] = list(old.conditions)
    for type_, (status, reason, message) in results.items():
        conditions = place_condition(
            conditions, type_, status, reason, message, now=now, observed_generation=generation
        )
    models = resolution.models if resolution is not None else tuple(old.models)
    ready = sum(model.state in ("Ready", "Zero") for model in models)
    selector = names.selector(key.instance, "gateway")
    return old.model_copy(
        update={
            "observed_generation": generation,
            "url": names.url(key.name, key.namespace),
            "replicas": gateways.replicas,
            "ready_replicas": gateways.ready,
            "selector": ",".join(f"{name}={value}" for name, value in selector.items()),
            "ready_models": f"{ready}/{len(models)}",
            "models": list(models),
            "conditions": conditions,
        }
    )


def _results(
    snapshot: Snapshot,
    resolution: Resolution | None,
    gateways: WorkloadState,
    failures: Sequence[Failure],
    not_served: Sequence[str],
    now: datetime,
) -> Mapping[GatewayConditionType, Result]:
    available = _available(gateways)
    degraded = _degraded(snapshot, gateways, failures, not_served, now)
    results = {GatewayConditionType.AVAILABLE: available, GatewayConditionType.DEGRADED: degraded}
    if resolution is not None:
        results[GatewayConditionType.MODELS_RESOLVED] = models_resolved(resolution)
    ready: Result = ("True", Reason.SERVING, "the address answers requests at status.url")
    if available[0] != "True":
        ready = ("False", available[1], available[2])
    elif degraded[0] == "True" and degraded[1] not in OF_PODS:
        ready = ("False", degraded[1], degraded[2])
    return {**results, GatewayConditionType.READY: ready}


def models_resolved(resolution: Resolution) -> Result:
    """Return the condition ModelsResolved: the reason of the first problem with names, all messages."""
    problems = list(_problems(resolution))
    if not problems:
        count = len(resolution.models)
        return (
            "True",
            GatewayReason.ALL_NAMES_RESOLVED,
            f"number of served models: {count}; each name belongs to one of them",
        )
    reason, message = problems[0]
    further = "".join(f"; {other[1]}" for other in problems[1:])
    return ("False", reason, message + further)


def _problems(resolution: Resolution) -> Iterator[tuple[GatewayReason, str]]:
    if not resolution.models and not resolution.closed:
        message = (
            "no MambaDeployment that serves matches spec.selector, so no model is listed: correct the "
            "selector, or the labels of the MambaDeployments"
        )
        yield GatewayReason.NO_MODELS, message
    if resolution.closed:
        message = (
            "these MambaDeployments are left out, because they require API keys of clients, and this "
            f"MambaGateway does not: {_listed(resolution.closed)}; set spec.auth to serve them"
        )
        yield GatewayReason.KEYS_REQUIRED, message
    if resolution.left_out:
        message = (
            f"a MambaGateway serves at most {MAX_MODELS} MambaDeployments, and the youngest are left out: "
            f"{_listed(resolution.left_out)}; narrow spec.selector, or create another MambaGateway for them"
        )
        yield GatewayReason.TOO_MANY_MODELS, message
    if resolution.conflicts:
        yield GatewayReason.NAMES_CONFLICT, "; ".join(resolution.conflicts[:MAX_NAMES])
    if resolution.unknown:
        message = (
            f"these names in the spec belong to no model here: {_listed(resolution.unknown)}; correct them, "
            "or let spec.selector match the MambaDeployments of these models"
        )
        yield GatewayReason.NAMES_UNKNOWN, message


def _listed(items: Iterable[str]) -> str:
    listed = list(items)
    more = len(listed) - MAX_NAMES
    return ", ".join(listed[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _available(gateways: WorkloadState) -> Result:
    numbers = f"{gateways.ready} of {gateways.desired} gateways are ready"
    if gateways.ready:
        return ("True", GatewayReason.GATEWAYS_AVAILABLE, numbers)
    message = f"{numbers}, so no request is answered: the condition Degraded shows the cause"
    return ("False", Reason.GATEWAY_NOT_READY, message)


def _degraded(
    snapshot: Snapshot,
    gateways: WorkloadState,
    failures: Sequence[Failure],
    not_served: Sequence[str],
    now: datetime,
) -> Result:
    if failures:
        further = f"; further changes that failed: {len(failures) - 1}" if len(failures) > 1 else ""
        return ("True", failures[0].reason, failures[0].message + further)
    if (problem := trouble(snapshot.pods, now)) is not None:
        return ("True", problem.reason, problem.message)
    if gateways.refused is not None:
        return ("True", Reason.PODS_REFUSED, advised_refusal(gateways.refused))
    if gateways.stuck is not None:
        reason = Reason.PROGRESS_DEADLINE_EXCEEDED
        return ("True", reason, advised(reason, gateways.stuck))
    if not_served:
        return ("True", Reason.KIND_NOT_SERVED, "; ".join(not_served))
    return ("False", Reason.AS_EXPECTED, "nothing is wrong: there is nothing to do")
