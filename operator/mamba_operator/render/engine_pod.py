"""The pod template of an engine: the container `engine`, its mounts, the user's podTemplate on top. Pure."""

import math
from typing import Any

from mamba_api import names
from mamba_operator.manifest import Manifest, digest
from mamba_operator.render.context import Context
from mamba_operator.render.engine_arguments import ADMIN_TOKEN_MOUNT, engine_arguments
from mamba_operator.render.engine_config import engine_settings
from mamba_operator.render.number import number
from mamba_operator.render.pod_security import container_security, pod_security
from mamba_operator.render.probes import probes
from mamba_operator.strategic_merge import merge

MODELS_MOUNT = "/models"
"""Where claims are mounted: pvc://claim/path is /models/claim/path."""
CACHE_MOUNT = "/cache"
SCRATCH_MOUNT = "/tmp"  # noqa: S108 - an emptyDir of the pod
ROUTER_PAUSE = 5
"""Seconds between the end of readiness and the signal, so that routers have stopped choosing the pod."""
GRACE_MARGIN = 30
ANNOTATION_SETTINGS = f"{names.GROUP}/settings-hash"
"""On a pod: hash of the ConfigMap it was started with; a change rolls the pods."""


def engine_pod_template(context: Context) -> Manifest:
    """Labels the selector needs survive whatever the user merges in. Raises InvalidPatch."""
    deployment = context.deployment
    settings = engine_settings(context)
    base: Manifest = {
        "metadata": {
            "labels": {**names.labels(deployment.name, "engine"), names.LABEL_ROLE: "unified"},
            "annotations": {
                names.ANNOTATION_STRATEGY: settings[f"{names.ENV_PREFIX}STRATEGY"],
                ANNOTATION_SETTINGS: digest(settings),
                **_restart(context),
            },
        },
        "spec": _pod_spec(context),
    }
    merged = merge(base, deployment.spec.pod_template or {})
    metadata = merged["metadata"] if isinstance(merged.get("metadata"), dict) else {}
    labels = {**(metadata.get("labels") or {}), **base["metadata"]["labels"]}
    template = {**merged, "metadata": {**metadata, "labels": labels}}
    revision = digest(template, length=10)
    return {
        **template,
        "metadata": {**template["metadata"], "labels": {**labels, names.LABEL_REVISION: revision}},
    }


def _restart(context: Context) -> dict[str, str]:
    value = context.deployment.metadata.annotations.get(names.ANNOTATION_RESTART)
    return {names.ANNOTATION_RESTART: value} if value else {}


def _pod_spec(context: Context) -> dict[str, Any]:
    deployment = context.deployment
    spec, scheduling = deployment.spec, deployment.spec.scheduling
    grace = math.ceil(spec.rollout.drain_timeout.seconds) + ROUTER_PAUSE + GRACE_MARGIN
    pod: dict[str, Any] = {
        "serviceAccountName": context.children.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace,
        "securityContext": pod_security(),
        "containers": [_container(context)],
        "volumes": _volumes(context),
    }
    if scheduling.node_selector:
        pod["nodeSelector"] = dict(scheduling.node_selector)
    if scheduling.tolerations:
        pod["tolerations"] = list(scheduling.tolerations)
    if scheduling.affinity:
        pod["affinity"] = scheduling.affinity
    if scheduling.priority_class_name:
        pod["priorityClassName"] = scheduling.priority_class_name
    if scheduling.runtime_class_name:
        pod["runtimeClassName"] = scheduling.runtime_class_name
    return pod


def _container(context: Context) -> dict[str, Any]:
    spec = context.deployment.spec
    ours = {"env": _environment(context)}
    theirs = {"env": [variable.manifest() for variable in spec.engine.env]}
    return {
        "name": names.ENGINE_CONTAINER,
        "image": spec.engine.image,
        "command": ["mambaserve"],
        "args": engine_arguments(context),
        "envFrom": [{"configMapRef": {"name": context.children.engine}}],
        "env": merge(ours, theirs, "engine")["env"],
        "ports": [
            {"name": names.HTTP_PORT_NAME, "containerPort": names.HTTP_PORT, "protocol": "TCP"},
            {"name": names.ADMIN_PORT_NAME, "containerPort": names.ADMIN_PORT, "protocol": "TCP"},
        ],
        "resources": _resources(context),
        "securityContext": container_security(),
        "volumeMounts": _mounts(context),
        "lifecycle": {"preStop": {"sleep": {"seconds": ROUTER_PAUSE}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **probes(spec.rollout.progress_deadline.seconds),
    }


def _environment(context: Context) -> list[dict[str, Any]]:
    spec = context.deployment.spec
    variables: list[dict[str, Any]] = [
        _field("POD_NAME", "metadata.name"),
        _field("POD_NAMESPACE", "metadata.namespace"),
        _field("POD_IP", "status.podIP"),
        {"name": "HOME", "value": SCRATCH_MOUNT},
        {"name": "HF_HOME", "value": CACHE_MOUNT},
        {
            "name": f"{names.ENV_PREFIX}DRAIN_TIMEOUT",
            "value": number(spec.rollout.drain_timeout.seconds),
        },
    ]
    if spec.model.token_secret_ref is not None:
        reference = spec.model.token_secret_ref
        variables.append(
            {
                "name": "HF_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": reference.name, "key": reference.key}},
            }
        )
    if spec.telemetry.otlp_endpoint is not None:
        variables += [
            {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": spec.telemetry.otlp_endpoint},
            # By trace id and not by the parent: gateways give every request a trace that says "sampled".
            {"name": "OTEL_TRACES_SAMPLER", "value": "traceidratio"},
            {"name": "OTEL_TRACES_SAMPLER_ARG", "value": number(spec.telemetry.sampling)},
        ]
    return variables


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _resources(context: Context) -> dict[str, Any]:
    resources = context.deployment.spec.resources
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if resources.cpu is not None:
        requests["cpu"] = str(resources.cpu)
    if resources.memory is not None:
        requests["memory"] = limits["memory"] = str(resources.memory)
    if resources.gpus > 0:
        # Extended resources cannot be overcommitted: request and limit are the same.
        requests[resources.gpu_resource] = limits[resources.gpu_resource] = str(resources.gpus)
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def _volumes(context: Context) -> list[dict[str, Any]]:
    spec, children = context.deployment.spec, context.children
    volumes: list[dict[str, Any]] = [
        {"name": "scratch", "emptyDir": {}},
        {"name": "admin", "secret": {"secretName": children.admin_secret, "defaultMode": 0o440}},
    ]
    location = spec.model.location
    if location.scheme == "pvc":
        volumes.append(
            {"name": "model", "persistentVolumeClaim": {"claimName": location.name, "readOnly": True}}
        )
    if location.scheme == "hf":
        if spec.model.cache is not None:
            volumes.append({"name": "cache", "persistentVolumeClaim": {"claimName": children.model_cache}})
        else:
            volumes.append({"name": "cache", "emptyDir": {}})
    return volumes


def _mounts(context: Context) -> list[dict[str, Any]]:
    spec = context.deployment.spec
    mounts: list[dict[str, Any]] = [
        {"name": "scratch", "mountPath": SCRATCH_MOUNT},
        {"name": "admin", "mountPath": ADMIN_TOKEN_MOUNT, "readOnly": True},
    ]
    location = spec.model.location
    if location.scheme == "pvc":
        mounts.append({"name": "model", "mountPath": f"{MODELS_MOUNT}/{location.name}", "readOnly": True})
    if location.scheme == "hf":
        mounts.append({"name": "cache", "mountPath": CACHE_MOUNT})
    return mounts
