"""Which engines go when there shall be fewer: those whose cache and work are worth least.

Kubernetes takes the pods of the lowest `pod-deletion-cost` first. It is written to the pods that are to go,
just before the number falls, and at no other time. An engine's worth is its share of all checkpoints of the
deployment plus its share of all requests; one that says nothing is worth nothing.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog

from mamba_api import names
from mamba_operator.autoscale.metrics_reader import ReadMetrics
from mamba_operator.autoscale.pod_reports import pod_reports
from mamba_operator.autoscale.reports import DeletionCost, deletion_cost
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import ClusterError
from mamba_operator.objects.kinds import POD
from mamba_operator.objects.manifest import Manifest, annotation, metadata, name_of
from mamba_operator.objects.pod_trouble import serves
from mamba_operator.objects.workload_state import workload_state
from mamba_operator.observation.snapshot import Snapshot

log = structlog.get_logger(__name__)
FIRST = "-1"
"""Cost of a pod that is to go; without the annotation it is 0."""


@dataclass(frozen=True, slots=True)
class ScaleDown:
    """Engines that may go, and how many of them shall."""

    pods: tuple[Manifest, ...]
    fewer: int


def scale_down(snapshot: Snapshot, plan: ReconcilePlan) -> ScaleDown | None:
    """None where no ready engine has to go, or all do. Those that are not ready go first by themselves."""
    if plan.deployment is None:
        return None
    engine = names.Children(plan.deployment.name).engine
    before = snapshot.child("Deployment", engine)
    after = next(
        (
            one.manifest
            for one in plan.applies
            if one.manifest["kind"] == "Deployment" and one.manifest["metadata"]["name"] == engine
        ),
        None,
    )
    if before is None or after is None:
        return None
    left = int(after["spec"].get("replicas") or 0)
    pods = tuple(pod for pod in snapshot.pods if serves(pod))
    fewer = len(pods) - left
    return ScaleDown(pods, fewer) if left and fewer > 0 and left < workload_state(before).wanted else None


def least_worth(held: Mapping[str, DeletionCost | None], fewer: int) -> set[str]:
    """Names of the `fewer` pods to go, from what each holds; None = it did not say."""
    known = [one for one in held.values() if one is not None]
    checkpoints = sum(one.checkpoints for one in known) or 1.0
    requests = sum(one.requests for one in known) or 1.0

    def worth(name: str) -> float:
        one = held[name]
        return one.checkpoints / checkpoints + one.requests / requests if one is not None else -1.0

    return set(sorted(held, key=lambda name: (worth(name), name))[:fewer])


async def mark_pods(client: KubeClient, wanted: ScaleDown, read: ReadMetrics) -> None:
    """Write who is to go, and take it back from those marked for an earlier time. What fails is logged: then
    another pod goes."""
    held = await pod_reports(read, wanted.pods, deletion_cost)
    chosen = least_worth(held, wanted.fewer)
    await asyncio.gather(*(_write(client, pod, chosen) for pod in _differing(wanted.pods, chosen)))
    log.info("engines_chosen_to_go", pods=sorted(chosen))


def _differing(pods: Iterable[Manifest], chosen: set[str]) -> list[Manifest]:
    return [
        pod
        for pod in pods
        if (annotation(pod, names.ANNOTATION_DELETION_COST) == FIRST) != (name_of(pod) in chosen)
    ]


async def _write(client: KubeClient, pod: Manifest, chosen: set[str]) -> None:
    cost = FIRST if name_of(pod) in chosen else None
    patch = {"metadata": {"annotations": {names.ANNOTATION_DELETION_COST: cost}}}
    try:
        await client.merge(POD, metadata(pod).get("namespace"), name_of(pod), patch)
    except ClusterError as error:
        log.warning("deletion_cost_not_written", pod=name_of(pod), error=str(error))
