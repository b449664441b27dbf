"""The pod template of an engine: the container `engine`, its mounts, the user's podTemplate on top. Pure."""

import math
from collections.abc import Mapping
from typing import Any

from mamba_api import names
from mamba_api.model_uri import DOWNLOADED
from mamba_api.v1alpha1 import DiskCache, Spec
from mamba_api.v1alpha1.engine import ImageVolume
from mamba_operator.objects.manifest import Manifest, digest
from mamba_operator.render.access import KEY_FILE, key_mount, key_volume
from mamba_operator.render.context import Context
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
from mamba_planner.memory import tier_memory
from mamba_settings.adapter_settings import adapter_text
from mamba_settings.byte_size import exact_size
from mamba_settings.spec_settings import disk_budget, engine_settings

SETTINGS_FILE = "engine.json"
SETTINGS_MOUNT = "/etc/mambaserve"
SETTINGS_VOLUME = "settings"
ADMIN_TOKEN_MOUNT = "/run/mambaserve/admin"  # noqa: S105 - where the token is mounted, not the token

MODELS_MOUNT = "/models"
"""Folder in which claims are mounted: pvc://claim/path is /models/claim/path."""
MODEL_VOLUME = "model"
"""Volume from which the model is read, where it is mounted."""
IMAGE_MOUNT = "/model-image"
"""Folder in which the image of a model is mounted."""
CACHE_MOUNT = "/cache"
SCRATCH_MOUNT = "/tmp"  # noqa: S108 - an emptyDir of the pod
DISK_VOLUME = "states"
DISK_MOUNT = "/states"
"""Folder of the disk cache."""
TRANSFER = {
    "name": names.TRANSFER_PORT_NAME, "containerPort": names.TRANSFER_PORT, "protocol": "TCP"
}  # fmt: skip
LOADER_REQUESTS = {"cpu": "100m", "memory": "512Mi"}
"""Requests of the loader, enough to pass files through. A pod without requests is evicted first."""
CREDENTIALS = {
    "s3": (
        ("AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID", True),
        ("AWS_SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", True),
        ("AWS_SESSION_TOKEN", "AWS_SESSION_TOKEN", False),
        ("AWS_REGION", "AWS_REGION", False),
        ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL", False),
    ),
    "gs": (("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT_KEY", True),),
    "oci": (("DOCKER_AUTH_CONFIG", ".dockerconfigjson", True),),
    "http": (("MAMBASERVE_MODEL_TOKEN", "MAMBASERVE_MODEL_TOKEN", True),),
}
"""Variables of the container that downloads the model, by kind of source: name, key of the Secret, and
whether the Secret must have the key."""
GRACE_MARGIN_SECONDS = 30
"""Seconds of the grace period beyond `drainTimeout`."""
ANNOTATION_SETTINGS = f"{names.GROUP}/settings-hash"
"""Annotation of a pod: hash of the settings with which it started; a change rolls the pods."""


def engine_document(context: Context) -> dict[str, Any]:
    """Return the settings of an engine, as `mambaserve serve --config FILE` reads them.

    The planner's choice replaces `Auto`, so that nodes that join or leave the cluster never change the
    strategy of a serving deployment. Settings that differ from pod to pod are in the environment instead.
    """
    spec = context.deployment.spec
    choice: dict[str, Any] = {}
    if context.loaded is not None and context.loaded.commit:
        # All engines of a revision serve the same weights, even if the branch moves.
        choice["model"] = spec.model.location.pinned(context.loaded.commit)
        if spec.model.adapters:
            choice["lora"] = _pinned_adapters(context, context.loaded.adapters)
    if (image := spec.model.image_volume) is not None:
        choice["model"] = f"file://{IMAGE_MOUNT}{image.path}".rstrip("/")
    if context.plan is not None:
        choice |= {"strategy": context.plan.strategy, "state_dtype": context.plan.state_dtype}
    elif context.role != "unified" and spec.state_cache.state_dtype == "Auto":
        # Each engine plans for itself, and engines hand over states only in the type in which both hold them.
        choice["state_dtype"] = "float32"
    if (disk := spec.state_cache.disk) is not None:
        choice |= {"disk_cache": DISK_MOUNT, "disk_cache_bytes": disk_budget(disk)}
        if disk.claim_name is not None:
            choice["disk_cache_shared"] = True
    if context.moves_states:
        # A new engine first fetches the states that are requested most at the engines that serve.
        peers = f"{context.children.engines}.{context.deployment.namespace}.svc"
        choice |= {
            "transfer_host": EVERY_ADDRESS,
            "transfer_port": names.TRANSFER_PORT,
            "warm_peers": f"{peers}:{names.TRANSFER_PORT}",
        }
    settings = engine_settings(context.deployment, context.role, transport=context.transport).model_copy(
        update={
            **choice,
            "host": EVERY_ADDRESS,  # the pod's own network; the NetworkPolicy restricts access
            "port": names.HTTP_PORT,
            "admin_port": names.ADMIN_PORT,
            "drain_quiet": DRAIN_QUIET,
            "admin_token_file": f"{ADMIN_TOKEN_MOUNT}/{names.ADMIN_TOKEN_KEY}",
            **({"api_key_file": KEY_FILE} if context.key_required else {}),
        }
    )
    return settings.document()


