"""Crowds of connections at the server: who asks for a probe, and what is given up, beside many requests."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from eventually import until
from mamba_edge.connection.connection_room import ConnectionRoom
from mamba_edge.connection.http_server import HttpServer
from mamba_edge.listener import listen
from mamba_settings.http_limits import HttpLimits

CROWD = 200
FEW = 12
REQUEST = b"POST /work HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
PROBE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


class Application:
    """Answers probes, and counts other requests, which it holds until it may go on."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = asyncio.Event()

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        if scope["path"] != "/livez":
            self.begun += 1
            await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving(
    app: Application, limits: HttpLimits | None = None
) -> AsyncIterator[tuple[HttpServer, int]]:
    listener = listen("127.0.0.1", 0)
    server = HttpServer(app, last_bytes_seconds=1, limits=limits)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    await until(lambda: server.started)
    try:
        yield server, listener.getsockname()[1]
    finally:
        app.go.set()
        server.should_exit = True
        await running
        listener.close()


def crowd(port: int, sent: bytes, count: int) -> list[socket.socket]:
    """Return clients that have sent the bytes, of which the server knows nothing yet."""
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for client in clients:
        client.sendall(sent)
    return clients


async def answered(client: socket.socket) -> None:
    client.setblocking(False)
    answer = b""
    while not answer.endswith(b"ok"):
        answer += await asyncio.get_running_loop().sock_recv(client, 1000)
    client.close()


async def test_a_probe_is_answered_before_the_requests_of_a_crowd_have_begun() -> None:
    app = Application()
    async with serving(app) as (_, port):
        clients = crowd(port, REQUEST, CROWD)
        await answered(*crowd(port, PROBE, 1))
        assert app.begun < CROWD / 2
        app.go.set()
        await asyncio.gather(*map(answered, clients))
        assert app.begun == CROWD


async def test_what_a_crowd_gives_up_at_once_does_not_begin() -> None:
    app = Application()
    async with serving(app) as (server, port):
        for client in crowd(port, REQUEST, CROWD):
            client.close()
        await until(lambda: server.server_state.connections)
        await until(lambda: not server.server_state.connections)
        assert app.begun < CROWD / 2


async def iterations_until_a_probe_is_answered() -> int:
    """Count uvloop's iterations until a probe is answered, with many connections opened before."""
    iterations = 0

    async def count() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    async with serving(Application()) as (_, port):
        clients = crowd(port, b"", CROWD)
        [probe] = crowd(port, PROBE, 1)
        counting = asyncio.create_task(count())
        await answered(probe)
        counting.cancel()
        for client in clients:
            client.close()
    return iterations


def test_a_probe_does_not_wait_for_an_iteration_of_the_loop_for_each_connection_before_it() -> None:
    assert uvloop.run(iterations_until_a_probe_is_answered()) < CROWD / 2


async def answers_of_probes_before_a_crowd(sent: bytes) -> None:
    """Send probes that arrive just before many connections, at a server that has no room left."""
    async with serving(Application(), HttpLimits(max_connections=FEW)) as (server, port):
        waiting = crowd(port, b"", FEW)
        await until(lambda: len(server.server_state.connections) >= FEW)
        for _ in range(5):
            probes = crowd(port, PROBE, 2)
            clients = crowd(port, sent, CROWD)
            await asyncio.gather(*map(answered, probes))
            for client in clients:
                client.close()
        for client in waiting:
            client.close()


@pytest.mark.parametrize("sent", [b"", REQUEST[:20], REQUEST])
def test_a_probe_is_read_before_later_connections_take_its_place(sent: bytes) -> None:
    uvloop.run(answers_of_probes_before_a_crowd(sent))


class Connection:
    """A connection that tells whether it was closed."""

    closed = False

    def evict(self) -> None:
        self.closed = True


def test_a_client_that_has_not_written_yet_outlasts_older_ones_whose_probes_are_never_read() -> None:
    room = ConnectionRoom(FEW)
    unread, late = [Connection() for _ in range(3 * FEW)], [Connection() for _ in range(3)]
    for connection in unread:
        room.enter(connection)
        room.admit(connection, "/livez", 0.0)
    for connection in late:
        room.enter(connection)
        room.end_first_read(connection)
    assert [connection.closed for connection in late] == [False] * len(late)
    assert sum(not connection.closed for connection in unread) == FEW - len(late)


def test_a_client_that_sends_probes_without_end_does_not_outlast_one_that_has_just_come() -> None:
    room = ConnectionRoom(FEW)
    probing, late = [Connection() for _ in range(FEW)], Connection()
    for connection in probing:
        room.enter(connection)
        room.admit(connection, "/livez", 0.0)
    room.enter(late)
    room.end_first_read(late)
    for connection in probing:
        if not connection.closed:
            room.admit(connection, "/livez", 0.0)
            room.wait(connection)
    others = [Connection() for _ in range(FEW - 2)]
    for connection in others:
        room.enter(connection)
        room.end_first_read(connection)
    assert not late.closed
