"""Choice of the engines to remove when their number decreases: those with the least cache and work.

Called by `reconcile`. Kubernetes removes the pods with the lowest `pod-deletion-cost` first. The chosen pods
get that annotation just before the number decreases, and at no other time. The value of an engine is its
share of all checkpoints of the deployment plus its share of all requests. An engine without a report has the
lowest value.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog

from mamba_api import names
from mamba_api.choices import Role
from mamba_operator.autoscale.metrics_reader import ReadMetrics
from mamba_operator.autoscale.pod_reports import pod_reports
from mamba_operator.autoscale.reports import DeletionCost, deletion_cost
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import ClusterError
from mamba_operator.objects.kinds import POD
from mamba_operator.objects.manifest import Manifest, annotation, metadata, name_of
from mamba_operator.objects.pod_trouble import serves
from mamba_operator.objects.recorded_status import workload_state
from mamba_operator.observation.snapshot import Snapshot

log = structlog.get_logger(__name__)
CHOSEN_COST = "-1"
"""Cost of a pod that is to be removed; a pod without the annotation costs 0."""


@dataclass(frozen=True, slots=True)
class ScaleDown:
    """A decrease of the number of engines: the pods, and how many of them are to be removed."""

    pods: tuple[Manifest, ...]
    """Ready engine pods, some of which are to be removed."""
    fewer: int
    """Number of those pods that are to be removed."""


def scale_downs(snapshot: Snapshot, plan: ReconcilePlan) -> list[ScaleDown]:
    """Return the decreases of the number of engines that a plan causes, at most one for each pool.

    No decrease is returned where no ready engine has to be removed, or all have to: there is nothing to
    choose. Kubernetes removes engines that are not ready first, without the operator's help.
    """
    if plan.deployment is None:
        return []
    roles: Iterable[Role] = plan.pools or ("unified",)
    decreases = (_scale_down(snapshot.of_pool(role), plan) for role in roles)
    return [decrease for decrease in decreases if decrease is not None]


def _scale_down(snapshot: Snapshot, plan: ReconcilePlan) -> ScaleDown | None:
    engine, before = snapshot.names.engine, snapshot.engine
    after = next(
        (
            change.manifest
            for change in plan.applies
            if change.manifest["kind"] == "Deployment" and change.manifest["metadata"]["name"] == engine
        ),
        None,
    )
    if before is None or after is None:
        return None
    left = int(after["spec"].get("replicas") or 0)
    pods = tuple(pod for pod in snapshot.pods if serves(pod))
    fewer = len(pods) - left
    return ScaleDown(pods, fewer) if left and fewer > 0 and left < workload_state(before).desired else None


def least_valuable(reports: Mapping[str, DeletionCost | None], count: int) -> set[str]:
    """Return the names of the `count` pods whose end would lose the least.

    `reports` has the report of each pod by its name; None = the pod did not report, and counts as the least
    valuable. Otherwise the value is the pod's share of all checkpoints plus its share of all requests.
    """
    costs = [cost for cost in reports.values() if cost is not None]
    checkpoints = sum(cost.checkpoints for cost in costs) or 1.0
    requests = sum(cost.requests for cost in costs) or 1.0

    def value(name: str) -> float:
        cost = reports[name]
        return cost.checkpoints / checkpoints + cost.requests / requests if cost is not None else -1.0

    return set(sorted(reports, key=lambda name: (value(name), name))[:count])


async def mark_pods(client: KubeClient, decrease: ScaleDown, read: ReadMetrics) -> None:
    """Mark the pods to be removed, and remove the mark of an earlier decrease from the others.

    A write that fails is logged and raises no error; Kubernetes may then remove another pod.
    """
    reports = await pod_reports(read, decrease.pods, deletion_cost)
    chosen = least_valuable(reports, decrease.fewer)
    await asyncio.gather(*(_write(client, pod, chosen) for pod in _differing(decrease.pods, chosen)))
    log.info("engines_chosen_to_end", pods=sorted(chosen))


def _differing(pods: Iterable[Manifest], chosen: set[str]) -> list[Manifest]:
    return [
        pod
        for pod in pods
        if (annotation(pod, names.ANNOTATION_DELETION_COST) == CHOSEN_COST) != (name_of(pod) in chosen)
    ]


async def _write(client: KubeClient, pod: Manifest, chosen: set[str]) -> None:
    cost = CHOSEN_COST if name_of(pod) in chosen else None
    patch = {"metadata": {"annotations": {names.ANNOTATION_DELETION_COST: cost}}}
    try:
        await client.merge(POD, metadata(pod).get("namespace"), name_of(pod), patch)
    except ClusterError as error:
        log.warning("deletion_cost_not_written", pod=name_of(pod), error=str(error))