def _pinned_adapters(context: Context, commits: tuple[str, ...]) -> tuple[str, ...]:
    """Return the adapters; a downloaded one is pinned to the commit of its copy."""
    model = context.deployment.spec.model
    # An image of an older version downloads no adapters: its engines then say what is missing.
    pins = {
        adapter.name: adapter.location.pinned(commit)
        for adapter, commit in zip(model.downloaded_adapters, commits, strict=False)
    }
    return tuple(
        adapter_text(adapter.name, pins.get(adapter.name, adapter.uri)) for adapter in model.adapters
    )


def engine_pod_template(context: Context) -> Manifest:
    """Return the pod template. The user's patch cannot remove labels of the selector. Raises InvalidPatch."""
    deployment = context.deployment
    document = engine_document(context)
    base: Manifest = {
        "metadata": {
            "labels": {**names.labels(deployment.name, "engine"), names.LABEL_ROLE: context.role},
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
    """Return `spec.podTemplate`, without the loader's container if the loader runs in a Job of its own."""
    spec = patch.get("spec")
    if context.own_claim or not isinstance(spec, Mapping) or not isinstance(spec.get("initContainers"), list):
        return patch
    loader_name = {"name": names.LOADER_CONTAINER}.items()
    others = [
        container
        for container in spec["initContainers"]
        if not (
            isinstance(container, Mapping)
            and loader_name <= container.items()
            and context.deployment.spec.model.cache
        )
    ]
    rest = {name: value for name, value in spec.items() if name != "initContainers"}
    return {**patch, "spec": {**rest, "initContainers": others} if others else rest}


def _restart(context: Context) -> dict[str, str]:
    value = context.deployment.metadata.annotations.get(names.ANNOTATION_RESTART)
    return {names.ANNOTATION_RESTART: value} if value else {}


def _commit(context: Context) -> dict[str, str]:
    """Return the annotation that names the commit of a pod's model, so that loaders keep the model's copy.

    Copies of adapters, which change while engines serve, are kept by the settings in the ConfigMap.
    """
    has_copies = context.deployment.spec.model.has_download_job
    if not has_copies or context.loaded is None or not context.loaded.commit:
        return {}
    return {names.ANNOTATION_COMMIT: context.loaded.commit}


def _pod_spec(context: Context) -> dict[str, Any]:
    deployment = context.deployment
    grace = math.ceil(deployment.spec.rollout.drain_timeout.seconds) + GRACE_MARGIN_SECONDS
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
    """Return the init container that fills a claim of the user's; empty where a Job downloads the model."""
    return {"initContainers": [loader_container(context)]} if context.own_claim else {}


def loader_container(context: Context, *more: str) -> dict[str, Any]:
    """Return the container that downloads the model to the volume `cache`; `more` are further arguments."""
    spec = context.deployment.spec
    # A variable: older images, which `spec.engine.image` may name, would refuse an argument.
    port = {"name": "MAMBASERVE_DOWNLOAD_METRICS_PORT", "value": str(names.HTTP_PORT)}
    adapters = " ".join(adapter.uri for adapter in spec.model.downloaded_adapters)
    more_files = [{"name": "MAMBASERVE_DOWNLOAD_ADAPTER", "value": adapters}] if adapters else []
    ours = {"env": [*download_environment(context), port, *more_files]}
    # Users set proxies and another Hub for engines in the same way.
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
    """Return the fields of a pod for its placement on nodes, and its image pull secrets."""
    scheduling = context.deployment.spec.scheduling
    pod: dict[str, Any] = {}
    if references := _pull_secrets(context):
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


def _pull_secrets(context: Context) -> list[dict[str, str]]:
    """Return the references to the Secrets for image pulls; a mounted image of the model may need one."""
    references, model = context.images.references(), context.deployment.spec.model
    if model.image_volume is None or model.secret_ref is None:
        return references
    own = {"name": model.secret_ref.name}
    return references if own in references else [*references, own]


def _tolerations(context: Context) -> list[dict[str, Any]]:
    """Return the tolerations of the spec, and tolerations of the taints that keep other pods off GPUs.

    Clouds name such taints after the resource; the taints of nodes with slices (MIG) are named after the
    whole GPU.
    """
    spec = context.deployment.spec
    theirs = list(spec.scheduling.tolerations)
    if spec.resources.gpus == 0:
        return theirs
    resource = spec.resources.gpu_resource
    whole = f"{resource.partition('/')[0]}/gpu"
    taints = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in sorted({whole, resource})]
    return theirs + [taint for taint in taints if taint not in theirs]


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
            *([TRANSFER] if context.moves_states else []),
        ],
        "resources": _resources(context),
        "securityContext": container_security(),
        "volumeMounts": _mounts(context),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **probes(spec.rollout.progress_deadline.seconds),
    }


