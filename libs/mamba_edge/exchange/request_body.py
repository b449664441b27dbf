"""The bytes of a request's body, within limits of size and time that hold while it arrives.

Used by every endpoint that takes a body; what the bytes mean is the endpoint's business.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence

from starlette.types import Receive

from mamba_edge.connection.direct_exchange import DirectExchange
from mamba_edge.errors import BodyTooLarge, RequestTimeout, TooManyBodies, UnsupportedMediaType
from mamba_edge.exchange.body_budget import BodyBudget, BodyShare

RawHeaders = Iterable[tuple[bytes, bytes]]

BODY_SECONDS = 60.0
"""How long a body may take to arrive where nothing else is set."""
DISCARD_SECONDS = 2.0
"""Longest time a refused body is read on and dropped."""


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


def find_header(headers: RawHeaders, name: bytes) -> bytes | None:
    """The first value of a header, or None; `name` in lower case."""
    size = len(name)
    for key, value in headers:
        # Most names have another length: asking for that costs less than a copy in lower case.
        if len(key) == size and key.lower() == name:
            return value
    return None


def first_values(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The first value of each header, for who asks for several of them; names in lower case, as ASGI has
    them."""
    return dict(reversed(headers))


def require_plain(encoding: str | None) -> None:
    """Raise UnsupportedMediaType if a Content-Encoding says that the body is coded, for example with gzip."""
    if encoding is not None and encoding.strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType(
            f"a body with Content-Encoding {encoding[:80]!r} is not read; send it plain"
        )


def whole_body(limit: int, share: BodyShare, direct: DirectExchange) -> bytes | None:
    """The body, where all of it has come and may be taken; else None, and it is for `read_body`."""
    whole = direct.body(min(limit, share.room))
    if whole is not None:
        share.take(len(whole))
    return whole


async def read_body(
    headers: RawHeaders,
    receive: Receive,
    limit: int,
    seconds: float = BODY_SECONDS,
    *,
    discard: int = 0,
    share: BodyShare | None = None,
    direct: DirectExchange | None = None,
) -> bytes:
    """The whole body, at most `limit` bytes within `seconds`; its bytes are taken from `share`.

    A body that is too large is refused as soon as that is known. With `discard`, so many more bytes of it are
    read and dropped at most, since a client that still writes would lose the answer to the closed connection;
    without, the server reads on and the connection stays usable. `direct`: of the request, where our server
    has it: what has come by now is not waited for.

    Raises BodyTooLarge, TooManyBodies, RequestTimeout, ClientGone.
    """
    share = share or BodyShare(BodyBudget())
    if direct is not None and (whole := whole_body(limit, share, direct)) is not None:
        return whole
    announced = _announced(headers)
    try:
        if announced > limit:
            raise BodyTooLarge(f"the body has {announced} bytes; at most {limit} are accepted")
        share.check(announced)
    except (BodyTooLarge, TooManyBodies) as refusal:
        refusal.close = discard > 0
        if discard and find_header(headers, b"expect") is None:
            await _drop(receive, discard)
        raise
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                more = message.get("more_body", False)
                part = message.get("body", b"")
                try:
                    if len(body) + len(part) > limit:
                        raise BodyTooLarge(f"the body has more than {limit} bytes; no more are accepted")
                    share.take(len(part))
                except (BodyTooLarge, TooManyBodies) as refusal:
                    refusal.close = discard > 0
                    body.clear()
                    share.release()
                    if discard and more:
                        await _drop(receive, discard)
                    raise
                body += part
                if not more:
                    return bytes(body)
    except TimeoutError as error:
        raise RequestTimeout(f"the body did not arrive within {seconds:g} s") from error


def _announced(headers: RawHeaders) -> int:
    declared = find_header(headers, b"content-length")
    return int(declared[:18]) if declared is not None and declared.isdigit() else 0


async def _drop(receive: Receive, at_most: int) -> None:
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while size < at_most:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                size += len(message.get("body", b""))
