"""The body is read within limits; only the routing fields are decoded."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from mamba_gateway.body import ClientGone, peek, read_body
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


async def test_a_declared_length_over_the_limit_is_refused_before_reading() -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError("read")

    with pytest.raises(BodyTooLarge, match="101"):
        await read_body([(b"content-length", b"101")], receive, 100, 1)


async def test_a_body_that_grows_over_the_limit_is_refused_at_that_point() -> None:
    with pytest.raises(BodyTooLarge):
        await read_body([], arriving(part(b"ab"), part(b"cd")), 3, 1)


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
    found = peek(b'{"prompt": [1,2], "stream": true, "model": "m", "tools": [{"a": {"model": 3}}]}')
    assert (found.model, found.stream) == ("m", True)
    assert (peek(b"{}").model, peek(b'{"model": null}').stream) == (None, None)


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
        peek(raw)
    assert refused.value.param == param
    assert said in refused.value.message
