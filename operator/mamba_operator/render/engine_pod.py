"""The pod template of an engine: the container `engine`, its mounts, the user's podTemplate on top. Pure."""

import math
from collections.abc import Mapping
from typing import Any

from mamba_api import names
from mamba_operator.objects.manifest import Manifest, digest
from mamba_operator.render.context import Context
from mamba_operator.render.engine_key import KEY_FILE, key_mount, key_volume
from mamba_operator.render.live_settings import restart_settings
from mamba_operator.render.pod import (
    DRAIN_QUIET,
    ENDS_WHEN_TOLD,
    EVERY_ADDRESS,
    container_security,
    from_pod,
    pod_security,
    prefix_sharing,
    probes,
    tracing,
)
from mamba_operator.render.strategic_merge import merge
from mamba_settings.spec_settings import engine_settings

SETTINGS_FILE = "engine.json"
SETTINGS_MOUNT = "/etc/mambaserve"
ADMIN_TOKEN_MOUNT = "/run/mambaserve/admin"  # noqa: S105 - where the token is mounted, not the token

MODELS_MOUNT = "/models"
"""Where claims are mounted: pvc://claim/path is /models/claim/path."""
CACHE_MOUNT = "/cache"
SCRATCH_MOUNT = "/tmp"  # noqa: S108 - an emptyDir of the pod
LOADER_REQUESTS = {"cpu": "100m", "memory": "512Mi"}
"""Enough for files to go through; a pod that asks for nothing is the first to be evicted."""
GRACE_MARGIN = 30
ANNOTATION_SETTINGS = f"{names.GROUP}/settings-hash"
"""On a pod: hash of the settings it was started with; a change rolls the pods."""


def engine_document(context: Context) -> dict[str, Any]:
    """The settings of an engine, as `mambaserve serve --config FILE` reads them.

    With the planner's choice in place of `Auto`, so that what joins or leaves the cluster never changes the
    strategy of a serving deployment. What differs from pod to pod is not here: it is in the environment.
    """
    spec = context.deployment.spec
    choice: dict[str, Any] = {}
    if context.loaded is not None and context.loaded.commit:
        # All engines of a revision serve the same weights, whatever becomes of the branch.
        choice["model"] = f"hf://{spec.model.location.name}@{context.loaded.commit}"
    if context.plan is not None:
        choice |= {"strategy": context.plan.strategy, "state_dtype": context.plan.state_dtype}
    settings = engine_settings(context.deployment).model_copy(
        update={
            **choice,
            "host": EVERY_ADDRESS,  # the pod's own network; the NetworkPolicy says who may come
            "port": names.HTTP_PORT,
            "admin_port": names.ADMIN_PORT,
            "drain_quiet": DRAIN_QUIET,
            "admin_token_file": f"{ADMIN_TOKEN_MOUNT}/{names.ADMIN_TOKEN_KEY}",
            **({"api_key_file": KEY_FILE} if context.key_required else {}),
        }
    )
    return settings.document()


def engine_pod_template(context: Context) -> Manifest:
    """Labels the selector needs survive whatever the user merges in. Raises InvalidPatch."""
    deployment = context.deployment
    document = engine_document(context)
    base: Manifest = {
        "metadata": {
            "labels": {**names.labels(deployment.name, "engine"), names.LABEL_ROLE: "unified"},
            "annotations": {
                **({} if context.key_id else {names.ANNOTATION_STRATEGY: document["strategy"]}),
                ANNOTATION_SETTINGS: digest(restart_settings(document) if context.key_id else document),
                **_restart(context),
                **_commit(context),
            },
        },
        "spec": _pod_spec(context),
    }
    merged = merge(base, _of_engines(context, deployment.spec.pod_template or {}))
    metadata = merged["metadata"] if isinstance(merged.get("metadata"), dict) else {}
    if commit := _commit(context):
        metadata = {**metadata, "annotations": {**(metadata.get("annotations") or {}), **commit}}
    labels = {**(metadata.get("labels") or {}), **base["metadata"]["labels"]}
    template = {**merged, "metadata": {**metadata, "labels": labels}}
    revision = digest(template, length=10)
    return {
        **template,
        "metadata": {**template["metadata"], "labels": {**labels, names.LABEL_REVISION: revision}},
    }


