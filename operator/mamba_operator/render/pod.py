"""Fields that pods of engines and of gateways have in common: security, probes, tracing. Pure."""

import math
from typing import Any

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment, Redis
from mamba_settings.trace_settings import trace_variables

EVERY_ADDRESS = "::"
"""Address on which servers listen for IPv4 and IPv6, for clusters of either family."""
DRAIN_QUIET = 5.0
"""Seconds without a request after which a terminating pod closes its port. Its clients have noticed its end
by then."""
ENDS_WHEN_TOLD: dict[str, Any] = {"shareProcessNamespace": True}
"""Makes the pause container process 1 of the pod. The kernel drops a SIGTERM to a process 1 without a
handler, and Python has no handler while it starts. A pod that is deleted then would run for its whole grace
period."""
START_PERIOD = 2
READY_PERIOD = 2
LIVE_PERIOD = 10
USER = 65532


def pod_security() -> dict[str, Any]:
    """Return the securityContext of a pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """Return the securityContext of a container, which writes to mounted scratch space only."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def probes(start_seconds: float) -> dict[str, Any]:
    """Return the probes. A container that is not ready after `start_seconds` is restarted."""
    return {
        # Liveness checks begin after this probe has succeeded: loading weights may take minutes.
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
    """Return the environment of a container that sends traces; empty where the spec asks for none."""
    return [{"name": name, "value": value} for name, value in trace_variables(deployment).items()]


def from_pod(name: str, path: str) -> dict[str, Any]:
    """Return an environment variable with the value of a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def prefix_sharing(deployment: MambaDeployment) -> list[dict[str, Any]]:
    """Return the environment of a container that shares the prefix index; empty without Redis."""
    redis = deployment.spec.prefix_index.redis
    return [] if redis is None else shared_redis(redis, f"{deployment.namespace}/{deployment.name}")


def shared_redis(redis: Redis, scope: str) -> list[dict[str, Any]]:
    """Return the environment of a container that shares a Redis with others under the name `scope`."""
    address: dict[str, Any] = {"value": redis.url}
    if redis.secret_ref is not None:
        address = {"valueFrom": {"secretKeyRef": {"name": redis.secret_ref.name, "key": names.REDIS_URL_KEY}}}
    return [
        {"name": f"{names.ENV_PREFIX}REDIS_URL", **address},
        {"name": f"{names.ENV_PREFIX}PREFIX_INDEX_SCOPE", "value": scope},
    ]
