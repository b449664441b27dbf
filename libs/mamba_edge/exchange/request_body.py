"""Reads the bytes of a request's body, within limits of size and time that hold while it arrives.

Used by every endpoint that takes a body; the endpoint interprets the bytes. `BodyBudget` limits the bytes of
bodies that one process holds at once: the request middleware gives each request a share of the budget and
takes it back at the request's end, and the reader takes from the share as the bytes arrive. A body that is
announced and never sent takes nothing.
"""

import asyncio
import contextlib
import math
from collections.abc import Iterable, Sequence

from starlette.types import Receive

from mamba_edge.connection.direct_exchange import DirectExchange
from mamba_edge.errors import ApiError, BodyTooLarge, RequestTimeout, TooManyBodies, UnsupportedMediaType


class BodyBudget:
    """Limits the bytes of request bodies that one process holds at once.

    `limit` is that number; None = no limit.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self.held = 0
        """Bytes of bodies that are held now."""

    @classmethod
    def with_room_for_one(cls, limit: int, largest: int) -> "BodyBudget":
        """Return a budget of at most `limit` bytes that fits at least one body of the `largest` size."""
        return cls(max(limit, largest))

    @property
    def room(self) -> float:
        """Number of bytes that are left; infinity without a limit."""
        return math.inf if self._limit is None else self._limit - self.held

    def check(self, size: int) -> None:
        """Raise TooManyBodies unless `size` more bytes fit."""
        if self._limit is not None and self.held + size > self._limit:
            raise TooManyBodies(
                f"the requests under way hold {self.held} bytes of bodies; with {size} more there would be "
                f"over {self._limit}; try again later"
            )


class BodyShare:
    """Counts the bytes that one request's body takes from the budget, and gives them back."""

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size = 0

    @property
    def room(self) -> float:
        """Number of bytes that the request may take now."""
        return self._budget.room

    def check(self, size: int) -> None:
        """Raise TooManyBodies unless a body of `size` bytes would fit now."""
        self._budget.check(size)

    def take(self, size: int) -> None:
        """Take `size` bytes that arrived. Raises TooManyBodies."""
        self._budget.check(size)
        self._budget.held += size
        self._size += size

    def release(self) -> None:
        """Give all bytes of the request back to the budget."""
        self._budget.held -= self._size
        self._size = 0


RawHeaders = Iterable[tuple[bytes, bytes]]

BODY_SECONDS = 60.0
"""Default limit on the seconds in which a body arrives."""
DISCARD_SECONDS = 2.0
"""Longest time for which a refused body is read and dropped, in seconds."""


class ClientGone(Exception):
    """The client closed the connection, so that there is nobody to answer."""


def find_header(headers: RawHeaders, name: bytes) -> bytes | None:
    """Return the first value of the header `name`, which is in lower case; None if it is missing."""
    size = len(name)
    for key, value in headers:
        # Most names have another length: comparing lengths costs less than a copy in lower case.
        if len(key) == size and key.lower() == name:
            return value
    return None


def first_values(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the first value of each header, by name in lower case, as ASGI has the names."""
    return dict(reversed(headers))


def require_plain(encoding: str | None) -> None:
    """Raise UnsupportedMediaType if a Content-Encoding says that the body is coded, for example with gzip."""
    if encoding is not None and encoding.strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType(
            f"a body with Content-Encoding {encoding[:80]!r} is not read; send it plain"
        )


def whole_body(limit: int, share: BodyShare, direct: DirectExchange) -> bytes | None:
    """Return the body if all of it has arrived and fits into `limit` and `share`.

    The result is None otherwise, and the caller has to call `read_body`.
    """
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
    """Read and return the whole body, at most `limit` bytes within `seconds`.

    A body that is too large is refused as soon as that is known. A client that still writes would lose the
    answer if the connection were closed at once, so up to `discard` further bytes are read and dropped first.
    With `discard` 0, the server reads on after the answer, and the connection stays usable.

    Args:
        headers: the request's headers.
        receive: the channel of ASGI.
        limit: largest size in bytes.
        seconds: longest time until the body is complete.
        discard: bytes of a refused body that are read and dropped at most.
        share: the share of the process's budget from which the bytes are taken.
        direct: the request's direct exchange, which returns a body that has arrived already without waiting;
            None at a server that has none.

    Raises:
        BodyTooLarge: the body exceeds `limit`.
        TooManyBodies: the budget is used up.
        RequestTimeout: the body did not arrive within `seconds`.
        ClientGone: the client left.
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
        await _refuse(refusal, receive, discard, more=find_header(headers, b"expect") is None)
        raise
    try:
        async with asyncio.timeout(seconds):
            return await _all_parts(receive, limit, share, discard)
    except TimeoutError as error:
        raise RequestTimeout(f"the body did not arrive within {seconds:g} s") from error


def _announced(headers: RawHeaders) -> int:
    declared = find_header(headers, b"content-length")
    return int(declared[:18]) if declared is not None and declared.isdigit() else 0


async def _all_parts(receive: Receive, limit: int, share: BodyShare, discard: int) -> bytes:
    body = bytearray()
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
            body.clear()
            share.release()
            await _refuse(refusal, receive, discard, more=more)
            raise
        body += part
        if not more:
            return bytes(body)


async def _refuse(refusal: ApiError, receive: Receive, discard: int, *, more: bool) -> None:
    """Prepare the refusal of a body. `more` says whether the client still writes.

    With `discard` above 0, the connection has to close after the refusal, and up to `discard` bytes that the
    client still writes are read and dropped before that.
    """
    refusal.close = discard > 0
    if discard and more:
        await _discard(receive, discard)


async def _discard(receive: Receive, at_most: int) -> None:
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while size < at_most:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                size += len(message.get("body", b""))
