"""`Freshness`: detects watches that no longer deliver, by comparing them with lists. Pure.

A watch that died silently looks like a quiet cluster. `observe` reports every listed object, and the watch
handlers report every delivered object. An object that only lists show for too long proves a stale watch,
and liveness fails. Times are seconds of one monotonic clock.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Freshness:
    """Finds objects that lists have shown and watches have not, so that a watch must have missed them."""

    stale_after: float
    _delivered: dict[Hashable, tuple[str, float]] = field(default_factory=dict)
    _missing: dict[Hashable, tuple[float, float]] = field(default_factory=dict)
    """By object: the times at which a list first and last showed it although the watch had not delivered
    it."""

    def delivered(self, identity: Hashable, version: str, now: float) -> None:
        """Record that a watch delivered the object with resourceVersion `version` at `now`, in seconds."""
        self._delivered[identity] = (version, now)
        self._missing.pop(identity, None)

    def listed(self, identity: Hashable, version: str, requested_at: float) -> None:
        """Record that a list requested at `requested_at` shows the object with this resourceVersion."""
        delivery = self._delivered.get(identity)
        # Versions are opaque: an event that arrived after the request is at least as new as the list.
        if delivery is not None and (delivery[0] == version or delivery[1] >= requested_at):
            self._missing.pop(identity, None)
            return
        first, _ = self._missing.get(identity, (requested_at, requested_at))
        self._missing[identity] = (first, requested_at)

    def gone(self, identity: Hashable) -> None:
        """Record that the object no longer exists."""
        self._delivered.pop(identity, None)
        self._missing.pop(identity, None)

    def stale(self) -> list[Hashable]:
        """Return the objects that lists have shown for longer than `stale_after`, and watches have not.

        An object that vanished before its delivery appears in no later list and never counts.
        """
        return [
            identity for identity, (first, last) in self._missing.items() if last - first > self.stale_after
        ]
