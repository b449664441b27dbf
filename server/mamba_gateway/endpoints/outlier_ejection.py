"""What is thought of one engine by how requests fared there: in a row of failures it is left out for a while.

Beside what it says of itself, which may be wrong. When its time is over one request is sent; if that is
answered the engine is as good as any, else it is left out for longer. A request that it alone rejects, while
another engine takes it, counts as a failure; until the other has answered it gets no further request. Pure.
"""

from dataclasses import dataclass

FAILURES = 3
"""In a row, until an engine is left out."""
SUSPICIOUS = 3
"""Rejections in a row from which on each is compared with what another engine says."""
COMPARED_SECONDS = 2.0
"""How long it gets no request while what it rejected is compared. Clients that make mistakes without end, at
another engine that is slow, must not keep it out for longer."""
FIRST_SECONDS, LONGEST_SECONDS = 5.0, 300.0
"""How long it is left out the first time, doubled each time; at most."""


@dataclass(slots=True)
class OutlierEjection:
    """Of one engine. Times are monotonic seconds."""

    failures: int = 0
    """Since the last answer."""
    ejections: int = 0
    until: float = 0.0
    """Left out until then."""
    reason: str = ""
    rejections: int = 0
    """Requests that it rejected, as mistakes of clients are, since the last one that it took."""
    comparisons: int = 0
    """Requests that it rejected and that are at another engine now."""
    compared_until: float = 0.0
    """The first of them keeps other requests away until then."""
    trial: int | None = None
    """Ticket of the request that is to tell whether it is well again."""

    @property
    def doubted(self) -> bool:
        """It was left out and has not answered since."""
        return self.ejections > 0

    @property
    def uncertain(self) -> bool:
        """It is left out, or may be before long: its state is to be looked at each time."""
        return self.doubted or self.comparisons > 0

    def excludes(self, now: float) -> bool:
        """No request is sent to it now."""
        if self.comparisons > 0 and now < self.compared_until:
            return True
        return self.doubted and (now < self.until or self.trial is not None)

    def compare(self, now: float) -> None:
        """A request that it rejected goes to another engine."""
        if self.comparisons == 0:
            self.compared_until = now + COMPARED_SECONDS
        self.comparisons += 1

    def fail(self, reason: str, now: float, *, may_eject: bool) -> None:
        """A request failed there; with `may_eject` it may be left out from now on."""
        self.failures += 1
        self.reason = reason
        if not may_eject or now < self.until or not (self.doubted or self.failures >= FAILURES):
            return
        self.until = now + min(LONGEST_SECONDS, FIRST_SECONDS * 2.0**self.ejections)
        self.ejections += 1

    def answer(self) -> None:
        """It has answered a request well."""
        self.failures = self.ejections = self.rejections = 0
        self.until, self.trial = 0.0, None
