"""The one HTTP server of all processes: uvicorn, whose connections have limits (`limited_protocol`)."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import Iterator
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from mamba_edge.connection.accept_queue import AcceptQueue
from mamba_edge.connection.connection_room import ConnectionRoom
from mamba_edge.connection.limited_protocol import LimitedProtocol
from mamba_edge.connection.open_files import connections_allowed
from mamba_edge.connection.request_turns import RequestTurns
from mamba_settings.http_limits import HttpLimits

_CLOSE = (b"connection", b"close")


class HttpServer(uvicorn.Server):
    """A server of one application. It leaves signals alone: the process drains before it stops."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        last_bytes_seconds: int | None,
        limits: HttpLimits | None = None,
        more_files: int = 0,
    ) -> None:
        """`last_bytes_seconds`: how long connections may take to close at the end; None: for ever.
        `more_files`: those that the application opens for its requests."""
        self._queue: AcceptQueue | None = None
        limits = limits or HttpLimits()
        most = limits.max_connections
        both = most + ConnectionRoom.spare_of(most)
        room = ConnectionRoom(max(1, most * connections_allowed(both, more_files) // both))
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(
                    "Any",
                    functools.partial(
                        LimitedProtocol, limits=limits, room=room, turns=RequestTurns(), opened=self._opened
                    ),
                ),
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # nothing asks where a client is
                timeout_keep_alive=cast("int", limits.keep_alive_timeout),
                timeout_graceful_shutdown=last_bytes_seconds,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        self._queue = AcceptQueue(sockets or (), self._connection)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and close what is open."""
        if self._queue is not None:
            self._queue.close()
        await super().shutdown(sockets)

    def _opened(self) -> None:
        if self._queue is not None:
            self._queue.accept()

    def _connection(self) -> asyncio.Protocol:
        make = cast("Any", self.config.http_protocol_class)
        return cast(
            "asyncio.Protocol",
            make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state),
        )

    def leave(self) -> None:
        """From now on each answer closes its connection, so that who sends again connects to somebody else.
        Idle connections stay: closing one could meet a request on its way."""
        # The state's own list is made anew each second, of the configured headers.
        self.config.encoded_headers.append(_CLOSE)
        self.server_state.default_headers = [*self.server_state.default_headers, _CLOSE]
        for connection in self.server_state.connections:
            cycle = getattr(connection, "cycle", None)
            # One whose headers are out has promised to stay open: the request that follows is told.
            if cycle is not None and not cycle.response_started:
                cycle.keep_alive = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing is captured."""
        yield