def _of_engines(context: Context, patch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `spec.podTemplate` without what it says of the loader where that runs in a Job of its own."""
    spec = patch.get("spec")
    if context.own_claim or not isinstance(spec, Mapping) or not isinstance(spec.get("initContainers"), list):
        return patch
    of_loader = {"name": names.LOADER_CONTAINER}.items()
    left = [
        one
        for one in spec["initContainers"]
        if not (isinstance(one, Mapping) and of_loader <= one.items() and context.deployment.spec.model.cache)
    ]
    rest = {name: value for name, value in spec.items() if name != "initContainers"}
    return {**patch, "spec": {**rest, "initContainers": left} if left else rest}


def _restart(context: Context) -> dict[str, str]:
    value = context.deployment.metadata.annotations.get(names.ANNOTATION_RESTART)
    return {names.ANNOTATION_RESTART: value} if value else {}


def _commit(context: Context) -> dict[str, str]:
    """Return the annotation by which the copy that a pod reads is kept on the volume."""
    cache = context.deployment.spec.model.cache
    if cache is None or cache.size is None or context.loaded is None or not context.loaded.commit:
        return {}
    return {names.ANNOTATION_COMMIT: context.loaded.commit}


def _pod_spec(context: Context) -> dict[str, Any]:
    deployment = context.deployment
    grace = math.ceil(deployment.spec.rollout.drain_timeout.seconds) + GRACE_MARGIN
    return {
        "serviceAccountName": context.children.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **ENDS_WHEN_TOLD,
        "terminationGracePeriodSeconds": grace,
        "securityContext": pod_security(),
        **_fills_cache(context),
        "containers": [_container(context)],
        "volumes": _volumes(context),
        **placement(context),
    }


def _fills_cache(context: Context) -> dict[str, Any]:
    """Init container of a pod whose node may not have the model: nobody else fills a claim of the user's."""
    return {"initContainers": [loader_container(context)]} if context.own_claim else {}


def loader_container(context: Context, *more: str) -> dict[str, Any]:
    """Downloads the model to the volume `cache`; `more` are further arguments."""
    spec = context.deployment.spec
    # Not an argument: images of before, which `spec.engine.image` may name, would refuse one.
    port = {"name": "MAMBASERVE_DOWNLOAD_METRICS_PORT", "value": str(names.HTTP_PORT)}
    ours = {"env": [*download_environment(context), port]}
    # Proxies and another Hub are told to engines so, too.
    theirs = {"env": [variable.manifest() for variable in spec.engine.env]}
    return {
        "name": names.LOADER_CONTAINER,
        "image": spec.engine.image or context.images.engine,
        "command": ["mambaserve"],
        "args": ["download", spec.model.uri, *more],
        "env": merge(ours, theirs, "loader")["env"],
        "resources": {"requests": LOADER_REQUESTS},
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "scratch", "mountPath": SCRATCH_MOUNT},
            {"name": "cache", "mountPath": CACHE_MOUNT},
        ],
    }


def placement(context: Context) -> dict[str, Any]:
    """Fields of a pod that say on which nodes it may run, and with which image pull secrets."""
    scheduling = context.deployment.spec.scheduling
    pod: dict[str, Any] = {}
    if references := context.images.references():
        pod["imagePullSecrets"] = references
    if scheduling.node_selector:
        pod["nodeSelector"] = dict(scheduling.node_selector)
    if tolerations := _tolerations(context):
        pod["tolerations"] = tolerations
    if scheduling.affinity:
        pod["affinity"] = scheduling.affinity
    if scheduling.priority_class_name:
        pod["priorityClassName"] = scheduling.priority_class_name
    if scheduling.runtime_class_name:
        pod["runtimeClassName"] = scheduling.runtime_class_name
    return pod


def _tolerations(context: Context) -> list[dict[str, Any]]:
    """What the spec says, and the taints that keep other pods off GPUs: clouds name them after the resource,
    those of nodes with slices (MIG) after the whole GPU."""
    spec = context.deployment.spec
    theirs = list(spec.scheduling.tolerations)
    if spec.resources.gpus == 0:
        return theirs
    resource = spec.resources.gpu_resource
    whole = f"{resource.partition('/')[0]}/gpu"
    taints = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in sorted({whole, resource})]
    return theirs + [one for one in taints if one not in theirs]


def _container(context: Context) -> dict[str, Any]:
    spec = context.deployment.spec
    ours = {"env": _environment(context)}
    theirs = {"env": [variable.manifest() for variable in spec.engine.env]}
    return {
        "name": names.ENGINE_CONTAINER,
        "image": spec.engine.image or context.images.engine,
        "command": ["mambaserve"],
        "args": ["serve", "--config", f"{SETTINGS_MOUNT}/{SETTINGS_FILE}", *spec.engine.extra_args],
        "env": merge(ours, theirs, "engine")["env"],
        "ports": [
            {"name": names.HTTP_PORT_NAME, "containerPort": names.HTTP_PORT, "protocol": "TCP"},
            {"name": names.ADMIN_PORT_NAME, "containerPort": names.ADMIN_PORT, "protocol": "TCP"},
        ],
        "resources": _resources(context),
        "securityContext": container_security(),
        "volumeMounts": _mounts(context),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **probes(spec.rollout.progress_deadline.seconds),
    }


