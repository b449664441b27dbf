"""Answers as ASGI messages, their headers between engine and gateway, and the watch for a client that left.

For endpoints that speak ASGI themselves, because every token of a stream passes here. A header tells a full
engine from a client above a limit of its own, both with a 429.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Protocol

from starlette.types import Receive, Send

from mamba_edge.connection.direct_exchange import DirectExchange
from mamba_edge.error_forms import ErrorForm
from mamba_edge.errors import ApiError
from mamba_edge.exchange.request_body import ClientGone, RawHeaders, find_header

LIMIT_HEADER = b"x-mambaserve-limit"
"""Header of an engine's 429 that names the client's limit that is reached. An engine that takes no more
requests of anybody sends its 429 without the header."""
FORMS = "forms"
"""Value of `LIMIT_HEADER` for the limit on a client's answer formats that wait to be checked."""
_TOO_MANY = 429


def is_full(status: int, headers: RawHeaders) -> bool:
    """Return whether the answer says that the engine takes no more requests."""
    return status == _TOO_MANY and not find_header(headers, LIMIT_HEADER)


def is_over_own_limit(status: int, headers: RawHeaders) -> bool:
    """Return whether the answer says that this client exceeds a limit, which other engines have, too."""
    return status == _TOO_MANY and bool(find_header(headers, LIMIT_HEADER))


USAGE_HEADER = b"x-mambaserve-usage"
"""Request header: with the value 1 the stream ends with the usage in a comment, whatever the client itself
asked for. A gateway counts by it."""
MOST_AT_ONCE = 1 << 20
"""Bytes of an answer that are handed to the connection in one piece at most."""
_JSON = (b"content-type", b"application/json")
EVENT_STREAM = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""Headers of a response of server-sent events."""


async def send_json(
    send: Send, body: bytes, status: int = 200, headers: dict[str, str] | None = None
) -> None:
    """Send one JSON answer."""
    pairs = [_JSON, (b"content-length", b"%d" % len(body))]
    pairs += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


async def send_json_pieces(send: Send, pieces: list[bytes], headers: RawHeaders = ()) -> None:
    """Send one long JSON answer whose text is the joined `pieces`; each of them is freed as it is sent.

    `headers` are added to the content type and length.
    """
    length = sum(map(len, pieces))
    pairs = [_JSON, (b"content-length", b"%d" % length), *headers]
    await send({"type": "http.response.start", "status": 200, "headers": pairs})
    pieces.reverse()
    while pieces:
        body = pieces.pop()
        for start in range(0, max(len(body), 1), MOST_AT_ONCE):
            part = body[start : start + MOST_AT_ONCE]
            more = bool(pieces) or start + MOST_AT_ONCE < len(body)
            await send({"type": "http.response.body", "body": part, "more_body": more})


async def send_error(send: Send, error: ApiError, form: ErrorForm, request_id: str) -> None:
    """Send the envelope of an error in the form `form`, with the status and the headers of the error."""
    await send_json(send, form.envelope(error, request_id), error.status, error.headers())


class Writer(Protocol):
    """Writes parts of an answer to a client at once, without the messages of ASGI."""

    def write(self, part: bytes) -> bool:
        """Write a part of the body at once, and return whether it was written.

        If not, nothing was written, and the caller has to send the part as a message.
        """


async def send_events(
    send: Send,
    events: AsyncGenerator[bytes],
    direct: Writer | None = None,
    headers: RawHeaders = (),
) -> None:
    """Send server-sent events. The headers wait for the first event, so that an earlier error has its status.

    Later events are written through `direct`, where there is one and the client keeps up.
    """
    started = False
    async with contextlib.aclosing(events):
        async for event in events:
            if not started:
                started = True
                pairs = [*EVENT_STREAM, *headers]
                await send({"type": "http.response.start", "status": 200, "headers": pairs})
            elif direct is not None and direct.write(event):
                continue
            await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


class DisconnectWatch:
    """A block in which `leave` is called if the client leaves. The body has to be read before the block.

    `direct` is the request's direct exchange, through which our server calls `leave`. It is None at another
    server; a task then waits for the message `http.disconnect` of `receive` and calls `leave`.
    """

    __slots__ = ("_direct", "_leave", "_receive", "_task")

    def __init__(self, direct: DirectExchange | None, receive: Receive, leave: Callable[[], None]) -> None:
        self._direct = direct
        self._receive, self._leave = receive, leave
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        if self._direct is not None:
            self._direct.on_disconnect(self._leave)
        else:
            self._task = asyncio.create_task(self._wait_for_disconnect())

    def __exit__(self, *_: object) -> None:
        if self._direct is not None:
            self._direct.on_disconnect(None)
        elif self._task is not None:
            self._task.cancel()

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None] | asyncio.Task[None]) -> None:
    """Run `work`, and cancel it and raise ClientGone as soon as the client leaves.

    The caller may hand over a task and cancel it in the meantime, which raises CancelledError.
    """

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        task.result()
    finally:
        for job in (task, watch):
            job.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)
