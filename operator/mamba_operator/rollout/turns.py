"""`RolloutTurns`: how many roll-outs that nobody asked for run at the same time, over all deployments.

A newer operator, other default images or another key of its own change the pods of every deployment in the
cluster, all at once. Each roll-out adds an engine, where there is no room takes one, and pulls an image. So
they go in turn. What a person changes waits for nobody. Asked by `reconcile`; touches nothing.
"""

from collections.abc import Callable
from datetime import datetime

from mamba_api import names
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import DEPLOYMENT, MAMBA_DEPLOYMENT
from mamba_operator.objects.manifest import Key, Manifest, name_of
from mamba_operator.objects.timestamp import parse_timestamp
from mamba_operator.objects.workload_state import workload_state

RECENT = 60.0
"""Seconds for which a roll-out that was begun counts whatever the watches show: they lag behind."""
DEADLINE = 600.0
"""Seconds that a roll-out may take without progress where the Deployment names none, as in Kubernetes."""


class RolloutTurns:
    """The turns of one operator.

    Args:
        indices: what the watches hold.
        most: roll-outs at the same time.
        now: the time.
    """

    def __init__(self, indices: Indices, most: int, now: Callable[[], datetime]) -> None:
        self._indices, self._most, self._now = indices, most, now
        self._begun: dict[Key, datetime] = {}

    def may_begin(self, key: Key) -> bool:
        """Tell whether a roll-out of that deployment would be one of those that may run."""
        now = self._now()
        self._begun = {one: at for one, at in self._begun.items() if (now - at).total_seconds() < RECENT}
        others = {one for one in self._indices.keys(MAMBA_DEPLOYMENT) if one != key and self._rolls(one)}
        return len(others | (self._begun.keys() - {key})) < self._most

    def begin(self, key: Key) -> None:
        """Note that the roll-out of a deployment is being begun."""
        self._begun[key] = self._now()

    def _rolls(self, key: Key) -> bool:
        wanted = names.Children(key.name).engine
        engines = [one for one in self._indices.of(DEPLOYMENT, key) if name_of(one) == wanted]
        return any(is_rolling(one, self._now()) for one in engines)


def is_rolling(engine: Manifest, now: datetime) -> bool:
    """Tell whether engines are being replaced, or have lately stopped to answer.

    One that is stuck holds up nobody, nor does one that is paused: it goes on when a person says so. The
    cluster calls no Deployment stuck whose last roll-out was complete, however long its pods have not
    answered, so that one without engines counts for as long as a roll-out may take, and no longer.
    """
    state = workload_state(engine)
    if state.stuck is not None or state.wanted == 0 or (engine.get("spec") or {}).get("paused"):
        return False
    if not state.current or state.replicas > state.updated:
        return True
    return state.ready == 0 and not _is_long_dead(engine, state.unavailable_since, now)


def _is_long_dead(engine: Manifest, unavailable_since: str | None, now: datetime) -> bool:
    since = parse_timestamp(unavailable_since) if unavailable_since is not None else None
    deadline = (engine.get("spec") or {}).get("progressDeadlineSeconds", DEADLINE)
    return since is not None and (now - since).total_seconds() > deadline
