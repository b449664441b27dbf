"""Probes of our containers: /readyz while starting and serving, /livez for life. Pure."""

import math
from typing import Any

from mamba_api import names

START_PERIOD = 2
READY_PERIOD = 2
LIVE_PERIOD = 10


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
