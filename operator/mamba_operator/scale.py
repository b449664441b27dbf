"""How many engines are wanted now: spec.replicas, and what a wake adds while there is none. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_operator.manifest import Manifest


def engines_wanted(deployment: MambaDeployment, woken: datetime | None, now: datetime) -> int:
    """spec.replicas, whoever wrote it; in mode Internal with minReplicas 0 only while a gateway asks for it.

    Engines that a request wakes stay for `scaleDownDelay` after a gateway last asked (`woken`), at least one.
    """
    spec = deployment.spec
    sleeps = spec.scaling.mode == "Internal" and spec.scaling.min_replicas == 0
    if seconds_awake(deployment, woken, now) is not None:
        return max(spec.replicas, 1)
    return 0 if sleeps else spec.replicas


def seconds_awake(deployment: MambaDeployment, woken: datetime | None, now: datetime) -> float | None:
    """Seconds until a wake is over; None when there was none or it is over."""
    if woken is None:
        return None
    # In seconds: the end of a delay that somebody chose may lie beyond the last year a date can have.
    left = (woken - now).total_seconds() + deployment.spec.scaling.scale_down_delay.seconds
    return left if left > 0 else None


def woken_at(request: Manifest | None) -> datetime | None:
    """When a gateway last asked for an engine, by the ConfigMap X-wake; None when none did."""
    data = request.get("data") if request else None
    text = data.get(names.WAKE_KEY) if isinstance(data, Mapping) else None
    # Gateways are not trusted with more than this: a text that is no time wakes nothing.
    return moment(text) if isinstance(text, str) else None


def moment(text: str) -> datetime | None:
    """The time that somebody wrote; None for what is none. Without a zone it is UTC."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
