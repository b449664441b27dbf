"""How many engines are wanted now: spec.replicas, and what a wake adds while there is none. Pure."""

from datetime import UTC, datetime

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment


def engines_wanted(deployment: MambaDeployment, now: datetime) -> int:
    """spec.replicas, whoever wrote it; in mode Internal with minReplicas 0 only while a gateway asks for it.

    Engines that a request wakes stay for `scaleDownDelay` after a gateway last asked, at least one of them.
    """
    spec = deployment.spec
    sleeps = spec.scaling.mode == "Internal" and spec.scaling.min_replicas == 0
    if seconds_awake(deployment, now) is not None:
        return max(spec.replicas, 1)
    return 0 if sleeps else spec.replicas


def seconds_awake(deployment: MambaDeployment, now: datetime) -> float | None:
    """Seconds until a wake is over; None when there was none or it is over."""
    woken = _woken(deployment)
    if woken is None:
        return None
    # In seconds: the end of a delay that somebody chose may lie beyond the last year a date can have.
    left = (woken - now).total_seconds() + deployment.spec.scaling.scale_down_delay.seconds
    return left if left > 0 else None


def _woken(deployment: MambaDeployment) -> datetime | None:
    text = deployment.metadata.annotations.get(names.ANNOTATION_WAKE)
    if not text:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        # Anybody may write an annotation: one that is no time wakes nothing.
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
