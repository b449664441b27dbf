"""`not_in_local_mode`: notes on the fields of a spec that have an effect only in a cluster.

`up` shows the notes instead of ignoring the fields silently. Pure. Fields that this version supports nowhere
are refused earlier, when the document is read.
"""

from typing import Any

from pydantic.alias_generators import to_snake

from mamba_api.v1alpha1 import Pool, Resources, Spec
from mamba_api.v1alpha1.base import ApiModel
from mamba_api.v1alpha1.pools import PoolScaling

ONE_ENGINE = (
    "replicas",
    "scaling.mode",
    "scaling.minReplicas",
    "scaling.maxReplicas",
    "scaling.ttftTarget",
    "scaling.tpotTarget",
    "scaling.scaleDownDelay",
)
POOLS = ("prefill", "decode")
OF_POOL_PODS = (
    "replicas", "resources.profile", "resources.gpuResource", "resources.cpu", "resources.memory",
    "stateCache.disk.storageClassName", "stateCache.disk.claimName",
)  # fmt: skip
SCALING = ("minReplicas", "maxReplicas", "scaleDownDelay")
TARGETS = {"prefill": "ttftTarget", "decode": "tpotTarget"}
OF_PODS = (
    "model.tokenSecretRef", "model.secretRef", "model.imageVolume", "model.cache", "engine.image",
    "resources.gpuResource", "resources.cpu",
    "resources.memory", "stateCache.disk.storageClassName", "stateCache.disk.claimName",
    "scheduling.nodeSelector", "scheduling.tolerations", "scheduling.affinity",
    "scheduling.priorityClassName", "scheduling.runtimeClassName", "gateway.image", "gateway.replicas",
    "gateway.podTemplate", "gateway.inferencePool", "rollout.maxSurge", "rollout.maxUnavailable",
    "rollout.inPlaceAfter", "rollout.minReadyTime", "rollout.pause", "rollout.progressDeadline",
    "rollout.canary",
    "podTemplate", "workloadSource",
)  # fmt: skip
PROFILE = "resources.profile"
AUTH, KEY_LIMITS = "gateway.auth", "gateway.limits.keys[]"
READERS = "gateway.usage.readers"
REDIS_SECRET = "prefixIndex.redis.secretRef"  # noqa: S105 - a path in the spec
VALUE_FROM = "engine.env[].valueFrom"
CLUSTER_ONLY = frozenset(
    (
        *ONE_ENGINE, *OF_PODS, PROFILE, AUTH, KEY_LIMITS, READERS, REDIS_SECRET, VALUE_FROM,
        *(f"disaggregation.{pool}.{path}" for pool in POOLS for path in OF_POOL_PODS),
        *(
            f"disaggregation.{pool}.scaling.{field}"
            for pool in POOLS
            for field in (*SCALING, TARGETS[pool])
        ),
    )
)  # fmt: skip
"""Paths below spec, as YAML spells them."""

_DEFAULTS = Spec.model_validate({"model": {"uri": "builtin://any"}})


def not_in_local_mode(spec: Spec) -> list[str]:
    """Return one line for each kind of field that is set and has no effect without a cluster."""
    notes = []
    if fields := _changed_fields(spec, ONE_ENGINE):
        notes.append(f"{fields}: ignored, because one engine runs here")
    if spec.resources.profile is not None:
        notes.append(f"spec.{PROFILE}: only its gpus has an effect here; the memory is that of this machine")
    if spec.gateway.auth is not None:
        named = f", spec.{KEY_LIMITS.removesuffix('[]')}" if spec.gateway.limits.keys else ""
        named += f", spec.{READERS}" if spec.gateway.usage.readers else ""
        notes.append(
            f"spec.{AUTH}{named}: Secrets are not read here, so everyone who reaches the endpoint may use it"
        )
    if (redis := spec.prefix_index.redis) is not None and redis.secret_ref is not None:
        notes.append(f"spec.{REDIS_SECRET}: Secrets are not read here; export MAMBASERVE_REDIS_URL instead")
    if unread := [variable.name for variable in spec.engine.env if variable.value_from is not None]:
        notes.append(f"spec.engine.env: {', '.join(unread)}: valueFrom is not read here; export the variable")
    notes += _pool_notes(spec)
    if fields := _changed_fields(spec, OF_PODS):
        notes.append(f"{fields}: {'have' if ', ' in fields else 'has'} an effect only in a cluster")
    return notes


def _pool_notes(spec: Spec) -> list[str]:
    """Return the notes on fields of the pools; one engine of each pool runs on this machine."""
    pools = spec.disaggregation
    if pools is None:
        return []
    notes = []
    for name in POOLS:
        pool: Pool = getattr(pools, name)
        if pool.replicas != 1:
            notes.append(f"spec.disaggregation.{name}.replicas: ignored, because one engine of it runs here")
        if bounds := [
            field
            for field in (*SCALING, TARGETS[name])
            if _value(pool, f"scaling.{field}") not in (None, _value(PoolScaling(), field))
        ]:
            words = ", ".join(f"spec.disaggregation.{name}.scaling.{field}" for field in bounds)
            notes.append(f"{words}: ignored, because one engine of it runs here")
        default = Pool(resources=Resources())
        if fields := [
            path for path in OF_POOL_PODS[1:] if _value(pool, path) not in (None, _value(default, path))
        ]:
            words = ", ".join(f"spec.disaggregation.{name}.{path}" for path in fields)
            notes.append(f"{words}: {'have' if len(fields) > 1 else 'has'} an effect only in a cluster")
    return notes


def _changed_fields(spec: Spec, paths: tuple[str, ...]) -> str:
    """Return the fields among `paths` whose values are not the defaults, as a list in words."""
    return ", ".join(f"spec.{path}" for path in paths if _value(spec, path) != _value(_DEFAULTS, path))


def _value(part: ApiModel, path: str) -> Any:
    """Return the value at `path`; None where a part on the way to it is absent."""
    value: Any = part
    for name in path.split("."):
        value = getattr(value, to_snake(name)) if value is not None else None
    return value
