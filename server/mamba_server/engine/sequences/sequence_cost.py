"""`SequenceCost`: what one sequence has used of the engine. Pure: times are parameters, in nanoseconds.

Slots and pages are integrated over the time between two looks at the allocation, by the mean of what it held
at both: the core looks when a piece of the prompt ends, when a client wants to know, and when the sequence
leaves its memory. A decoding sequence takes its pages one by one, so the mean is what it held.
"""

from mamba_server.cache import SequenceAllocation
from mamba_server.wire import Cost


class SequenceCost:
    """Adds up what one sequence uses of the engine: device time, and memory by the time it is held.

    The cost is charged to the account with the number `account`.
    """

    __slots__ = ("_held_pages", "_held_slots", "_looked_at", "account", "device", "pages", "saved", "slots")

    def __init__(self, account: int = 0) -> None:
        self.account = account
        self.device = 0
        """Nanoseconds of the device."""
        self.slots = 0
        """Slot-nanoseconds."""
        self.pages = 0
        """Page-nanoseconds."""
        self.saved = 0
        """Nanoseconds of the device that resuming saved."""
        self._looked_at: int | None = None
        """Time of the last look at the allocation; None = the sequence holds no memory."""
        self._held_slots = self._held_pages = 0

    @property
    def holds(self) -> bool:
        """Whether the sequence holds memory."""
        return self._looked_at is not None

    def look(self, allocation: SequenceAllocation, now: int) -> tuple[int, int]:
        """Add the memory that the sequence has held since the last call to its cost; return the difference.

        The difference is (slot-nanoseconds, page-nanoseconds). `now` is the engine's time in nanoseconds.
        """
        slots = (allocation.live > 0) + len(allocation.tracking_slots)
        pages = allocation.page_count
        added = 0, 0
        if self._looked_at is not None:
            elapsed = max(0, now - self._looked_at)
            added = (self._held_slots + slots) * elapsed // 2, (self._held_pages + pages) * elapsed // 2
        self._looked_at, self._held_slots, self._held_pages = now, slots, pages
        self.slots += added[0]
        self.pages += added[1]
        return added

    def leave(self) -> None:
        """Record that the sequence has given its memory back: the time from now on is not charged."""
        self._looked_at = None

    def total(self) -> Cost:
        """Return the cost so far."""
        return Cost(self.device, self.slots, self.pages, self.saved)
