"""How many engines are wanted now: the spec, the autoscaler's last decision and wakes put together. Pure."""

from datetime import UTC, datetime

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment


def engines_wanted(deployment: MambaDeployment, now: datetime) -> int:
    """External: what the scale subresource says. Internal: the last decision, within the bounds.

    A deployment that sleeps gets one engine for `scaleDownDelay` after a gateway asked for it.
    """
    spec = deployment.spec
    if spec.scaling.mode == "External":
        return max(spec.replicas, 1) if spec.replicas == 0 and _awake(deployment, now) else spec.replicas
    decided = deployment.status.scaling.desired if deployment.status and deployment.status.scaling else None
    lowest, highest = spec.scaling.min_replicas, spec.scaling.max_replicas
    wanted = min(max(lowest if decided is None else decided, lowest), highest)
    return 1 if wanted == 0 and _awake(deployment, now) else wanted


def asleep_in(deployment: MambaDeployment, now: datetime) -> float | None:
    """Seconds until a wake is over; None when there was none or it is over."""
    woken = _woken(deployment)
    if woken is None:
        return None
    # In seconds: the end of a delay that somebody chose may lie beyond the last year a date can have.
    left = (woken - now).total_seconds() + deployment.spec.scaling.scale_down_delay.seconds
    return left if left > 0 else None


def _awake(deployment: MambaDeployment, now: datetime) -> bool:
    return asleep_in(deployment, now) is not None


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
