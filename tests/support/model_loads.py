"""Downloads to a model cache as a cluster shows them: the Job, its pods, and what comes after."""

import copy
from typing import Any

from mamba_api import names
from mamba_operator.objects.manifest import Manifest, ref
from mamba_planner.arithmetic import WeightsSize
from mamba_planner.model_report import ModelReport
from operator_objects import NOW, applied, fitting_owner, nano_config, planned

COMMIT = "c0ffee" + "0" * 34
REPORT = ModelReport(COMMIT, nano_config(), WeightsSize(17_778_000_000, 8_889_000_000, 8_880_000_000))


def cached(uri: str = "hf://org/model", *, cache: dict[str, Any] | None = None, **spec: Any) -> Manifest:
    """Return a deployment with a model cache, whose configuration is not known."""
    template = dict(spec)
    model = {"uri": uri, "cache": {"size": "40Gi", **(cache or {})}, **template.pop("model", {})}
    return fitting_owner(model=model, **template)


def grown(of: Manifest, children: list[Manifest], **more: Any) -> list[Manifest]:
    """Return the children after another pass."""
    plan = planned(of, children, **more)
    gone = {one.ref for one in plan.deletes} | {ref(one.manifest) for one in plan.applies}
    kept = [copy.deepcopy(child) for child in children if ref(child) not in gone]
    for number, change in enumerate(plan.applies):
        manifest = copy.deepcopy(change.manifest)
        uid = next((one["metadata"]["uid"] for one in children if ref(one) == ref(manifest)), None)
        uid = uid or f"{manifest['kind']}-{len(children)}-{number}"
        manifest["metadata"] |= {"uid": uid, "resourceVersion": str(900 + number), "generation": 1}
        kept.append(manifest)
    return kept


def job_of(children: list[Manifest]) -> Manifest:
    """Return the only loader."""
    [job] = [child for child in children if child["kind"] == "Job"]
    return job


def with_status(children: list[Manifest], condition: str = "", *, failed: int = 0) -> list[Manifest]:
    """Return the children with this status of the loader's Job."""
    changed = copy.deepcopy(children)
    condition_entry = {
        "type": condition,
        "status": "True",
        "lastTransitionTime": NOW.isoformat(),
        "message": "it says",
    }
    job_of(changed)["status"] = {"failed": failed, **({"conditions": [condition_entry]} if condition else {})}
    return changed


def loader_pod(job: Manifest, phase: str, message: str = "", *, name: str = "", **ended: Any) -> Manifest:
    """Return a pod of the loader; `message`: its termination message."""
    state: dict[str, Any] = {}
    if phase in ("Succeeded", "Failed"):
        state = {"terminated": {"exitCode": 0 if phase == "Succeeded" else 1, "message": message, **ended}}
    return {
        "kind": "Pod",
        "metadata": {
            "name": name or f"{job['metadata']['name']}-a",
            "labels": names.labels("nano", "loader"),
            "ownerReferences": [{"kind": "Job", "uid": job["metadata"]["uid"], "controller": True}],
        },
        "status": {"phase": phase, "containerStatuses": [{"name": "loader", "state": state}]},
    }


def loading(of: Manifest) -> list[Manifest]:
    """Return the children when the loader has just been created."""
    return grown(of, applied(of))


def loaded(of: Manifest, report: ModelReport = REPORT) -> list[Manifest]:
    """Return the children when the model has been loaded and engines exist."""
    children = with_status(loading(of), "Complete")
    return grown(of, children, pods=(loader_pod(job_of(children), "Succeeded", report.text()),))
