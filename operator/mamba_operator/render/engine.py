"""The engines of a deployment: settings, Deployment, Service, disruption budget, model cache. Pure.

The settings of engines are one document, which a ConfigMap carries and every pod mounts. Engines read it when
they start. The pod template therefore has a hash of the document, so that a change rolls the pods; settings
that running engines apply (`live_settings`) are not part of the hash.
"""

import json
from collections.abc import Mapping
from typing import Any

from mamba_api import names
from mamba_api.model_uri import DOWNLOADED
from mamba_operator.objects.kinds import CLAIM, CONFIG_MAP, DEPLOYMENT, DISRUPTION_BUDGET, SERVICE
from mamba_operator.objects.manifest import Manifest
from mamba_operator.render.context import Context, EngineRevision, child
from mamba_operator.render.engine_pod import SETTINGS_FILE, engine_document, engine_pod_template
from mamba_operator.render.gateway_pod import ADAPTER_NAMES_FILE
from mamba_settings.adapter_settings import paths_of
from mamba_settings.live_settings import ADAPTERS

RECORD_KEY = "revision.json"
"""Key of the ConfigMap X-last-ready under which it holds a revision, as JSON."""


def engine_revision(context: Context) -> EngineRevision:
    """Return the revision with which engines start.

    Raises InvalidPatch when `spec.podTemplate` cannot be merged.
    """
    return context.revision or EngineRevision(engine_pod_template(context), engine_document(context))


def last_ready(context: Context) -> Manifest:
    """Return the ConfigMap X-last-ready: the revision to which engines return when a later one fails.

    The ConfigMap holds the revision whole and as it was rendered, because a newer operator might render other
    pods from the same spec.
    """
    revision = engine_revision(context)
    notes = {names.ANNOTATION_PLANNED_FOR: context.planned_for} if context.planned_for else None
    return {
        **child(context, CONFIG_MAP, context.children.last_ready, "engine", notes),
        "data": {RECORD_KEY: json.dumps({"template": revision.template, "document": revision.document})},
    }


def revision_in(config: Manifest | None) -> EngineRevision | None:
    """Return the revision in the ConfigMap X-last-ready; None if there is none, or it cannot be read."""
    try:
        kept = json.loads(((config or {}).get("data") or {})[RECORD_KEY])
        revision = EngineRevision(kept["template"], kept["document"])
        usable = isinstance(revision.document, dict) and isinstance(revision.template["spec"], dict)
        return revision if usable and revision.label else None
    except (KeyError, TypeError, ValueError):
        return None


def settings_in(config: Manifest | None) -> Mapping[str, Any]:
    """Return the settings in the ConfigMap X-engine; empty if there are none, or they cannot be read."""
    try:
        settings = json.loads(((config or {}).get("data") or {})[SETTINGS_FILE])
    except (KeyError, TypeError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def adapters_in(settings: Mapping[str, Any]) -> list[str]:
    """Return the adapters in a settings document, as NAME=URI."""
    adapters = settings.get(ADAPTERS)
    return [*map(str, adapters)] if isinstance(adapters, list | tuple) else []


def engine_config(context: Context) -> Manifest:
    """Return the ConfigMap X-engine with the settings document."""
    candidates = {names.ANNOTATION_TUNED: context.tuned, names.ANNOTATION_ADAPTERS: context.adapters}
    notes = {name: text for name, text in candidates.items() if text}
    settings = engine_revision(context).document
    return {
        **child(context, CONFIG_MAP, context.children.engine, "engine", notes),
        "data": {SETTINGS_FILE: json.dumps(settings, indent=2) + "\n", **_adapter_names(settings)},
    }


def _adapter_names(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the file with the names of the adapters, which gateways mount; empty without adapters."""
    adapters = paths_of(adapters_in(settings))
    return {ADAPTER_NAMES_FILE: "".join(f"{name}\n" for name in adapters)} if adapters else {}


def engine_deployment(context: Context) -> Manifest:
    """Return the Deployment. Raises InvalidPatch when `spec.podTemplate` cannot be merged."""
    deployment = context.deployment
    rollout = deployment.spec.rollout
    deadline = max(int(rollout.progress_deadline.seconds), 1)
    candidates = {
        names.ANNOTATION_PLANNED_FOR: context.planned_for,
        names.ANNOTATION_CHOSEN_FOR: context.chosen_for,
        names.ANNOTATION_FAILED_REVISION: context.failed,
        names.ANNOTATION_RETRY: context.retry,
    }
    notes = {name: text for name, text in candidates.items() if text}
    return {
        **child(context, DEPLOYMENT, context.children.engine, "engine", notes),
        "spec": {
            "replicas": context.replicas,
            "selector": {"matchLabels": names.engine_selector(deployment.name, context.role)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxSurge": 0 if context.in_place else rollout.max_surge,
                    "maxUnavailable": max(rollout.unavailable, context.missing),
                },
            },
            # The API server refuses a deadline up to minReadySeconds; both are whole seconds.
            "minReadySeconds": min(int(rollout.min_ready_time.seconds), deadline - 1),
            "progressDeadlineSeconds": deadline,
            "revisionHistoryLimit": 3,
            # Always written: a Deployment that somebody paused would accept no further change.
            "paused": rollout.pause,
            "template": engine_revision(context).template,
        },
    }


def engine_service(context: Context) -> Manifest:
    """Return the headless Service of all engines, whatever their role.

    It lists ready pods only; a draining pod fails /readyz and leaves it.
    """
    deployment = context.deployment
    service = child(context, SERVICE, context.children.engines, "engine")
    if (candidate := context.candidate) is not None:
        # Kubernetes copies labels of a Service to its EndpointSlices, where gateways read these.
        labels = service["metadata"]["labels"]
        labels[names.LABEL_CANDIDATE_WEIGHT] = str(candidate.weight)
        if candidate.shadow_percent:
            labels[names.LABEL_SHADOW_SHARE] = str(candidate.shadow_percent)
            labels[names.LABEL_SHADOW_COPIES] = str(candidate.shadow_copies)
    return {
        **service,
        "spec": {
            "clusterIP": "None",
            "type": "ClusterIP",
            "selector": names.selector(deployment.name, "engine"),
            "ports": [
                {
                    "name": names.HTTP_PORT_NAME,
                    "port": names.HTTP_PORT,
                    "targetPort": names.HTTP_PORT_NAME,
                    "protocol": "TCP",
                }
            ],
        },
    }


def disruption_budget(context: Context) -> Manifest | None:
    """Return the disruption budget; None for a single engine, which a budget could not protect.

    There is one for the engines of all roles: Kubernetes evicts no pod that two budgets select.
    It sets maxUnavailable: minAvailable would block the drain of a node that has the last engine.
    """
    if context.replicas < 2:
        return None
    return {
        **child(context, DISRUPTION_BUDGET, context.children.engines, "engine"),
        "spec": {
            "maxUnavailable": 1,
            # A pod that is not ready serves nobody, and would block the drain of its node for ever.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector(context.deployment.name, "engine")},
        },
    }


def model_cache(context: Context) -> Manifest | None:
    """Return the claim of the model cache; None without a cache volume or without a download."""
    model = context.deployment.spec.model
    if model.cache is None or model.cache.size is None or model.location.scheme not in DOWNLOADED:
        return None
    spec: dict[str, Any] = {
        "accessModes": [model.cache.access_mode],
        "resources": {"requests": {"storage": str(model.cache.size)}},
    }
    if model.cache.storage_class_name:
        spec["storageClassName"] = model.cache.storage_class_name
    return {**child(context, CLAIM, context.children.model_cache, "engine"), "spec": spec}
