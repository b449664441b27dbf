"""Whether watches still deliver: what a list shows must have come by watch too, a moment later. Pure.

A watch that died silently looks like a quiet cluster. `observe` reports every object it listed, the watch
handlers every object they were handed; an object that only the lists know of for too long is proof of a
stale watch, and liveness fails. Times are seconds of one monotonic clock.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Freshness:
    """Compares what lists show with what watches delivered."""

    stale_after: float
    _delivered: dict[Hashable, tuple[str, float]] = field(default_factory=dict)
    _missing: dict[Hashable, tuple[float, float]] = field(default_factory=dict)
    """Object -> when a list first and last showed it without the watch having delivered it."""

    def delivered(self, identity: Hashable, version: str, now: float) -> None:
        """A watch delivered the object with this resourceVersion."""
        self._delivered[identity] = (version, now)
        self._missing.pop(identity, None)

    def listed(self, identity: Hashable, version: str, requested_at: float) -> None:
        """A list that was requested at `requested_at` shows the object with this resourceVersion."""
        known = self._delivered.get(identity)
        # Versions are opaque: an event that came after we asked is at least as new as the list.
        if known is not None and (known[0] == version or known[1] >= requested_at):
            self._missing.pop(identity, None)
            return
        first, _ = self._missing.get(identity, (requested_at, requested_at))
        self._missing[identity] = (first, requested_at)

    def gone(self, identity: Hashable) -> None:
        """The object does not exist any more."""
        self._delivered.pop(identity, None)
        self._missing.pop(identity, None)

    def stale(self) -> list[Hashable]:
        """Objects that lists showed for longer than `stale_after` without any watch delivering them.

        An object that vanished before it was delivered is shown by no further list and never counts.
        """
        return [one for one, (first, last) in self._missing.items() if last - first > self.stale_after]
