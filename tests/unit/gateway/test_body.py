"""The body is read within limits; only the routing fields are decoded."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from mamba_gateway.body import DISCARDED_LIMITS, ClientGone, read_body, routing_fields
from mamba_gateway.errors import BodyTooLarge, BodyTooSlow, InvalidRequest


def arriving(*messages: dict[str, Any]) -> Any:
    left: Iterator[dict[str, Any]] = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(left)

    return receive


def part(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_parts_are_put_together() -> None:
    receive = arriving(part(b"ab"), part(b""), part(b"c", more=False))
    assert await read_body([], receive, 3, 1) == b"abc"


def counting(*messages: dict[str, Any]) -> tuple[Any, list[int]]:
    """A receive that remembers how many bytes were taken from it."""
    read, receive = [0], arriving(*messages)

    async def count() -> dict[str, Any]:
        message = await receive()
        read[0] += len(message.get("body", b""))
        return message

    return count, read


async def test_a_declared_length_over_the_limit_is_refused_and_read_so_that_the_answer_arrives() -> None:
    receive, read = counting(part(b"x" * 60), part(b"x" * 41, more=False))
    with pytest.raises(BodyTooLarge, match="101"):
        await read_body([(b"content-length", b"101")], receive, 100, 1)
    assert read == [101]


async def test_a_client_that_asks_before_it_sends_is_refused_before_anything_is_read() -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError("read")

    headers = [(b"content-length", b"101"), (b"expect", b"100-continue")]
    with pytest.raises(BodyTooLarge, match="101"):
        await read_body(headers, receive, 100, 1)


async def test_a_body_that_grows_over_the_limit_is_refused_and_its_rest_dropped() -> None:
    receive, read = counting(part(b"ab"), part(b"cd"), part(b"ef", more=False))
    with pytest.raises(BodyTooLarge):
        await read_body([], receive, 3, 1)
    assert read == [6]


async def test_no_more_than_a_few_limits_of_a_body_that_never_ends_are_dropped() -> None:
    read = 0

    async def receive() -> dict[str, Any]:
        nonlocal read
        read += 10
        return part(b"x" * 10)

    with pytest.raises(BodyTooLarge):
        await read_body([], receive, 100, 1)
    assert read <= (DISCARDED_LIMITS + 2) * 100


async def test_a_client_that_leaves_is_noticed() -> None:
    with pytest.raises(ClientGone):
        await read_body([], arriving(part(b"ab"), {"type": "http.disconnect"}), 100, 1)


async def test_a_client_that_does_not_send_is_not_waited_for() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(BodyTooSlow):
        await read_body([], receive, 100, 0.01)


def test_only_model_and_stream_are_read() -> None:
    found = routing_fields(b'{"prompt": [1,2], "stream": true, "model": "m", "tools": [{"a": {"model": 3}}]}')
    assert (found.model, found.stream) == ("m", True)
    assert (routing_fields(b"{}").model, routing_fields(b'{"model": null}').stream) == (None, None)


@pytest.mark.parametrize(
    ("raw", "param", "said"),
    [
        (b'{"model": ["m"]}', "model", "model: expected str | null, got array"),
        (b'{"stream": 1}', "stream", "stream: expected bool | null, got int"),
        (b"3", None, "the body: expected object, got int"),
        (b'{"model": "m"', None, "not valid JSON"),
        (b"\xff\xfe", None, "not valid JSON"),
        (b'{"model": "\xff"}', None, "not valid"),
        (b"[" * 100_000, None, "the body"),
        (b'{"x": ' + b"[" * 100_000, None, "not valid JSON"),
    ],
)
def test_a_wrong_body_is_refused_in_words(raw, param, said) -> None:
    with pytest.raises(InvalidRequest) as refused:
        routing_fields(raw)
    assert refused.value.param == param
    assert said in refused.value.message
