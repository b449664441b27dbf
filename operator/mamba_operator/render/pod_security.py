"""Security of our pods: what Kubernetes' Pod Security Standard "restricted" asks for. Pure."""

from typing import Any

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
