"""MambaDeployments, children and snapshots for the operator's unit tests, as an API server gives them."""

import copy
import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment, PlanStatus
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.objects.manifest import Key, Manifest, Ref, ref
from mamba_operator.observation.snapshot import ReportedPlan, Snapshot
from mamba_operator.plan import make_plan

NOW = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
UID = "11111111-2222-3333-4444-555555555555"
TOKEN = "a-fresh-token"
CONFIGS = Path(__file__).parents[1] / "golden" / "configs"


def nano_config() -> dict[str, Any]:
    """Return config.json of a 9B hybrid, as it can stand in YAML: JSON has no infinity."""
    config: dict[str, Any] = json.loads((CONFIGS / "nemotron-nano-9b-v2.json").read_text())
    return {key: value for key, value in config.items() if key != "time_step_limit"}


def owner(name: str = "nano", *, metadata: dict[str, Any] | None = None, **spec: Any) -> Manifest:
    """Return a MambaDeployment as the API server stores it: with all defaults."""
    raw = {
        "metadata": {"name": name, "namespace": "models"},
        "spec": {"model": {"uri": "builtin://tiny-recall"}, **spec},
    }
    stored = MambaDeployment.model_validate(raw).manifest()
    stored["metadata"] |= {"uid": UID, "generation": 3, "resourceVersion": "100", **(metadata or {})}
    return stored


def fitting_owner(**spec: Any) -> Manifest:
    """Return a deployment whose plan is known and fits."""
    return owner(
        **{
            "model": {"uri": "pvc://models/nano", "config": nano_config()},
            "memory": {"deviceMemory": "80Gi"},
            **spec,
        }
    )


def snapshot(of: Manifest | None, children: Iterable[Manifest] = (), **more: Any) -> Snapshot:
    """Return a snapshot with these children, all owned; Secrets are not looked at."""
    meta = of["metadata"] if of else {"namespace": "models", "name": "nano"}
    key = Key(meta["namespace"], meta["name"])
    return Snapshot(key, of, {ref(child): child for child in children if child["kind"] != "Secret"}, **more)


def planned(of: Manifest | None, children: Iterable[Manifest] = (), **more: Any) -> ReconcilePlan:
    """Return the operator's plan for the object and these children."""
    return make_plan(snapshot(of, children, **more), now=NOW, new_token=lambda: TOKEN)


def applied(of: Manifest, **more: Any) -> list[Manifest]:
    """Return the stored children after one pass: with uids, versions and the Secret encoded."""
    children = []
    for number, change in enumerate(planned(of, **more).applies):
        child = copy.deepcopy(change.manifest)
        child["metadata"] |= {"uid": f"uid-{number}", "resourceVersion": str(200 + number), "generation": 1}
        if "stringData" in child:
            child["data"] = dict.fromkeys(child.pop("stringData"), "ZW5jb2RlZA==")
        children.append(child)
    return children


def edited(children: list[Manifest], kind: str, name: str, edit: Callable[[Manifest], Any]) -> list[Manifest]:
    """Return the children after somebody edited one of them by hand."""
    changed = copy.deepcopy(children)
    edit(next(child for child in changed if ref(child) == Ref(kind, name)))
    return changed


def without(children: list[Manifest], kind: str, name: str) -> list[Manifest]:
    """Return the children after somebody deleted one."""
    return [child for child in children if ref(child) != Ref(kind, name)]


def running(children: list[Manifest], *, engines: int = 1, gateways: int = 1) -> list[Manifest]:
    """Return the children when their controllers are done and that many pods are ready."""
    changed = copy.deepcopy(children)
    for child in changed:
        if child["kind"] == "Deployment":
            ready = engines if child["metadata"]["name"].endswith("-engine") else gateways
            count = child["spec"]["replicas"]
            child["status"] = {
                "observedGeneration": 1, "replicas": count, "updatedReplicas": count, "readyReplicas": ready,
            }  # fmt: skip
    return changed


TOLD = {
    "strategy": "ExtraBuffer", "reason": "the engine's", "stateDtype": "float32", "slots": 141, "pages": 900,
    "slotsPerSequence": 2, "maxRunningRequests": 32, "bindingConstraint": "state slots", "headroom": "1Gi",
    "ledger": [{"item": "weights", "bytes": 7}], "arenaBytes": 1,
}  # fmt: skip
"""Report of an engine about its memory plan."""


def told_by_engine(children: Iterable[Manifest]) -> ReportedPlan:
    """Return the same report from an engine of the children's revision."""
    engine = next(child for child in children if ref(child) == Ref("Deployment", "nano-engine"))
    revision = str(engine["spec"]["template"]["metadata"]["labels"][names.LABEL_REVISION])
    return ReportedPlan(revision, PlanStatus.model_validate(TOLD, by_alias=True, by_name=False))


def creating_pod(reason: str = "ContainerCreating", **meta: Any) -> Manifest:
    """Return an engine pod that waits for its container; `PodInitializing`: and for a loader before it."""
    waits = [{"state": {"waiting": {"reason": reason}}}]
    loader = {"initContainerStatuses": waits} if reason == "PodInitializing" else {}
    return {
        "kind": "Pod",
        "metadata": {
            "name": "nano-engine-a", "namespace": "models",
            "labels": {**names.labels("nano", "engine")}, **meta,
        },
        "status": {"phase": "Pending", "containerStatuses": waits, **loader},
    }  # fmt: skip
