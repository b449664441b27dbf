"""Starts requests a few at a time, in each iteration of the event loop.

A probe waits for a few requests and not for all that a crowd of clients has sent, and a request that is
abandoned while it waits costs nothing more. The connections of our server (`limited_protocol`) take turns
here.
"""

import asyncio
import contextvars
from collections import deque
from typing import Protocol

REQUESTS_PER_TURN = 8
"""Requests that begin in one iteration, probes excluded. As many more may have waited for their turn."""


class Continuing(Protocol):
    """A connection with a request that has not begun."""

    def go_on(self) -> None:
        """Begin with the request."""


class RequestTurns:
    """The order in which requests of one server begin."""

    def __init__(self) -> None:
        self._waiting: deque[Continuing] = deque()
        self._begun = 0
        """Number of requests that began since the count started, at least those of this iteration."""
        self._scheduled = False

    def take(self) -> bool:
        """Return whether a request that has just arrived may begin at once, and count it if so."""
        if self._waiting or self._begun >= REQUESTS_PER_TURN:
            return False
        self._begun += 1
        # The count starts anew once it is full, and not in each iteration: scheduling that costs time, and a
        # full count that comes from several iterations only bounds the last of them more strictly.
        if self._begun == REQUESTS_PER_TURN and not self._scheduled:
            self._schedule()
        return True

    def wait(self, connection: Continuing) -> None:
        """Let the connection continue when its turn comes."""
        self._waiting.append(connection)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        # The context of the request that was answered last must not reach the following ones.
        asyncio.get_running_loop().call_soon(self._take, context=contextvars.Context())

    def _take(self) -> None:
        self._scheduled, self._begun = False, 0
        for _ in range(min(REQUESTS_PER_TURN, len(self._waiting))):
            self._waiting.popleft().go_on()
        if self._waiting and not self._scheduled:
            self._schedule()