def _environment(context: Context) -> list[dict[str, Any]]:
    variables: list[dict[str, Any]] = [from_pod(f"{names.ENV_PREFIX}ADMIN_HOST", "status.podIP")]
    if context.moves_states:
        # The transfer server listens on every address and names this one to other engines.
        variables.append(from_pod("POD_IP", "status.podIP"))
    if context.transport == "Nixl":
        # Without RDMA, UCX listens on ports of this range, which the NetworkPolicy admits.
        first, last = names.NIXL_PORTS
        variables.append({"name": "UCX_TCP_PORT_RANGE", "value": f"{first}-{last}"})
    if context.deployment.spec.model.cache is None:
        variables += download_environment(context)
    else:
        # The loader fetches all files: engines need neither the source nor credentials for it.
        variables += [*_path_variables(), {"name": "HF_HUB_OFFLINE", "value": "1"}]
    if sharing := prefix_sharing(context.deployment):
        # Gateways know an engine by the name of its pod, so the engine publishes under that name.
        variables += [from_pod("POD_NAME", "metadata.name"), *sharing]
    return variables + tracing(context.deployment)


def _path_variables() -> list[dict[str, Any]]:
    return [{"name": "HOME", "value": SCRATCH_MOUNT}, {"name": "HF_HOME", "value": CACHE_MOUNT}]


def download_environment(context: Context) -> list[dict[str, Any]]:
    """Return the environment of a container that downloads the model."""
    spec = context.deployment.spec
    variables = _path_variables()
    if spec.model.token_secret_ref is not None:
        reference = spec.model.token_secret_ref
        variables.append(
            {
                "name": "HF_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": reference.name, "key": reference.key}},
            }
        )
    if spec.model.secret_ref is not None:
        variables += _credentials(spec, spec.model.secret_ref.name)
    return variables


def _credentials(spec: Spec, secret: str) -> list[dict[str, Any]]:
    """Return the variables of the Secret for the sources other than the Hub.

    The keys are listed, so that a Secret sets nothing else in the pod. Keys that only adapters or a draft
    model need are optional, because these may be public.
    """

    def kind_of(scheme: str) -> str:
        return "http" if scheme == "https" else scheme

    kinds, own = {*map(kind_of, spec.source_schemes)}, kind_of(spec.model.location.scheme)
    return [
        {
            "name": name,
            "valueFrom": {
                "secretKeyRef": {
                    "name": secret,
                    "key": key,
                    **({} if is_needed and kind == own else {"optional": True}),
                }
            },
        }
        for kind, keys in CREDENTIALS.items()
        if kind in kinds
        for name, key, is_needed in keys
    ]


def _resources(context: Context) -> dict[str, Any]:
    resources = context.deployment.spec.resources
    requests: dict[str, str] = {}
    size = _downloaded_bytes(context)
    # Weights without a volume fill the node's disk: a node with too little room would evict the pod.
    storage = (math.ceil(size / 2**30) + 1) * 2**30 if size else 0
    disk = context.deployment.spec.state_cache.disk
    if disk is not None and disk.storage_class_name is None and disk.claim_name is None:
        storage += disk.size.bytes
    if storage:
        requests["ephemeral-storage"] = exact_size(storage)
    limits: dict[str, str] = {}
    if resources.cpu is not None:
        requests["cpu"] = str(resources.cpu)
    tiers = tier_memory(context.deployment.spec.state_cache)
    if resources.memory is not None:
        memory = exact_size(resources.memory.bytes + tiers) if tiers else str(resources.memory)
        requests["memory"] = limits["memory"] = memory
    elif tiers:
        requests["memory"] = exact_size(tiers)
    if resources.gpus > 0:
        # Extended resources cannot be overcommitted: request and limit are equal.
        requests[resources.gpu_resource] = limits[resources.gpu_resource] = str(resources.gpus)
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def _downloaded_bytes(context: Context) -> int:
    """Return the bytes of weights that each pod downloads to scratch space; 0 if none or unknown."""
    model = context.deployment.spec.model
    is_downloaded = model.location.scheme in DOWNLOADED and model.image_volume is None
    if not is_downloaded or model.cache is not None or context.plan is None:
        return 0
    return next((line.bytes for line in context.plan.ledger if line.item == "weights"), 0)


