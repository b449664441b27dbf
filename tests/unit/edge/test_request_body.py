"""Reading a body within limits."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mamba_edge.errors import BodyTooLarge, RequestTimeout
from mamba_edge.exchange.request_body import ClientGone, find_header, read_body
from virtual_time import in_virtual_time


def receiver(*messages: dict[str, Any]) -> Callable[[], Awaitable[Any]]:
    waiting = list(messages)

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.sleep(3600)
        return waiting.pop(0)

    return receive


def part(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_parts_of_a_body_are_joined() -> None:
    body = await read_body([], receiver(part(b"ab"), part(b""), part(b"c", more=False)), 3)
    assert body == b"abc"


async def test_a_body_is_refused_as_soon_as_it_is_too_large() -> None:
    with pytest.raises(BodyTooLarge, match="more than 3 bytes"):
        await read_body([], receiver(part(b"ab"), part(b"cd")), 3)


@in_virtual_time
async def test_a_body_that_does_not_come_is_given_up() -> None:
    with pytest.raises(RequestTimeout, match=r"60 s") as caught:
        await read_body([], receiver(part(b"ab")), 10)
    assert caught.value.headers()["connection"] == "close"


async def test_a_client_that_leaves_is_not_waited_for() -> None:
    with pytest.raises(ClientGone):
        await read_body([], receiver(part(b"ab"), {"type": "http.disconnect"}), 10)


class Counting:
    """A receive that remembers how many bytes were taken from it; with nothing left, a body without end."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._messages = list(messages)
        self.taken = 0

    async def __call__(self) -> dict[str, Any]:
        message = self._messages.pop(0) if self._messages else part(b"x" * 10)
        self.taken += len(message["body"])
        return message


LENGTH = (b"Content-Length", b"101")


async def test_a_declared_length_over_the_limit_is_refused_before_anything_is_read() -> None:
    receive = Counting()
    with pytest.raises(BodyTooLarge, match="101 bytes") as caught:
        await read_body([LENGTH], receive, 100)
    assert receive.taken == 0
    assert "connection" not in caught.value.headers()


async def test_where_the_rest_is_dropped_a_client_that_still_writes_gets_the_answer_and_the_end() -> None:
    receive = Counting(part(b"x" * 60), part(b"x" * 41, more=False))
    with pytest.raises(BodyTooLarge, match="101 bytes") as caught:
        await read_body([LENGTH], receive, 100, discard=400)
    assert receive.taken == 101
    assert caught.value.headers() == {"connection": "close"}
    growing = Counting(part(b"ab"), part(b"cd"), part(b"ef", more=False))
    with pytest.raises(BodyTooLarge, match="more than 3 bytes"):
        await read_body([], growing, 3, discard=12)
    assert growing.taken == 6


async def test_of_a_body_without_end_no_more_than_said_is_dropped() -> None:
    receive = Counting()
    with pytest.raises(BodyTooLarge):
        await read_body([], receive, 100, discard=400)
    assert 500 <= receive.taken <= 520


@in_virtual_time
async def test_dropping_ends_after_a_while_when_nothing_comes() -> None:
    with pytest.raises(BodyTooLarge):
        await read_body([LENGTH], receiver(), 100, discard=400)


async def test_a_client_that_asks_before_it_sends_is_not_made_to_send() -> None:
    receive = Counting()
    with pytest.raises(BodyTooLarge):
        await read_body([LENGTH, (b"expect", b"100-continue")], receive, 100, discard=400)
    assert receive.taken == 0


def test_a_header_is_found_in_any_case_and_the_first_one_counts() -> None:
    headers = [(b"X-A", b"1"), (b"x-a", b"2")]
    assert (find_header(headers, b"x-a"), find_header(headers, b"x-b")) == (b"1", None)
