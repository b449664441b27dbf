"""Sending of an answer, and the end of its work when the client leaves."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eventually import turns, until
from mamba_edge.connection.direct_exchange import DIRECT, DirectExchange
from mamba_edge.connection.http_server import HttpServer
from mamba_edge.errors import InvalidRequest
from mamba_edge.exchange.asgi_responses import DisconnectWatch, send_events, send_json, while_connected
from mamba_edge.exchange.request_body import ClientGone, read_body
from mamba_edge.listener import listen


class Client:
    """The other side: takes messages, may leave, may refuse to take more."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.left = asyncio.Event()
        self.breaks_at: int | None = None

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self.breaks_at == len(self.messages):
            raise OSError("broken pipe")
        self.messages.append(message)


async def test_events_follow_their_headers_and_an_empty_end() -> None:
    async def events() -> AsyncGenerator[bytes]:
        yield b"data: 1\n\n"
        yield b"data: 2\n\n"

    client = Client()
    await send_events(client.send, events())
    assert [message.get("body") for message in client.messages] == [None, b"data: 1\n\n", b"data: 2\n\n", b""]
    assert [message.get("more_body", False) for message in client.messages[1:]] == [True, True, False]


class Exchange:
    """Takes what can be written at once; the parts that it refuses are in `refused`."""

    def __init__(self, *refused: bytes) -> None:
        self.refused = refused
        self.written: list[bytes] = []

    def write(self, part: bytes) -> bool:
        if part in self.refused:
            return False
        self.written.append(part)
        return True


