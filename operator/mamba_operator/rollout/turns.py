"""`RolloutTurns`: limits the concurrent roll-outs that no user caused, over all deployments.

A newer operator, other default images or a new key change the pods of every deployment in the cluster at
once. Each roll-out adds an engine, or removes one where there is no room, and pulls an image. So they take
turns. Changes by a user never wait. Called by `reconcile`; changes nothing in the cluster.
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
"""Seconds for which a roll-out that has begun counts regardless of the watches, which lag behind."""
DEFAULT_DEADLINE_SECONDS = 600.0
"""Seconds that a roll-out may take without progress where the Deployment sets no deadline, as in
Kubernetes."""


class RolloutTurns:
    """The turns that one operator gives to roll-outs.

    Args:
        indices: objects that the watches hold.
        most: largest number of roll-outs at the same time.
        now: clock with a time zone.
    """

    def __init__(self, indices: Indices, most: int, now: Callable[[], datetime]) -> None:
        self._indices, self._most, self._now = indices, most, now
        self._begun: dict[Key, datetime] = {}

    def may_begin(self, key: Key) -> bool:
        """Return whether a roll-out of that deployment may begin now."""
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
    """Return whether engines are being replaced, or have recently stopped answering.

    A stuck or paused roll-out does not count, so it delays no other: a user has to act on it. The cluster
    never reports a Deployment as stuck after its last roll-out completed, however long its pods have not
    answered, so a Deployment without answering engines counts for as long as a roll-out may take, and no
    longer.
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
