"""Limits the bytes of request bodies that one process holds at once, over all its requests.

The request middleware gives each request a share of the budget and takes it back at the request's end. The
reader of a body takes from the share as the bytes arrive. A body that is announced and never sent takes
nothing.
"""

import math

from mamba_edge.errors import TooManyBodies


class BodyBudget:
    """A budget of at most `limit` bytes; None = no limit."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self.held = 0
        """Bytes of bodies that are held now."""

    @classmethod
    def with_room_for_one(cls, limit: int, largest: int) -> "BodyBudget":
        """Return a budget of at most `limit` bytes that fits at least one body of the `largest` size."""
        return cls(max(limit, largest))

    @property
    def room(self) -> float:
        """Return the number of bytes that are left."""
        return math.inf if self._limit is None else self._limit - self.held

    def check(self, size: int) -> None:
        """Raise TooManyBodies unless `size` more bytes fit."""
        if self._limit is not None and self.held + size > self._limit:
            raise TooManyBodies(
                f"the requests under way hold {self.held} bytes of bodies; with {size} more there would be "
                f"over {self._limit}; try again later"
            )


class BodyShare:
    """The bytes of a budget that one request holds."""

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size = 0

    @property
    def room(self) -> float:
        """Return the number of bytes that the request may take now."""
        return self._budget.room

    def check(self, size: int) -> None:
        """Raise TooManyBodies unless a body of `size` bytes would fit now."""
        self._budget.check(size)

    def take(self, size: int) -> None:
        """Take `size` bytes that arrived. Raises TooManyBodies."""
        self._budget.check(size)
        self._budget.held += size
        self._size += size

    def release(self) -> None:
        """Give all bytes back."""
        self._budget.held -= self._size
        self._size = 0
