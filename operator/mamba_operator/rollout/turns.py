"""`RolloutTurns`: limits the number of concurrent roll-outs that no user has caused, over all deployments.

A newer operator, other default images or a new key change the pods of every deployment in the cluster at
once. Each roll-out adds an engine, or removes one if there is no room, and pulls an image. Therefore only
some of these roll-outs run at the same time. A change by a user never waits. Called by `reconcile`; changes
nothing in the cluster.
"""

from collections.abc import Callable
from datetime import datetime

from mamba_api import names
from mamba_api.choices import ROLES
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import DEPLOYMENT, MAMBA_DEPLOYMENT
from mamba_operator.objects.manifest import Key, Manifest, name_of
from mamba_operator.objects.recorded_status import parse_timestamp, workload_state

WATCH_LAG_SECONDS = 60.0
"""Seconds for which a roll-out that has begun is counted even if the watches do not show it yet."""
DEFAULT_DEADLINE_SECONDS = 600.0
"""Seconds after which a roll-out without progress counts as stuck, if the Deployment sets no deadline; the
default of Kubernetes."""


class RolloutTurns:
    """Limit on the roll-outs of one operator.

    Args:
        indices: objects that the watches hold.
        most: maximum number of roll-outs at the same time.
        now: clock with a time zone.
    """

    def __init__(self, indices: Indices, most: int, now: Callable[[], datetime]) -> None:
        self._indices, self._most, self._now = indices, most, now
        self._begun: dict[Key, datetime] = {}

    def may_begin(self, key: Key) -> bool:
        """Return whether a roll-out of the deployment `key` may begin now."""
        now = self._now()
        self._begun = {
            begun: time
            for begun, time in self._begun.items()
            if (now - time).total_seconds() < WATCH_LAG_SECONDS
        }
        keys = self._indices.keys(MAMBA_DEPLOYMENT)
        others = {other for other in keys if other != key and self._is_rolling(other)}
        return len(others | (self._begun.keys() - {key})) < self._most

    def begin(self, key: Key) -> None:
        """Record that the roll-out of a deployment begins."""
        self._begun[key] = self._now()

    def _is_rolling(self, key: Key) -> bool:
        engine_names = {names.Children(key.name, role).engine for role in ROLES}
        engines = [child for child in self._indices.of(DEPLOYMENT, key) if name_of(child) in engine_names]
        return any(is_rolling(engine, self._now()) for engine in engines)


def is_rolling(engine: Manifest, now: datetime) -> bool:
    """Return whether engines of a Deployment are being replaced, or have recently become unavailable.

    A roll-out that is stuck or paused is not counted, because a user has to act on it and others must not
    wait for that. Kubernetes never reports a Deployment as stuck after its last roll-out has completed, even
    if no pod is ready for a long time. So a Deployment without ready engines is counted for as long as a
    roll-out may take, and no longer.
    """
    state = workload_state(engine)
    if state.stuck is not None or state.desired == 0 or (engine.get("spec") or {}).get("paused"):
        return False
    if not state.current or state.replicas > state.updated:
        return True
    return state.ready == 0 and not _is_long_dead(engine, state.unavailable_since, now)


def _is_long_dead(engine: Manifest, unavailable_since: str | None, now: datetime) -> bool:
    since = parse_timestamp(unavailable_since) if unavailable_since is not None else None
    deadline = (engine.get("spec") or {}).get("progressDeadlineSeconds", DEFAULT_DEADLINE_SECONDS)
    return since is not None and (now - since).total_seconds() > deadline
