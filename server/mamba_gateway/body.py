"""The request body: read within limits of size and time, and the few fields routing needs.

The rest of the body is the engine's business; it is passed on as the bytes that came.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from mamba_gateway.errors import BodyTooLarge, BodyTooSlow, InvalidRequest
from mamba_gateway.headers import RawHeaders, find

DISCARDED_LIMITS = 4
"""How many times the limit of a body that is too large is read and dropped, at most."""
DISCARD_SECONDS = 2.0

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGone(Exception):
    """The client closed the connection: nobody is left to answer."""


class RoutingFields(msgspec.Struct, frozen=True):
    """The fields that are read here; everything else is skipped, not decoded."""

    model: str | None = None
    stream: bool | None = None


async def read_body(headers: RawHeaders, receive: Receive, limit: int, timeout: float) -> bytes:
    """The whole body, at most `limit` bytes within `timeout` seconds.

    Raises `BodyTooLarge` (at once when the client says the length), `BodyTooSlow`, `ClientGone`.
    """
    declared = find(headers, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit:
        if find(headers, b"expect") is None:
            await _discard(receive, DISCARDED_LIMITS * limit)
        raise BodyTooLarge(f"the body has {int(declared)} bytes; at most {limit} are taken")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                more = message.get("more_body", False)
                size += len(part)
                if size > limit:
                    if more:
                        await _discard(receive, DISCARDED_LIMITS * limit)
                    raise BodyTooLarge(f"the body has more than {limit} bytes, the most that is taken")
                parts.append(part)
    except TimeoutError:
        raise BodyTooSlow(f"the body did not arrive within {timeout:g} s") from None
    return b"".join(parts)


async def _discard(receive: Receive, at_most: int) -> None:
    """Read on and drop: a connection closed on a client that still writes loses it the answer."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while size < at_most:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                size += len(message.get("body", b""))


def routing_fields(body: bytes) -> RoutingFields:
    """Read the routing fields. Raises `InvalidRequest`, which names the field or where the JSON breaks."""
    try:
        return msgspec.json.decode(body, type=RoutingFields)
    except msgspec.ValidationError as error:
        said, _, where = str(error).replace("`", "").partition(" - at $.")
        message = (
            f"{where}: {said[0].lower()}{said[1:]}" if where else f"the body: {said[0].lower()}{said[1:]}"
        )
        raise InvalidRequest(message, param=where or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
