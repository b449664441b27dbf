"""How many bytes of request bodies one process holds at once, over all its requests.

The request middleware gives each request a share of the budget and takes it back at the request's end;
whoever reads a body takes from the share as the bytes come. What is announced and never sent takes nothing.
"""

import math

from mamba_edge.errors import TooManyBodies


class BodyBudget:
    """At most `limit` bytes; None = no limit."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self.held = 0
        """Bytes of bodies that are held now."""

    @classmethod
    def with_room_for_one(cls, limit: int, largest: int) -> "BodyBudget":
        """At most `limit` bytes, but in any case one body of the `largest` size that is taken."""
        return cls(max(limit, largest))

    @property
    def room(self) -> float:
        """Bytes that are left."""
        return math.inf if self._limit is None else self._limit - self.held

    def check(self, size: int) -> None:
        """Whether so many more bytes would fit. Raises TooManyBodies."""
        if self._limit is not None and self.held + size > self._limit:
            raise TooManyBodies(
                f"the requests under way hold {self.held} bytes of bodies; with {size} more there would be "
                f"over {self._limit}; try again later"
            )


class BodyShare:
    """What one request holds of a budget."""

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size = 0

    @property
    def room(self) -> float:
        """Bytes that it may take now."""
        return self._budget.room

    def check(self, size: int) -> None:
        """Whether a body of so many bytes would fit now. Raises TooManyBodies."""
        self._budget.check(size)

    def take(self, size: int) -> None:
        """So many bytes came. Raises TooManyBodies."""
        self._budget.check(size)
        self._budget.held += size
        self._size += size

    def release(self) -> None:
        """The bytes are gone."""
        self._budget.held -= self._size
        self._size = 0