def _environment(context: Context) -> list[dict[str, Any]]:
    variables: list[dict[str, Any]] = [from_pod(f"{names.ENV_PREFIX}ADMIN_HOST", "status.podIP")]
    if context.deployment.spec.model.cache is None:
        variables += download_environment(context)
    else:
        # All is there, and what is not is the loader's to fetch: engines do without the Hub and its token.
        variables += [*_places(), {"name": "HF_HUB_OFFLINE", "value": "1"}]
    if sharing := prefix_sharing(context.deployment):
        # Discovery has the pod's name for it, so what it publishes is found under that.
        variables += [from_pod("POD_NAME", "metadata.name"), *sharing]
    return variables + tracing(context.deployment)


def _places() -> list[dict[str, Any]]:
    return [{"name": "HOME", "value": SCRATCH_MOUNT}, {"name": "HF_HOME", "value": CACHE_MOUNT}]


def download_environment(context: Context) -> list[dict[str, Any]]:
    """Environment of a container that downloads the model."""
    spec = context.deployment.spec
    variables = _places()
    if spec.model.token_secret_ref is not None:
        reference = spec.model.token_secret_ref
        variables.append(
            {
                "name": "HF_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": reference.name, "key": reference.key}},
            }
        )
    return variables


def _resources(context: Context) -> dict[str, Any]:
    resources = context.deployment.spec.resources
    requests: dict[str, str] = {}
    if size := _downloaded(context):
        # Weights that no volume keeps fill the node's disk: a node without the room would evict the pod.
        requests["ephemeral-storage"] = f"{math.ceil(size / 2**30) + 1}Gi"
    limits: dict[str, str] = {}
    if resources.cpu is not None:
        requests["cpu"] = str(resources.cpu)
    if resources.memory is not None:
        requests["memory"] = limits["memory"] = str(resources.memory)
    if resources.gpus > 0:
        # Extended resources cannot be overcommitted: request and limit are the same.
        requests[resources.gpu_resource] = limits[resources.gpu_resource] = str(resources.gpus)
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def _downloaded(context: Context) -> int:
    """Bytes of weights that each pod downloads to its own scratch space, as far as the plan knows them."""
    model = context.deployment.spec.model
    if model.location.scheme != "hf" or model.cache is not None or context.plan is None:
        return 0
    return next((line.bytes for line in context.plan.ledger if line.item == "weights"), 0)


def _volumes(context: Context) -> list[dict[str, Any]]:
    spec, children = context.deployment.spec, context.children
    volumes: list[dict[str, Any]] = [
        {"name": "scratch", "emptyDir": {}},
        {"name": "settings", "configMap": {"name": children.engine}},
        {"name": "admin", "secret": {"secretName": context.admin_secret, "defaultMode": 0o440}},
    ]
    if context.key_required:
        volumes.append(key_volume(context))
    location = spec.model.location
    if location.scheme == "pvc":
        volumes.append(
            {"name": "model", "persistentVolumeClaim": {"claimName": location.name, "readOnly": True}}
        )
    if location.scheme == "hf":
        if spec.model.cache is not None:
            claim = context.own_claim or children.model_cache
            volumes.append({"name": "cache", "persistentVolumeClaim": {"claimName": claim}})
        else:
            volumes.append({"name": "cache", "emptyDir": {}})
    return volumes


def _mounts(context: Context) -> list[dict[str, Any]]:
    spec = context.deployment.spec
    mounts: list[dict[str, Any]] = [
        {"name": "scratch", "mountPath": SCRATCH_MOUNT},
        {"name": "settings", "mountPath": SETTINGS_MOUNT, "readOnly": True},
        {"name": "admin", "mountPath": ADMIN_TOKEN_MOUNT, "readOnly": True},
    ]
    if context.key_required:
        mounts.append(key_mount())
    location = spec.model.location
    if location.scheme == "pvc":
        mounts.append({"name": "model", "mountPath": f"{MODELS_MOUNT}/{location.name}", "readOnly": True})
    if location.scheme == "hf":
        # What the loader has checked, no engine changes for the others of its node.
        read_only = {"readOnly": True} if context.own_claim else {}
        mounts.append({"name": "cache", "mountPath": CACHE_MOUNT, **read_only})
    return mounts
