"""The loader: a Job that downloads the model to `spec.model.cache` before engines start. Pure.

Engines then read the model from the volume by its commit, without the Hub. `model_load` decides whether a
loader is due.
"""

from collections.abc import Collection, Mapping
from typing import Any

from mamba_api import names
from mamba_operator.objects.kinds import CONFIG_MAP, JOB
from mamba_operator.objects.manifest import Manifest
from mamba_operator.objects.pod_trouble import WRONG_INPUT
from mamba_operator.render.context import Context, child
from mamba_operator.render.engine_pod import (
    loader_container,
    placement,
)
from mamba_operator.render.pod import ENDS_WHEN_TOLD, pod_security
from mamba_operator.render.strategic_merge import merge
from mamba_planner.model_report import ModelReport

LOAD_KEY = "load"
"""Key in the ConfigMap X-model: hash of the source and destination of the download."""
REPORT_KEY = "report.json"
TERMINATION_LOG = "/dev/termination-log"
LIMITS = {"cpu": "4", "memory": "4Gi"}
"""Limits of the loader, for namespaces whose quota requires limits of every container."""
OF_ANY_POD = (
    "imagePullSecrets", "securityContext", "dnsPolicy", "dnsConfig", "hostAliases", "nodeSelector",
    "tolerations", "priorityClassName", "runtimeClassName", "schedulerName", "serviceAccountName",
)  # fmt: skip
"""Fields of `spec.podTemplate` that adapt a pod to the cluster. They apply to loaders as well."""
OUR_VOLUMES = frozenset({"scratch", "settings", "admin", "cache", "model"})
"""Names of volumes that are not copied from a pod template to loaders. Other volumes are copied, such as the
one of a certificate authority."""
OF_ANY_CONTAINER = ("env", "envFrom", "imagePullPolicy", "securityContext")
"""Fields of the container `engine` in a pod template that apply to loaders as well."""
MAKE_ROOM, KEEP = "MAMBASERVE_DOWNLOAD_MAKE_ROOM", "MAMBASERVE_DOWNLOAD_KEEP"
ATTEMPTS = 7
"""Number of attempts of a loader. With the back-off of the Job controller (10 s, doubled each time) they span
an outage of the Hub of about ten minutes. Each attempt continues where the previous one stopped."""


def loader_job(context: Context, load: str, keep: Collection[str] | None = None) -> Manifest:
    """Render the Job X-load-HASH.

    Args:
        context: facts on which children depend.
        load: hash of the source and destination of the download.
        keep: commits whose copies on the volume stay when room is needed; None = every copy stays.
    """
    name = context.children.loader(load)
    return {
        **child(context, JOB, name, "loader"),
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": ATTEMPTS - 1,
            # Two loaders that write to one volume at the same time would interfere.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": names.LOADER_CONTAINER,
                            "operator": "In",
                            "values": [WRONG_INPUT],
                        },
                    },
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": _template(context, keep),
        },
    }


def model_report(context: Context, load: str, report: ModelReport) -> Manifest:
    """Return the ConfigMap X-model: the report outlives the loader's pod."""
    return {
        **child(context, CONFIG_MAP, context.children.model_report, "loader"),
        "data": {LOAD_KEY: load, REPORT_KEY: report.text()},
    }


def kept_by(job: Manifest) -> frozenset[str] | None:
    """Return the commits whose copies the Job keeps; None = it keeps every copy."""
    containers = ((job.get("spec") or {}).get("template") or {}).get("spec", {}).get("containers") or ()
    env = {
        variable.get("name"): variable.get("value")
        for variable in _named(list(containers), names.LOADER_CONTAINER).get("env") or ()
    }
    return frozenset(str(env.get(KEEP) or "").split()) if env.get(MAKE_ROOM) else None


def _template(context: Context, keep: Collection[str] | None) -> dict[str, Any]:
    """Return the loader's pod template, with the general part of `spec.podTemplate`. Raises InvalidPatch."""
    base = {
        "metadata": {"labels": names.labels(context.deployment.name, "loader")},
        "spec": _pod_spec(context, keep),
    }
    merged = merge(base, _of_any_pod(context.deployment.spec.pod_template or {}))
    labels = {**(merged["metadata"].get("labels") or {}), **base["metadata"]["labels"]}
    return {**merged, "metadata": {**merged["metadata"], "labels": labels}}


