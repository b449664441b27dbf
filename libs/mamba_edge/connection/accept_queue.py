"""The queue of connections that clients have opened and the server has not accepted.

uvloop accepts one connection in each iteration of its loop. When a crowd comes, whoever asks for a probe
would wait for as many iterations as connections came before, each with the work of all others in it. Used by
the HTTP server; knows nothing of HTTP.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence

AT_ONCE = 32
"""Most connections that are accepted in one iteration beside the loop's own."""


class AcceptQueue:
    """The connections that wait at listening sockets."""

    def __init__(self, sockets: Sequence[socket.socket], protocol: Callable[[], asyncio.Protocol]) -> None:
        self._sockets, self._protocol = sockets, protocol
        self._looked = False
        """In this iteration."""
        self._opening: set[asyncio.Task[object]] = set()
        self._closed = False

    def accept(self) -> None:
        """Accept more connections, once in each iteration: the loop has just accepted one."""
        if self._looked or self._closed:
            return
        self._looked = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self._look_again)
        left = AT_ONCE
        for listener in self._sockets:
            # None waits, no file is left for one, or the socket has been closed: the loop's own accept knows.
            with contextlib.suppress(OSError):
                while left:
                    connection, _ = listener.accept()
                    left -= 1
                    connection.setblocking(False)
                    opening = loop.create_task(self._open(connection))
                    self._opening.add(opening)
                    opening.add_done_callback(self._opening.discard)

    def close(self) -> None:
        """Accept no more."""
        self._closed = True

    def _look_again(self) -> None:
        self._looked = False

    async def _open(self, connection: socket.socket) -> None:
        # A client that has left meanwhile.
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
