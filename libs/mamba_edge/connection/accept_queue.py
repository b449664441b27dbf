"""The queue of connections that clients have opened and the server has not accepted.

uvloop accepts one connection in each iteration of its loop. When many clients connect at once, a probe would
wait for as many iterations as connections came before it, each with the work of all others in it. Used by the
HTTP server; this module knows nothing of HTTP.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence

ACCEPTS_PER_ITERATION = 32
"""Connections that are accepted in one iteration at most, besides the loop's own."""


class AcceptQueue:
    """The connections that wait at listening sockets."""

    def __init__(self, sockets: Sequence[socket.socket], protocol: Callable[[], asyncio.Protocol]) -> None:
        self._sockets, self._protocol = sockets, protocol
        self._accepted = False
        """Whether connections were accepted in this iteration."""
        self._opening: set[asyncio.Task[object]] = set()
        self._closed = False

    def accept(self) -> None:
        """Accept more connections when the loop has just accepted one, at most once in each iteration."""
        if self._accepted or self._closed:
            return
        self._accepted = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self._end_iteration)
        left = ACCEPTS_PER_ITERATION
        for listener in self._sockets:
            # No connection waits, no file is free, or the socket is closed: the loop's own accept handles it.
            with contextlib.suppress(OSError):
                while left:
                    connection, _ = listener.accept()
                    left -= 1
                    connection.setblocking(False)
                    opening = loop.create_task(self._open(connection))
                    self._opening.add(opening)
                    opening.add_done_callback(self._opening.discard)

    def close(self) -> None:
        """Stop accepting connections."""
        self._closed = True

    def _end_iteration(self) -> None:
        self._accepted = False

    async def _open(self, connection: socket.socket) -> None:
        # The client may have left in the meantime.
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
