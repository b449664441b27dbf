"""`PinnedPrefixes`: which client holds which pins, until when, and within which budget.

The core calls it when a prompt is computed, and before each step. The cache spares pinned checkpoints; here
is the time, which the cache does not know.
"""

import heapq
from collections import Counter, OrderedDict
from dataclasses import dataclass

from mamba_server.cache import ManagedStateCache, Pin
from mamba_server.engine.sequences.sequence import Sequence


@dataclass(slots=True)
class _Held:
    """One client's hold on a pin, which ends at `until` (seconds), and the slabs that it is charged for."""

    pin: Pin
    until: float
    slabs: float
    """Slabs that the client is charged for the pin."""


class PinnedPrefixes:
    """Prefixes that clients of one engine have pinned, with the times at which the pins end.

    `share` is the largest share of the arena that the pins of one client take, 0 to 1.
    """

    def __init__(self, cache: ManagedStateCache, share: float) -> None:
        self._cache = cache
        self._budget = share * cache.capacity.slabs
        self._pages_per_slab = cache.capacity.pages_per_slab
        self._of_client: dict[str, OrderedDict[int, _Held]] = {}
        """Pins of each client by number, the one that was pinned longest ago first."""
        self._ends: list[tuple[float, str, int]] = []
        """Heap of the times at which pins end; outdated entries are skipped."""
        self.counts: Counter[str] = Counter()
        """Pins by outcome: `pinned`, `renewed`, `refused`, `expired`, `over_budget`."""

    def hold(self, sequence: Sequence, step: int, now: float) -> None:
        """Pin the prefixes of a prompt that is computed. `step` is the next step to launch.

        The pins end their own number of seconds after `now`.
        """
        for depth, seconds in sequence.pins:
            pin = self._cache.pin(sequence.placement_ids(), sequence.salt, step, depth=depth)
            if pin is None:
                self.counts["refused"] += 1
            else:
                self._add(sequence.client, pin, now + seconds)

    def _add(self, client: str, pin: Pin, until: float) -> None:
        pins = self._of_client.setdefault(client, OrderedDict())
        older = pins.pop(pin.number, None)
        slabs = 1 + (pin.pages / self._pages_per_slab if self._pages_per_slab else 0)
        if older is not None:
            self._cache.unpin(older.pin)
            until = max(until, older.until)
        pins[pin.number] = _Held(pin, until, slabs)
        self.counts["pinned" if older is None else "renewed"] += 1
        heapq.heappush(self._ends, (until, client, pin.number))
        held = [each for each in pins.values() if each.pin.node is not None]
        used = sum(each.slabs for each in held)
        for each in held:
            if used <= self._budget:
                break
            used -= each.slabs
            self._end(client, each.pin.number, "over_budget")

    def expire(self, now: float) -> None:
        """End the pins whose time is over at `now`, in seconds."""
        while self._ends and self._ends[0][0] <= now:
            until, client, number = heapq.heappop(self._ends)
            pins = self._of_client.get(client)
            held = pins.get(number) if pins is not None else None
            if held is not None and held.until <= until:
                self._end(client, number, "expired" if held.pin.node is not None else "")

    def _end(self, client: str, number: int, outcome: str) -> None:
        """Release a pin. `outcome`: counted unless the checkpoint was gone already."""
        pins = self._of_client[client]
        self._cache.unpin(pins.pop(number).pin)
        if not pins:
            del self._of_client[client]
        if outcome:
            self.counts[outcome] += 1

    def counters(self) -> dict[str, float]:
        """Return the counters by metric name."""
        counts = {**self.counts, "given_up": self._cache.counters.pins_given_up}
        return {f"pins_total{{outcome={outcome}}}": count for outcome, count in counts.items()}
