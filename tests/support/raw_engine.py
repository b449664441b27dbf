"""An engine that speaks raw bytes over TCP, for what no HTTP server would say."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Self

Speech = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
KEPT = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
TURNS = 8
"""Turns of the loop within which an accepted request is served."""
OK = KEPT.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


class RawEngine:
    """A TCP server that reads a request and then speaks as the test says."""

    def __init__(self, speech: Speech) -> None:
        self.speech = speech
        self.requests: list[tuple[bytes, bytes]] = []
        self.left = asyncio.Event()
        """The gateway closed a connection while the engine still spoke."""
        self.url = ""
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def refuse(self) -> None:
        """Accept no further connection; those that there are stay as they are."""
        self._server.close()

    async def __aexit__(self, *_: object) -> None:
        # A connection that was accepted just now has no writer yet and nobody else would close it: no more of
        # them, and a moment for those that are here.
        for listener in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self._server.close()
        for writer in self._writers:
            # A transport that has closed in this very turn has no loop any more to abort it in.
            with contextlib.suppress(AttributeError):
                writer.transport.abort()
        await asyncio.sleep(0)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (int(line.split(b":")[1]) for line in head.lower().splitlines() if b"content-length" in line),
                0,
            )
            self.requests.append((head, await reader.readexactly(length)))
            gone = asyncio.create_task(reader.read(1))
            speech = asyncio.create_task(self.speech(reader, writer))
            await asyncio.wait((gone, speech), return_when=asyncio.FIRST_COMPLETED)
            if not speech.done():
                self.left.set()
            for task in (gone, speech):
                task.cancel()
            await asyncio.gather(gone, speech, return_exceptions=True)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def says(*parts: bytes, hold: bool = False) -> Speech:
    """Write the parts one after the other, then close; with `hold` stay silent instead."""

    async def speech(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        if hold:
            await asyncio.Event().wait()

    return speech
