"""The loader: a Job that downloads the model to `spec.model.cache` before engines start. Pure.

Engines then read it from there by its commit and ask the Hub nothing. Whether a loader is due is decided by
`model_load`.
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
"""Key inside the ConfigMap X-model: hash of what was downloaded."""
REPORT_KEY = "report.json"
TERMINATION_LOG = "/dev/termination-log"
LIMITS = {"cpu": "4", "memory": "4Gi"}
"""For namespaces whose quota demands limits of every container."""
OF_ANY_POD = (
    "imagePullSecrets", "securityContext", "dnsPolicy", "dnsConfig", "hostAliases", "nodeSelector",
    "tolerations", "priorityClassName", "runtimeClassName", "schedulerName", "serviceAccountName",
)  # fmt: skip
"""Fields of `spec.podTemplate` that say how pods get on in this cluster, and nothing of what engines do."""
OUR_VOLUMES = frozenset({"scratch", "settings", "admin", "cache", "model"})
"""Volumes of engines, whatever a template makes of them; all others, a CA for one, loaders have too."""
OF_ANY_CONTAINER = ("env", "envFrom", "imagePullPolicy", "securityContext")
"""The same of its container `engine`."""
MAKE_ROOM, KEEP = "MAMBASERVE_DOWNLOAD_MAKE_ROOM", "MAMBASERVE_DOWNLOAD_KEEP"
ATTEMPTS = 7
"""With the Job controller's back-off (10 s, then twice as long each time) about ten minutes of a Hub that is
away. Each goes on where the one before stopped."""


def loader_job(context: Context, load: str, keep: Collection[str] | None = None) -> Manifest:
    """Render the Job X-load-HASH.

    Args:
        context: what children depend on.
        load: hash of what is downloaded and where to.
        keep: commits that stay when copies on the volume have to make room; None: every copy stays.
    """
    name = context.children.loader(load)
    return {
        **child(context, JOB, name, "loader"),
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": ATTEMPTS - 1,
            # Two that write to one volume at once would hinder each other.
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
    """The ConfigMap X-model: the report outlives the loader's pod."""
    return {
        **child(context, CONFIG_MAP, context.children.model_report, "loader"),
        "data": {LOAD_KEY: load, REPORT_KEY: report.text()},
    }


def kept_by(job: Manifest) -> frozenset[str] | None:
    """Read from a Job which commits it keeps; None: it removes no copy."""
    containers = ((job.get("spec") or {}).get("template") or {}).get("spec", {}).get("containers") or ()
    env = {
        one.get("name"): one.get("value")
        for one in _named(list(containers), names.LOADER_CONTAINER).get("env") or ()
    }
    return frozenset(str(env.get(KEEP) or "").split()) if env.get(MAKE_ROOM) else None


def _template(context: Context, keep: Collection[str] | None) -> dict[str, Any]:
    """Render the loader's pod, with what of `spec.podTemplate` is not about engines. Raises InvalidPatch."""
    base = {
        "metadata": {"labels": names.labels(context.deployment.name, "loader")},
        "spec": _pod_spec(context, keep),
    }
    merged = merge(base, _of_any_pod(context.deployment.spec.pod_template or {}))
    labels = {**(merged["metadata"].get("labels") or {}), **base["metadata"]["labels"]}
    return {**merged, "metadata": {**merged["metadata"], "labels": labels}}


def _of_any_pod(patch: Mapping[str, Any]) -> dict[str, Any]:
    """Select the part of a pod template that goes for a loader, too."""
    metadata, spec = (patch.get(name) for name in ("metadata", "spec"))
    found: dict[str, Any] = {}
    if isinstance(metadata, Mapping):
        found["metadata"] = {name: metadata[name] for name in ("labels", "annotations") if name in metadata}
    if isinstance(spec, Mapping):
        found["spec"] = {name: spec[name] for name in OF_ANY_POD if name in spec}
        engine = _named(spec.get("containers"), names.ENGINE_CONTAINER)
        container = {name: engine[name] for name in OF_ANY_CONTAINER if name in engine}
        if volumes := _others(spec.get("volumes"), "name"):
            found["spec"]["volumes"] = volumes
            container["volumeMounts"] = _others(engine.get("volumeMounts"), "name")
        container |= _named(spec.get("initContainers"), names.LOADER_CONTAINER)
        found["spec"]["containers"] = [{**container, "name": names.LOADER_CONTAINER}]
    return found


def _named(containers: object, name: str) -> Mapping[str, Any]:
    those = containers if isinstance(containers, list) else []
    return next((one for one in those if isinstance(one, Mapping) and one.get("name") == name), {})


def _others(items: object, key: str) -> list[Mapping[str, Any]]:
    """Select the items that are about no volume of ours."""
    those = items if isinstance(items, list) else []
    return [one for one in those if isinstance(one, Mapping) and one.get(key) not in OUR_VOLUMES]


def _pod_spec(context: Context, keep: Collection[str] | None) -> dict[str, Any]:
    container = loader_container(context, "--report", TERMINATION_LOG)
    # No arguments, for images of before; and one variable less where there is nothing to keep.
    told = {MAKE_ROOM: "1", **({KEEP: " ".join(sorted(keep))} if keep else {})} if keep is not None else {}
    env = [*container["env"], *({"name": name, "value": value} for name, value in told.items())]
    return {
        "serviceAccountName": context.children.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **ENDS_WHEN_TOLD,
        # What the Hub said last decides; the Job's back-off counts pods.
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
    """Where engines can run, and best where they do: a volume of one node or zone is made where its first pod
    is, and one that is mounted on a node may be out of reach from any other. Both are wishes: a loader that
    waits for room helps nobody."""
    spec = context.deployment.spec
    given = spec.scheduling.affinity or {}
    affinity = {kind: dict(terms) for kind, terms in given.items() if isinstance(terms, dict)}
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
