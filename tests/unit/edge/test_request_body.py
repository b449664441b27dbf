"""Bodies to models: locations of errors, and the reading of the bytes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import Request

from mamba_server.api.errors import BodyTimeout, BodyTooLarge, InvalidRequest
from mamba_server.api.request_body import ClientGone, param_of, parse_json_object, read_body


@pytest.mark.parametrize(
    ("loc", "param"),
    [
        ((), None),
        (("temperature",), "temperature"),
        (("prompt", "str"), "prompt"),
        (("prompt", "list[list[constrained-int]]", 1, 0), "prompt[1][0]"),
        (("messages", 2, "content", "list[ContentPart]", 0, "type"), "messages[2].content[0].type"),
        (("stop", "list[constrained-str]", 3), "stop[3]"),
        (("stream_options", "include_usage"), "stream_options.include_usage"),
    ],
)
def test_locations_read_like_the_request(loc: tuple[int | str, ...], param: str | None) -> None:
    assert param_of(loc) == param


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'{"a": NaN}', b'{"a": "\xff"}', b"\x00"])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_json_object(body)
    assert caught.value.code == "invalid_json"


def request() -> Request:
    return Request({"type": "http", "headers": [(b"content-type", b"application/json")]})


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
    body = await read_body(request(), receiver(part(b"ab"), part(b""), part(b"c", more=False)), 3)
    assert body == b"abc"


async def test_a_body_is_refused_as_soon_as_it_is_too_large() -> None:
    with pytest.raises(BodyTooLarge, match="more than 3 bytes"):
        await read_body(request(), receiver(part(b"ab"), part(b"cd")), 3)


async def test_a_body_that_does_not_come_is_given_up() -> None:
    with pytest.raises(BodyTimeout, match=r"0\.05 s"):
        await read_body(request(), receiver(part(b"ab")), 10, seconds=0.05)


async def test_a_client_that_leaves_is_not_waited_for() -> None:
    with pytest.raises(ClientGone):
        await read_body(request(), receiver(part(b"ab"), {"type": "http.disconnect"}), 10)