async def test_events_after_the_first_are_written_past_send_unless_the_client_is_slow() -> None:
    async def events() -> AsyncGenerator[bytes]:
        for event in (b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n", b"data: 4\n\n"):
            yield event

    client, exchange = Client(), Exchange(b"data: 3\n\n")
    await send_events(client.send, events(), cast("Any", exchange))
    assert exchange.written == [b"data: 2\n\n", b"data: 4\n\n"]
    sent = [message["body"] for message in client.messages[1:]]
    assert sent == [b"data: 1\n\n", b"data: 3\n\n", b""]


async def test_an_error_before_the_first_event_leaves_room_for_a_status() -> None:
    async def events() -> AsyncGenerator[bytes]:
        raise InvalidRequest("no")
        yield b""

    client = Client()
    with pytest.raises(InvalidRequest):
        await send_events(client.send, events())
    assert client.messages == []


async def test_a_client_that_cannot_be_written_to_closes_the_source() -> None:
    closed = []

    async def events() -> AsyncGenerator[bytes]:
        try:
            while True:
                yield b"data: 1\n\n"
        finally:
            closed.append(True)

    client = Client()
    client.breaks_at = 3
    with pytest.raises(OSError, match="broken pipe"):
        await send_events(client.send, events())
    assert closed == [True]


async def test_a_json_answer_declares_its_length_in_bytes() -> None:
    client = Client()
    await send_json(client.send, '"\u4e16"'.encode(), 418, {"x-more": "1"})
    headers = dict(client.messages[0]["headers"])
    assert (client.messages[0]["status"], headers[b"content-length"]) == (418, b"5")
    assert (headers[b"content-type"], headers[b"x-more"]) == (b"application/json", b"1")


async def test_work_that_ends_is_the_end_and_its_error_comes_through() -> None:
    client = Client()
    done = []

    async def work() -> None:
        done.append(True)

    async def broken() -> None:
        raise InvalidRequest("no")

    await while_connected(client.receive, work())
    with pytest.raises(InvalidRequest, match="no"):
        await while_connected(client.receive, broken())
    assert done == [True]
    assert len(asyncio.all_tasks()) == 1


async def test_a_client_that_leaves_cancels_the_work_and_waits_for_its_cleanup() -> None:
    client = Client()
    story: list[str] = []

    async def work() -> None:
        try:
            client.left.set()
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            story.append("cleaned up")

    with pytest.raises(ClientGone):
        await while_connected(client.receive, work())
    assert story == ["cleaned up"]
    assert len(asyncio.all_tasks()) == 1


async def test_a_cleanup_that_fails_does_not_hide_that_the_client_left() -> None:
    client = Client()

    async def work() -> None:
        try:
            client.left.set()
            await asyncio.sleep(3600)
        finally:
            raise RuntimeError("in the cleanup")

    with pytest.raises(ClientGone):
        await while_connected(client.receive, work())


async def test_more_of_the_body_is_not_a_client_that_left() -> None:
    parts = [{"type": "http.request", "body": b"late", "more_body": False}] * 3

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        await asyncio.sleep(3600)
        raise AssertionError

    async def work() -> None:
        await turns()

    await while_connected(receive, work())
    assert parts == []


async def test_cancelling_from_outside_cancels_the_work() -> None:
    client = Client()
    begun, story = asyncio.Event(), []

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            story.append("cancelled")

    task = asyncio.create_task(while_connected(client.receive, work()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert story == ["cancelled"]
    assert len(asyncio.all_tasks()) == 1


async def test_a_server_that_calls_back_is_not_asked_and_a_client_that_leaves_later_disturbs_nobody() -> None:
    leaves: list[Any] = []
    heard: list[str] = []

    async def receive() -> Any:
        raise AssertionError("asked")

    direct = SimpleNamespace(on_disconnect=leaves.append)
    with DisconnectWatch(cast("DirectExchange", direct), receive, lambda: heard.append("left")):
        leaves[0]()
    assert (heard, leaves[1:]) == (["left"], [None])


async def test_at_other_servers_the_one_who_is_told_hears_of_the_end_of_the_connection() -> None:
    client = Client()
    heard: list[str] = []
    with DisconnectWatch(None, client.receive, lambda: heard.append("left")):
        await turns()
        assert heard == []
        client.left.set()
        await turns()
        assert heard == ["left"]


@pytest.mark.parametrize("size", [2, 1 << 20])
async def test_our_server_tells_at_once_that_the_client_left_however_large_its_body_was(size: int) -> None:
    heard: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_body(scope["headers"], receive, 2 << 20)
        with DisconnectWatch(scope[DIRECT], receive, lambda: heard.append("left")):
            heard.append("read")
            await until(lambda: len(heard) > 1)

    async with served(app) as (_, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
        await until(lambda: heard == ["read"])
        writer.transport.abort()
        await until(lambda: heard == ["read", "left"])


START = {"type": "http.response.start", "status": 200, "headers": []}


def part(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def test_what_is_written_at_once_stands_in_the_body_where_a_message_would() -> None:
    said: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        write = scope[DIRECT].write
        said.append(write(b"too early"))
        await send(START)
        await send(part(b"one "))
        said.append(write(b"two "))
        await send(part(b"three "))
        said.append(write(b""))
        said.append(write(b"four"))
        await send(part(b"", more=False))
        said.append(write(b"too late"))

    async with served(app) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await reader.readuntil(b"0\r\n\r\n")
    body = answer.partition(b"\r\n\r\n")[2]
    assert body == b"4\r\none \r\n4\r\ntwo \r\n6\r\nthree \r\n4\r\nfour\r\n0\r\n\r\n"
    assert said == [False, True, False, True, False]


@pytest.mark.parametrize(
    ("version", "headers"), [(b"1.1", [(b"content-length", b"8")]), (b"1.0", [])], ids=["length", "old"]
)
async def test_a_body_that_is_no_chunks_is_left_to_messages(version: bytes, headers: Any) -> None:
    said: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({**START, "headers": headers})
        await send(part(b"one "))
        said.append(scope[DIRECT].write(b"two "))
        await send(part(b"last", more=False))

    async with served(app) as (reader, writer):
        writer.write(b"GET / HTTP/%b\r\nHost: x\r\nConnection: close\r\n\r\n" % version)
        answer = await reader.read()
    assert answer.endswith(b"\r\n\r\none last")
    assert said == [False]


async def test_a_client_that_does_not_read_gets_no_more_than_fits() -> None:
    written = 0
    over = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal written
        await send(START)
        await send(part(b"x"))
        while written < 1000 and scope[DIRECT].write(bytes(64 * 1024)):
            written += 1
        over.set()

    async with served(app) as (_, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await over.wait()
        assert written < 1000


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a connection to a server of `app`."""
    listener = listen("127.0.0.1", 0)
    server = HttpServer(app, last_bytes_seconds=1)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        server.should_exit = True
        await running