def _volumes(context: Context) -> list[dict[str, Any]]:
    spec, children = context.deployment.spec, context.children
    volumes: list[dict[str, Any]] = [
        {"name": "scratch", "emptyDir": {}},
        {"name": SETTINGS_VOLUME, "configMap": {"name": children.engine}},
        {"name": "admin", "secret": {"secretName": context.admin_secret, "defaultMode": 0o440}},
    ]
    if context.key_required:
        volumes.append(key_volume(context))
    if (disk := spec.state_cache.disk) is not None:
        volumes.append(_disk_volume(disk))
    if (image := spec.model.image_volume) is not None:
        volumes.append(_image_volume(spec.model.uri, image))
    for name, claim in _claims(spec).items():
        volumes.append({"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
    if spec.source_schemes & DOWNLOADED:
        if spec.model.cache is not None:
            claim = context.own_claim or children.model_cache
            volumes.append({"name": "cache", "persistentVolumeClaim": {"claimName": claim}})
        else:
            volumes.append({"name": "cache", "emptyDir": {}})
    return volumes


def _image_volume(uri: str, image: ImageVolume) -> dict[str, Any]:
    source = {"reference": uri.removeprefix("oci://")}
    if image.pull_policy is not None:
        source["pullPolicy"] = image.pull_policy
    return {"name": MODEL_VOLUME, "image": source}


def _claims(spec: Spec) -> dict[str, str]:
    """Return the claims from which model, adapters and draft model are read, by name of the volume."""
    model, draft = spec.model, spec.engine.draft_location
    claims = {MODEL_VOLUME: model.location.name} if model.location.scheme == "pvc" else {}
    of_adapters = (adapter.location for adapter in model.adapters)
    others = dict.fromkeys(location.name for location in of_adapters if location.scheme == "pvc")
    others = {claim: None for claim in others if claim not in claims.values()}
    claims |= {f"adapters-{number}": claim for number, claim in enumerate(others)}
    if draft is not None and draft.scheme == "pvc" and draft.name not in claims.values():
        claims["draft-model"] = draft.name
    return claims


def _disk_volume(disk: DiskCache) -> dict[str, Any]:
    """Return the volume of the disk cache: the node's disk, a claim of the pod's own, or the user's."""
    if disk.claim_name is not None:
        return {"name": DISK_VOLUME, "persistentVolumeClaim": {"claimName": disk.claim_name}}
    if disk.storage_class_name is None:
        return {"name": DISK_VOLUME, "emptyDir": {"sizeLimit": str(disk.size)}}
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": disk.storage_class_name,
        "resources": {"requests": {"storage": str(disk.size)}},
    }
    return {"name": DISK_VOLUME, "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}


def _mounts(context: Context) -> list[dict[str, Any]]:
    spec = context.deployment.spec
    mounts: list[dict[str, Any]] = [
        {"name": "scratch", "mountPath": SCRATCH_MOUNT},
        {"name": SETTINGS_VOLUME, "mountPath": SETTINGS_MOUNT, "readOnly": True},
        {"name": "admin", "mountPath": ADMIN_TOKEN_MOUNT, "readOnly": True},
    ]
    if context.key_required:
        mounts.append(key_mount())
    if spec.state_cache.disk is not None:
        mounts.append({"name": DISK_VOLUME, "mountPath": DISK_MOUNT})
    if spec.model.image_volume is not None:
        mounts.append({"name": MODEL_VOLUME, "mountPath": IMAGE_MOUNT, "readOnly": True})
    for name, claim in _claims(spec).items():
        mounts.append({"name": name, "mountPath": f"{MODELS_MOUNT}/{claim}", "readOnly": True})
    if spec.source_schemes & DOWNLOADED:
        # The loader has checked the files: no engine may change them for other engines of its node.
        read_only = {"readOnly": True} if context.own_claim else {}
        mounts.append({"name": "cache", "mountPath": CACHE_MOUNT, **read_only})
    return mounts