def _of_any_pod(patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a pod template that also applies to a loader."""
    metadata, spec = (patch.get(name) for name in ("metadata", "spec"))
    selected: dict[str, Any] = {}
    if isinstance(metadata, Mapping):
        selected["metadata"] = {
            name: metadata[name] for name in ("labels", "annotations") if name in metadata
        }
    if isinstance(spec, Mapping):
        selected["spec"] = {name: spec[name] for name in OF_ANY_POD if name in spec}
        engine = _named(spec.get("containers"), names.ENGINE_CONTAINER)
        container = {name: engine[name] for name in OF_ANY_CONTAINER if name in engine}
        if volumes := _others(spec.get("volumes"), "name"):
            selected["spec"]["volumes"] = volumes
            container["volumeMounts"] = _others(engine.get("volumeMounts"), "name")
        container |= _named(spec.get("initContainers"), names.LOADER_CONTAINER)
        selected["spec"]["containers"] = [{**container, "name": names.LOADER_CONTAINER}]
    return selected


def _named(containers: object, name: str) -> Mapping[str, Any]:
    candidates = containers if isinstance(containers, list) else []
    return next((item for item in candidates if isinstance(item, Mapping) and item.get("name") == name), {})


def _others(items: object, key: str) -> list[Mapping[str, Any]]:
    """Return the items whose field `key` does not name a volume of ours."""
    candidates = items if isinstance(items, list) else []
    return [item for item in candidates if isinstance(item, Mapping) and item.get(key) not in OUR_VOLUMES]


def _pod_spec(context: Context, keep: Collection[str] | None) -> dict[str, Any]:
    container = loader_container(context, "--report", TERMINATION_LOG)
    # Variables, because older images would refuse arguments. KEEP is absent where there is nothing to keep.
    variables = (
        {MAKE_ROOM: "1", **({KEEP: " ".join(sorted(keep))} if keep else {})} if keep is not None else {}
    )
    env = [*container["env"], *({"name": name, "value": value} for name, value in variables.items())]
    return {
        "serviceAccountName": context.children.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **ENDS_WHEN_TOLD,
        # The Hub's last answer decides; the Job's back-off counts pods.
        "restartPolicy": "Never",
        "securityContext": pod_security(),
        "containers": [
            {
                **container,
                "env": env,
                "resources": {**container["resources"], "limits": LIMITS},
                "terminationMessagePath": TERMINATION_LOG,
            }
        ],
        "volumes": [
            {"name": "scratch", "emptyDir": {}},
            {"name": "cache", "persistentVolumeClaim": {"claimName": context.children.model_cache}},
        ],
        **placement(context),
        "affinity": _affinity(context),
    }


def _affinity(context: Context) -> dict[str, Any]:
    """Return the affinity: prefer nodes where engines can run, and above all where they do.

    A volume of one node or zone is created where its first pod is, and one that is mounted on a node may be
    unreachable from others. Both terms are preferences: a loader that waits for room would delay engines.
    """
    spec = context.deployment.spec
    spec_affinity = spec.scheduling.affinity or {}
    affinity = {kind: dict(terms) for kind, terms in spec_affinity.items() if isinstance(terms, dict)}
    engines = {
        "weight": 100,
        "podAffinityTerm": {
            "labelSelector": {"matchLabels": names.selector(context.deployment.name, "engine")},
            "topologyKey": "kubernetes.io/hostname",
        },
    }
    _prefer(affinity, "podAffinity", engines)
    if spec.resources.gpus:
        has_gpu = {"matchExpressions": [{"key": names.LABEL_GPU_MEMORY, "operator": "Exists"}]}
        _prefer(affinity, "nodeAffinity", {"weight": 100, "preference": has_gpu})
    return affinity


def _prefer(affinity: dict[str, Any], kind: str, term: dict[str, Any]) -> None:
    name = "preferredDuringSchedulingIgnoredDuringExecution"
    terms = affinity.setdefault(kind, {})
    terms[name] = [*(terms.get(name) or []), term]
