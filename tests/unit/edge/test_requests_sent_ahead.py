"""Requests that clients send before they have the answers of earlier ones: order, and turns of clients."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from eventually import turns, until
from mamba_edge.connection.http_server import HttpServer
from mamba_edge.listener import listen

CLIENTS = 100
AHEAD = 50
GET = b"GET /first HTTP/1.1\r\nHost: x\r\n\r\n"
OFFER = GET[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
CHUNKED = (
    b"POST /second HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"6\r\na\r\n\r\nb\r\n0\r\nX-Trailer: y\r\n\r\n"
)
LENGTH = b"POST /third HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\na\r\n\r\nb\n"
LAST = b"\r\n\r\n\r\nGET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class Application:
    """Answers each request with its path and body, and counts them; may be told to wait."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        self.begun += 1
        body, more = b"", True
        while more:
            message = await receive()
            assert message["type"] == "http.request"
            body, more = body + message["body"], message["more_body"]
        await self.go.wait()
        body = b"<%b %b>" % (scope["path"].encode(), body.hex().encode())
        head = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving(app: Application) -> AsyncIterator[int]:
    listener = listen("127.0.0.1", 0)
    server = HttpServer(app, last_bytes_seconds=1)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    await until(lambda: server.started)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await running
        listener.close()


async def answers(port: int, *parts: bytes) -> bytes:
    """Return all that comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        # Each part is read by itself.
        await turns(10)
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    return answer


async def test_who_sends_one_request_is_answered_before_the_many_that_others_sent_ahead() -> None:
    app = Application()
    async with serving(app) as port:
        many = [socket.create_connection(("127.0.0.1", port)) for _ in range(CLIENTS)]
        for client in many:
            client.sendall(OFFER * AHEAD)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await reader.readuntil(b">")
        # One of each client may have begun, and some more while the one was read and answered.
        assert app.begun < 1.5 * CLIENTS
        await until(lambda: app.begun == CLIENTS * AHEAD + 1)
        writer.close()
        for client in many:
            client.close()


@pytest.mark.parametrize("cuts", [1, 2, 3])
async def test_requests_sent_ahead_are_answered_one_by_one_however_they_are_cut(cuts: int) -> None:
    app = Application()
    whole = GET + CHUNKED + OFFER + LENGTH + LAST
    want = [b"</first >", b"</second 610d0a0d0a62>", b"</first >", b"</third 610d0a0d0a620a>", b"</last >"]
    async with serving(app) as port:
        cut_up = [
            [whole[:at], *(whole[at + n : at + n + 1] for n in range(cuts - 1)), whole[at + cuts - 1 :]]
            for at in range(1, len(whole) - cuts)
        ]
        found = await asyncio.gather(*(answers(port, *parts) for parts in cut_up))
    for parts, answer in zip(cut_up, found, strict=True):
        assert answer.count(b"HTTP/1.1 200 ") == len(want), parts
        places = [answer.find(each, at) for at, each in zip(range(0, len(answer), 10), want, strict=False)]
        assert -1 not in places, (parts, answer)


async def test_what_is_no_request_does_not_cost_the_answer_of_the_request_before_it() -> None:
    app = Application()
    app.go.clear()
    async with serving(app) as port:
        asking = asyncio.create_task(answers(port, GET + b"\x16\x03\x01 no request\r\n\r\n"))
        await until(lambda: app.begun == 1)
        app.go.set()
        answer = await asking
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 400 " in answer


async def test_a_client_that_sends_ahead_without_end_is_not_read_without_end() -> None:
    app = Application()
    app.go.clear()
    async with serving(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        count = 2**25 // len(GET)
        writer.write(GET * count)
        await until(lambda: app.begun == 1)
        await turns(1000)
        # The rest waits in the sockets of both sides.
        assert writer.transport.get_write_buffer_size() > 2**23
        app.go.set()
        for _ in range(100):
            await reader.readuntil(b">")
        writer.transport.abort()
