"""The engines of a deployment: their settings, how many run of which pod, how they are reached. Pure.

Their settings are one document, which the ConfigMap carries and every pod mounts. Engines read it when they
start, so a hash of it stands in the pod template and a change rolls the pods; what running engines take over
(`live_settings`) is left out of it.
"""

import json
from typing import Any

from mamba_api import names
from mamba_operator.objects.kinds import CLAIM, CONFIG_MAP, DEPLOYMENT, DISRUPTION_BUDGET, SERVICE
from mamba_operator.objects.manifest import Manifest
from mamba_operator.render.context import Context, child
from mamba_operator.render.engine_pod import SETTINGS_FILE, engine_document, engine_pod_template
from mamba_operator.render.revision import EngineRevision


def engine_revision(context: Context) -> EngineRevision:
    """What engines are started with. Raises InvalidPatch when `spec.podTemplate` cannot be merged."""
    return context.revision or EngineRevision(engine_pod_template(context), engine_document(context))


def last_ready(context: Context) -> Manifest:
    """The ConfigMap X-last-ready, to go back to should a later revision fail."""
    notes = {names.ANNOTATION_PLANNED_FOR: context.planned_for} if context.planned_for else None
    return {
        **child(context, CONFIG_MAP, context.children.last_ready, "engine", notes),
        "data": engine_revision(context).record(),
    }


def engine_config(context: Context) -> Manifest:
    """The ConfigMap X-engine with the settings document."""
    return {
        **child(
            context,
            CONFIG_MAP,
            context.children.engine,
            "engine",
            {names.ANNOTATION_TUNED: context.tuned} if context.tuned else None,
        ),
        "data": {SETTINGS_FILE: json.dumps(engine_revision(context).document, indent=2) + "\n"},
    }


def engine_deployment(context: Context) -> Manifest:
    """Raises InvalidPatch when `spec.podTemplate` cannot be merged."""
    deployment = context.deployment
    rollout = deployment.spec.rollout
    deadline = max(int(rollout.progress_deadline.seconds), 1)
    notes = {
        names.ANNOTATION_PLANNED_FOR: context.planned_for,
        names.ANNOTATION_CHOSEN_FOR: context.chosen_for,
        names.ANNOTATION_FAILED_REVISION: context.failed,
        names.ANNOTATION_RETRY: context.retry,
    }
    given = {name: text for name, text in notes.items() if text}
    return {
        **child(context, DEPLOYMENT, context.children.engine, "engine", given),
        "spec": {
            "replicas": context.replicas,
            "selector": {"matchLabels": names.selector(deployment.name, "engine")},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxSurge": 0 if context.in_place else rollout.max_surge,
                    "maxUnavailable": max(rollout.unavailable, context.missing),
                },
            },
            # The API server refuses a deadline that is not longer; both are whole seconds here.
            "minReadySeconds": min(int(rollout.min_ready_time.seconds), deadline - 1),
            "progressDeadlineSeconds": deadline,
            "revisionHistoryLimit": 3,
            # Said where it is false, too: a Deployment that somebody paused would take no change any more.
            "paused": rollout.pause,
            "template": engine_revision(context).template,
        },
    }


def engine_service(context: Context) -> Manifest:
    """Only ready pods are published as ready; a draining one fails /readyz and leaves the list."""
    deployment = context.deployment
    return {
        **child(context, SERVICE, context.children.engine, "engine"),
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
    """maxUnavailable, not minAvailable: the latter would block the drain of a node for the last engine. None
    for a single engine, of which it would keep nothing back."""
    if context.replicas < 2:
        return None
    return {
        **child(context, DISRUPTION_BUDGET, context.children.engine, "engine"),
        "spec": {
            "maxUnavailable": 1,
            # A pod that is not ready protects nobody, and would hold up the drain of its node for ever.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector(context.deployment.name, "engine")},
        },
    }


def model_cache(context: Context) -> Manifest | None:
    """None when no volume is asked for, or the weights are not downloaded."""
    model = context.deployment.spec.model
    if model.cache is None or model.cache.size is None or model.location.scheme != "hf":
        return None
    spec: dict[str, Any] = {
        "accessModes": [model.cache.access_mode],
        "resources": {"requests": {"storage": str(model.cache.size)}},
    }
    if model.cache.storage_class_name:
        spec["storageClassName"] = model.cache.storage_class_name
    return {**child(context, CLAIM, context.children.model_cache, "engine"), "spec": spec}
