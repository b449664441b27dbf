"""How an answer leaves, and what happens to the work when the client does."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from eventually import turns
from mamba_edge.errors import InvalidRequest
from mamba_edge.request_body import ClientGone
from mamba_edge.sending import send_events, send_json, while_connected


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
