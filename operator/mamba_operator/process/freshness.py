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

    def delivered(self, one: Hashable, version: str, now: float) -> None:
        """A watch handed over `one` with this resourceVersion."""
        self._delivered[one] = (version, now)
        self._missing.pop(one, None)

    def listed(self, one: Hashable, version: str, asked: float) -> None:
        """A list that was asked for at `asked` shows `one` with this resourceVersion."""
        known = self._delivered.get(one)
        # Versions are opaque: an event that came after we asked is at least as new as the list.
        if known is not None and (known[0] == version or known[1] >= asked):
            self._missing.pop(one, None)
            return
        first, _ = self._missing.get(one, (asked, asked))
        self._missing[one] = (first, asked)

    def gone(self, one: Hashable) -> None:
        """The object does not exist any more."""
        self._delivered.pop(one, None)
        self._missing.pop(one, None)

    def stale(self) -> list[Hashable]:
        """Objects that lists showed for longer than `stale_after` without any watch delivering them.

        An object that vanished before it was delivered is shown by no further list and never counts.
        """
        return [one for one, (first, last) in self._missing.items() if last - first > self.stale_after]
