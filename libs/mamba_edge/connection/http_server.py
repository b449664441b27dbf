"""The HTTP server of all processes: uvicorn, whose connections have limits (`limited_protocol`).

uvloop accepts one connection in each iteration of its loop. When many clients connect at once, a probe would
wait for one iteration for each connection before it, and every iteration also does the work of all open
connections. So the server accepts further connections from its `AcceptQueue` in the same iteration.
"""

import asyncio
import contextlib
import functools
import resource
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from mamba_edge.connection.connection_room import ConnectionRoom
from mamba_edge.connection.limited_protocol import LimitedProtocol
from mamba_edge.connection.waiting_requests import RequestTurns
from mamba_settings.http_limits import HttpLimits
from mamba_telemetry.logs import get_logger

ACCEPTS_PER_ITERATION = 32
"""Connections that are accepted in one iteration at most, besides the loop's own."""


class AcceptQueue:
    """The listening sockets of a server, from which more than one connection is accepted in an iteration.

    Connections for which the server has no place stay in the queues of the sockets.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        protocol: Callable[[], asyncio.Protocol],
        room: ConnectionRoom,
    ) -> None:
        self._sockets, self._protocol, self._room = sockets, protocol, room
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
        left = min(ACCEPTS_PER_ITERATION, self._room.places - len(self._opening))
        for listener in self._sockets:
            # No connection waits, no file is free, or the socket is closed: the loop's own accept handles it.
            with contextlib.suppress(OSError):
                while left > 0:
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


log = get_logger(__name__)

OTHER_FILES = 256
"""Files that a process needs besides its connections."""
MIN_CONNECTIONS = 16
"""Connections that are allowed however few files the process may open."""
_CLOSE = (b"connection", b"close")


class HttpServer(uvicorn.Server):
    """A server that serves one application on listening sockets.

    It does not handle signals: the process drains before it stops.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        last_bytes_seconds: int | None,
        limits: HttpLimits | None = None,
        more_files: int = 0,
    ) -> None:
        """Prepare a server, and raise the process's limit of open files for its connections if possible.

        Args:
            app: the application.
            last_bytes_seconds: seconds for which a server that stops waits for open connections to send
                their last bytes; None = no limit.
            limits: limits of connections and requests; None = the defaults.
            more_files: number of files that the application opens for its requests, besides connections.
        """
        self._queue: AcceptQueue | None = None
        limits = limits or HttpLimits()
        requests = limits.max_connections
        connections = requests + ConnectionRoom.spare_of(requests)
        allowed = _connections_allowed(connections, more_files)
        self._room = room = ConnectionRoom(max(1, requests * allowed // connections))
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(
                    "Any",
                    functools.partial(
                        LimitedProtocol,
                        limits=limits,
                        room=room,
                        turns=RequestTurns(),
                        opened=self._on_opened,
                    ),
                ),
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # the address of a client is not used
                timeout_keep_alive=cast("int", limits.keep_alive_timeout),
                timeout_graceful_shutdown=last_bytes_seconds,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        self._queue = AcceptQueue(sockets or (), self._connection, self._room)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, and close those that are open."""
        if self._queue is not None:
            self._queue.close()
        await super().shutdown(sockets)

    def _on_opened(self) -> None:
        if self._queue is not None:
            self._queue.accept()

    def _connection(self) -> asyncio.Protocol:
        make = cast("Any", self.config.http_protocol_class)
        return cast(
            "asyncio.Protocol",
            make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state),
        )

    def leave(self) -> None:
        """Make every answer from now on close its connection, so that clients reconnect to another server.

        Idle connections stay open: closing one could collide with a request that is on its way.
        """
        # uvicorn rebuilds the state's own list each second, from the configured headers.
        self.config.encoded_headers.append(_CLOSE)
        self.server_state.default_headers = [*self.server_state.default_headers, _CLOSE]
        for connection in self.server_state.connections:
            cycle = getattr(connection, "cycle", None)
            # Headers that were sent have promised to keep the connection open: its next answer closes it.
            if cycle is not None and not cycle.response_started:
                cycle.keep_alive = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


def _connections_allowed(connections: int, more_files: int = 0) -> int:
    """Raise the process's limit of open files, and return how many of `connections` fit below the limit.

    `more_files` is the number of files that the application opens. The result is at least `MIN_CONNECTIONS`.
    The limit at the start of a process is often a thousand, and the process may raise it far above that.
    Without a free file, the process could accept no connection at all.
    """
    files = connections + more_files + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= files:
        return connections
    allowed = files if hard == resource.RLIM_INFINITY else min(files, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed >= files:
        return connections
    fits = max(min(connections, MIN_CONNECTIONS), allowed - more_files - OTHER_FILES)
    log.warning(
        "few_open_files", connections=fits, wanted=connections, allowed=allowed,
        remedy="raise the hard limit of open files (ulimit -Hn), or lower --max-connections",
    )  # fmt: skip
    return fits
