"""A port in front of a server of the test: silent as a network that is cut, or slow, and it can speak TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Self


class FaultyPort:
    """Passes on what comes to 127.0.0.1:`port` to `target`, another port of this machine."""

    def __init__(self, target: int, tls: ssl.SSLContext | None = None) -> None:
        self.target, self._tls = target, tls
        self.port = 0
        self.cut = False
        """Nothing gets through, either way, and no connection is closed for it."""
        self.delay = 0.0
        """Seconds that whatever comes is kept, each way."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client's handshake may end after the port was closed, when nobody waits for its task any more.
        if self._closed:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                remote, back = await asyncio.open_connection("127.0.0.1", self.target)
                try:
                    ways = (self._pass(reader, back), self._pass(remote, writer))
                    await asyncio.gather(*ways)
                finally:
                    back.transport.abort()
        finally:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while raw := await reader.read(1 << 16):
            await asyncio.sleep(self.delay)
            if not self.cut:
                writer.write(raw)
                await writer.drain()
        writer.close()
