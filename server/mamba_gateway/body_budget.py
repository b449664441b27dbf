"""The bytes of request bodies that the gateway holds, of all requests together, and their bound.

A body is held from its first byte until an engine has begun to answer: so long it may have to be sent again.
Counted as bytes arrive, so that a promise of many bytes takes no room from others.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from mamba_edge.errors import TooManyRequests

RETRY_SECONDS = 5.0


class BodyBudget:
    """At most `limit` bytes at once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        """Bytes held now."""

    @contextmanager
    def hold(self) -> Iterator["HeldBody"]:
        """One body, let go with the block at the latest."""
        body = HeldBody(self)
        try:
            yield body
        finally:
            body.let_go()


class HeldBody:
    """The share of one request."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.size = 0
        """Bytes that have come."""

    def announce(self, size: int) -> None:
        """Refuse a body early that would not fit now. Raises `TooManyRequests`."""
        budget = self._budget
        if budget.held + size > budget.limit:
            raise TooManyRequests(
                f"{budget.held} bytes of other requests wait, and {size} more would be over the "
                f"{budget.limit} that may; retry later",
                retry_after=RETRY_SECONDS,
            )

    def grow(self, size: int) -> None:
        """Bytes have come. Raises `TooManyRequests`."""
        self.announce(size)
        self.size += size
        self._budget.held += size

    def let_go(self) -> None:
        """The bytes are not needed any more; again is no matter."""
        self._budget.held -= self.size
        self.size = 0
