"""When requests begin: a few in each iteration of the event loop.

Whoever asks for a probe waits for a few of them and not for all that a crowd has sent, and a request that is
given up meanwhile costs nothing more. The connections of our server (`limited_protocol`) take turns here.
"""

import asyncio
import contextvars
from collections import deque
from typing import Protocol

A_TURN = 8
"""Requests that begin in one iteration, probes left out; as many more may have waited for it."""


class Continuing(Protocol):
    """A connection with a request that has not begun."""

    def go_on(self) -> None:
        """Begin with the request."""


class RequestTurns:
    """The order in which requests of one server begin."""

    def __init__(self) -> None:
        self._waiting: deque[Continuing] = deque()
        self._begun = 0
        """In this iteration."""
        self._scheduled = False

    def take(self) -> bool:
        """Whether a request that has just come may begin at once."""
        if self._waiting or self._begun >= A_TURN:
            return False
        self._begun += 1
        if not self._scheduled:
            self._schedule()
        return True

    def wait(self, connection: Continuing) -> None:
        """Let the connection go on when its turn comes."""
        self._waiting.append(connection)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        # Nothing of the request that was answered last belongs to those that follow.
        asyncio.get_running_loop().call_soon(self._take, context=contextvars.Context())

    def _take(self) -> None:
        self._scheduled, self._begun = False, 0
        for _ in range(min(A_TURN, len(self._waiting))):
            self._waiting.popleft().go_on()
        if self._waiting and not self._scheduled:
            self._schedule()
