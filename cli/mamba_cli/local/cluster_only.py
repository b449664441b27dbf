"""What a spec asks for that acts in a cluster alone: `up` says so in words instead of dropping it silently.

Pure. A field that no mode of this version fulfils is refused by the contract itself before this is asked.
"""

from typing import Any

from pydantic.alias_generators import to_snake

from mamba_api.v1alpha1 import Spec

ONE_ENGINE = (
    "replicas",
    "scaling.mode",
    "scaling.minReplicas",
    "scaling.maxReplicas",
    "scaling.ttftTarget",
    "scaling.tpotTarget",
    "scaling.scaleDownDelay",
)
OF_PODS = (
    "model.tokenSecretRef", "model.cache", "engine.image", "resources.gpuResource", "resources.cpu",
    "resources.memory", "scheduling.nodeSelector", "scheduling.tolerations", "scheduling.affinity",
    "scheduling.priorityClassName", "scheduling.runtimeClassName", "gateway.image", "gateway.replicas",
    "gateway.podTemplate", "gateway.inferencePool", "rollout.maxSurge",
    "rollout.maxUnavailable", "rollout.inPlaceAfter", "rollout.minReadyTime", "rollout.pause",
    "rollout.progressDeadline", "podTemplate", "workloadSource",
)  # fmt: skip
PROFILE = "resources.profile"
AUTH, KEY_LIMITS = "gateway.auth", "gateway.limits.keys[]"
REDIS_SECRET = "prefixIndex.redis.secretRef"  # noqa: S105 - a path in the spec
VALUE_FROM = "engine.env[].valueFrom"
CLUSTER_ONLY = frozenset((*ONE_ENGINE, *OF_PODS, PROFILE, AUTH, KEY_LIMITS, REDIS_SECRET, VALUE_FROM))
"""Paths below spec, in YAML spelling."""

_DEFAULTS = Spec.model_validate({"model": {"uri": "builtin://any"}})


def not_in_local_mode(spec: Spec) -> list[str]:
    """One line for each kind of thing that is asked for and that one machine without a cluster lacks."""
    notes = []
    if asked := _asked(spec, ONE_ENGINE):
        notes.append(f"{asked}: one engine runs here")
    if spec.resources.profile is not None:
        notes.append(f"spec.{PROFILE}: of it only gpus acts here; memory is that of this machine")
    if spec.gateway.auth is not None:
        named = f", spec.{KEY_LIMITS.removesuffix('[]')}" if spec.gateway.limits.keys else ""
        notes.append(f"spec.{AUTH}{named}: Secrets are not read here, so anyone on this machine may call")
    if (redis := spec.prefix_index.redis) is not None and redis.secret_ref is not None:
        notes.append(f"spec.{REDIS_SECRET}: Secrets are not read here; export MAMBASERVE_REDIS_URL instead")
    if unread := [one.name for one in spec.engine.env if one.value_from is not None]:
        notes.append(f"spec.engine.env: {', '.join(unread)}: valueFrom is not read here; export the variable")
    if asked := _asked(spec, OF_PODS):
        notes.append(f"{asked}: {'act' if ', ' in asked else 'acts'} in a cluster alone")
    return notes


def _asked(spec: Spec, paths: tuple[str, ...]) -> str:
    """The paths whose value is not the default."""
    return ", ".join(f"spec.{path}" for path in paths if _at(spec, path) != _at(_DEFAULTS, path))


def _at(spec: Spec, path: str) -> Any:
    value: Any = spec
    for name in path.split("."):
        value = getattr(value, to_snake(name))
    return value
