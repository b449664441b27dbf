"""Requests that wait at the server: behind one that is not answered yet, or for their turn.

One connection can bring thousands of requests in one read. They wait as bytes, and not as parsed requests:
otherwise the reads of a few hundred such connections would block the event loop for a second. Requests start
a few at a time, in each iteration of the event loop: a probe waits for a few requests and not for all that a
crowd of clients has sent, and a request that is abandoned while it waits costs nothing more. The connections
of our server (`limited_protocol`) hold requests and take turns here; this module does not interpret them.
"""

import asyncio
import contextvars
from collections import deque
from typing import Protocol

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl

_HEAD_END = b"\r\n\r\n"
_NEWLINES = b"\r\n"


class HoldingFlow(FlowControl):
    """Flow control of one connection, which also stops reading while many unparsed bytes are held."""

    full = False

    def resume_reading(self) -> None:
        """Continue to read if few bytes are held."""
        if self.read_paused and not self.full:
            super().resume_reading()


class HeldRequests:
    """Bytes that a connection has read and cannot parse yet, because an earlier request is not answered."""

    def __init__(self, flow: HoldingFlow) -> None:
        self._flow = flow
        self.data = b""
        """Bytes that are held from the position `_start` on; empty = nothing is held."""
        self._start = 0

    def hold(self, data: bytes, start: int = 0) -> None:
        """Keep the data from `start` on, behind the bytes that are held already."""
        if self.data:
            data, start = self.data[self._start :] + data[start:], 0
        self.data, self._start = data, start
        if len(data) - start > HIGH_WATER_LIMIT:
            self._flow.full = True
            self._flow.pause_reading()

    def release(self) -> tuple[bytes, int]:
        """Return all bytes that are held, and the position in them where the next request begins."""
        held = self.data, self._start
        self.data, self._start = b"", 0
        self._flow.full = False
        return held


def end_of_part(data: bytes, start: int, *, continued: bool) -> int:
    """Return where to stop feeding a parser from `start` on, so that it finishes at most one request.

    Each head and each body in chunks ends with an empty line. `continued` says that the data continues a head
    or a body in chunks, whose empty line may have begun before the data.
    """
    first = data[start : start + len(_HEAD_END)]
    if first[:1] in (b"\r", b"\n"):
        if continued:
            return start + len(first) - len(first.lstrip(_NEWLINES))
        # Empty lines between requests are skipped.
        search = len(data) - len(data[start:].lstrip(_NEWLINES))
    else:
        search = start
    position = data.find(_HEAD_END, search)
    return len(data) if position < 0 else position + len(_HEAD_END)


REQUESTS_PER_TURN = 8
"""Number of requests, without probes, that may begin in one iteration of the event loop. As many more that
waited for their turn may begin in the same iteration."""


class Continuing(Protocol):
    """A connection whose next request has arrived and waits until the server may start to process it."""

    def go_on(self) -> None:
        """Start to process the request that waited; `RequestTurns` calls this when its turn has come."""


class RequestTurns:
    """Starts the requests of one server in the order of their arrival, a few in each event-loop iteration."""

    def __init__(self) -> None:
        self._waiting: deque[Continuing] = deque()
        self._begun = 0
        """Number of requests that have begun since this number was last set to 0."""
        self._scheduled = False

    def take(self) -> bool:
        """Return whether a request that has just arrived may be processed at once; if so, count it.

        If the result is False, the caller calls `wait`.
        """
        if self._waiting or self._begun >= REQUESTS_PER_TURN:
            return False
        self._begun += 1
        # The count starts anew once it is full, and not in each iteration: scheduling that costs time, and a
        # full count that comes from several iterations only bounds the last of them more strictly.
        if self._begun == REQUESTS_PER_TURN and not self._scheduled:
            self._schedule()
        return True

    def wait(self, connection: Continuing) -> None:
        """Call `connection.go_on` in a later event-loop iteration, behind the requests that wait already."""
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
