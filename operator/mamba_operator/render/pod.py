"""What pods of engines and of the gateway have in common: security, probes, tracing. Pure."""

import math
from typing import Any

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_settings.trace_settings import trace_variables

EVERY_ADDRESS = "::"
"""Of both families, so that pods are reached in clusters of either."""
DRAIN_QUIET = 5.0
"""Seconds without a request after which a pod that is to end takes none any more: those who choose between
pods have heard of it then."""
ENDS_WHEN_TOLD: dict[str, Any] = {"shareProcessNamespace": True}
"""The kernel drops SIGTERM to a process 1 without a handler, and an interpreter has none while it starts: a
pod deleted then would stay for its whole grace period. Now its pause container is process 1."""
START_PERIOD = 2
READY_PERIOD = 2
LIVE_PERIOD = 10
USER = 65532


def pod_security() -> dict[str, Any]:
    """securityContext of a pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """securityContext of a container; what it writes goes to mounted scratch space."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def probes(start_seconds: float) -> dict[str, Any]:
    """`start_seconds`: how long loading may take before the container is started anew."""
    return {
        # Liveness begins when this one has succeeded: loading weights for minutes is no reason to die.
        "startupProbe": _probe("/readyz", START_PERIOD, max(math.ceil(start_seconds / START_PERIOD), 1)),
        "readinessProbe": _probe("/readyz", READY_PERIOD, 2),
        "livenessProbe": _probe("/livez", LIVE_PERIOD, 6),
    }


def _probe(path: str, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": names.HTTP_PORT_NAME, "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": min(period, 5),
        "failureThreshold": failures,
        "successThreshold": 1,
    }


def tracing(deployment: MambaDeployment) -> list[dict[str, Any]]:
    """Environment of a container that sends traces; empty where none are asked for."""
    return [{"name": name, "value": value} for name, value in trace_variables(deployment).items()]


def from_pod(name: str, path: str) -> dict[str, Any]:
    """An environment variable with a field of the pod itself."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def prefix_sharing(deployment: MambaDeployment) -> list[dict[str, Any]]:
    """Environment of a container that shares the prefix index; empty where engines are asked directly."""
    redis = deployment.spec.prefix_index.redis
    if redis is None:
        return []
    address: dict[str, Any] = {"value": redis.url}
    if redis.secret_ref is not None:
        address = {"valueFrom": {"secretKeyRef": {"name": redis.secret_ref.name, "key": names.REDIS_URL_KEY}}}
    return [
        {"name": f"{names.ENV_PREFIX}REDIS_URL", **address},
        {
            "name": f"{names.ENV_PREFIX}PREFIX_INDEX_SCOPE",
            "value": f"{deployment.namespace}/{deployment.name}",
        },
    ]
