"""Judges one engine by the outcome of its requests: after failures in a row it is left out for a while.

What the engine reports of itself may be wrong. After that time one request is sent; if the engine answers it,
the engine is as good as any, else it is left out for longer. A request that one engine rejects and another
takes counts as a failure of the first, which gets no further request until the other has answered. Used by
the pool. Pure.
"""

from dataclasses import dataclass

FAILURES = 3
"""Failures in a row after which an engine is left out."""
SUSPICIOUS = 3
"""Rejections in a row after which each further one is compared with another engine's answer."""
COMPARED_SECONDS = 2.0
"""Longest time that an engine gets no request while a rejection is compared. Clients that make mistakes
without end, at another engine that is slow, must not keep the engine out for longer."""
FIRST_SECONDS, LONGEST_SECONDS = 5.0, 300.0
"""Time for which an engine is left out the first time, doubled each time; longest such time."""


@dataclass(slots=True)
class OutlierEjection:
    """The judgement of one engine. Times are monotonic seconds."""

    failures: int = 0
    """Number of failures since the last answer."""
    ejections: int = 0
    until: float = 0.0
    """Time until which the engine is left out."""
    reason: str = ""
    rejections: int = 0
    """Requests that the engine rejected as mistakes of clients, since the last one that it took."""
    comparisons: int = 0
    """Requests that the engine rejected and that another engine has now."""
    compared_until: float = 0.0
    """Time until which the first comparison keeps other requests away."""
    trial: int | None = None
    """Ticket of the request that shows whether the engine works again."""

    @property
    def doubted(self) -> bool:
        """Whether the engine was left out and has not answered since."""
        return self.ejections > 0

    @property
    def uncertain(self) -> bool:
        """Whether the engine is left out, or may be soon: its state has to be looked at each time."""
        return self.doubted or self.comparisons > 0

    def excludes(self, now: float) -> bool:
        """Return whether the engine gets no request now."""
        if self.comparisons > 0 and now < self.compared_until:
            return True
        return self.doubted and (now < self.until or self.trial is not None)

    def compare(self, now: float) -> None:
        """Record that a request that the engine rejected goes to another engine."""
        if self.comparisons == 0:
            self.compared_until = now + COMPARED_SECONDS
        self.comparisons += 1

    def fail(self, reason: str, now: float, *, may_eject: bool) -> None:
        """Record a failed request; with `may_eject` the engine may be left out from now on."""
        self.failures += 1
        self.reason = reason
        if not may_eject or now < self.until or not (self.doubted or self.failures >= FAILURES):
            return
        self.until = now + min(LONGEST_SECONDS, FIRST_SECONDS * 2.0**self.ejections)
        self.ejections += 1

    def answer(self) -> None:
        """Record that the engine has answered a request."""
        self.failures = self.ejections = self.rejections = 0
        self.until, self.trial = 0.0, None
