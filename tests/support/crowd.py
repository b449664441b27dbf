"""Many clients at once that do no good: idle, slow, senseless. What an honest one gets beside them."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Self
from urllib.parse import urlsplit

from eventually import PATIENCE

PROBES = ("/livez", "/readyz", "/metrics")
TEXT = "/v1/completions"
AT_ONCE = 200
"""Connections that are opened at the same time."""
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
Kind = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ask once and stay."""
    writer.write(GET)
    await reader.readuntil(b"}")


async def slow_heads(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begin a head."""
    writer.write(HEAD)


async def slow_bodies(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begin a body."""
    writer.write(HEAD + b"Content-Length: 500\r\n\r\n{")


async def senseless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send what is no HTTP."""
    writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")


async def unread_offers(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ask many times, each time with an offer of another protocol, and read nothing."""
    offer = GET[:-2] + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n"
    writer.write(offer * 50)


class Crowd:
    """Connections to one server that stay open until the block ends, or the server closes them."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def come(self, kind: Kind, count: int) -> None:
        """Open so many connections and do on each what its kind does."""
        places = asyncio.Semaphore(AT_ONCE)

        async def one() -> None:
            async with places:
                reader, writer = await asyncio.open_connection(self._host, self._port, limit=1 << 12)
                self._writers.append(writer)
                # A server may close any of them.
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    await kind(reader, writer)

        await asyncio.gather(*(one() for _ in range(count)))


async def ask(url: str, path: str) -> int:
    """Send an honest request on a connection of its own, read the answer whole, and return its status."""
    parts = urlsplit(url)
    body = json.dumps({"prompt": "x", "max_tokens": 2}).encode() if path == TEXT else b""
    head = HEAD if body else b"GET %b HTTP/1.1\r\nHost: x\r\n" % path.encode()
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(parts.hostname or "", parts.port or 0)
        try:
            writer.write(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            answer = await reader.read()
        finally:
            writer.close()
    assert answer.startswith(b"HTTP/1.1 "), answer[:80]
    return int(answer[9:12])
