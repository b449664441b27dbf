"""Reads `/metrics` of pods over few connections; silence and nonsense are None."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import aiohttp

from mamba_api import names
from mamba_api.names import authority

ReadMetrics = Callable[[str], Awaitable[str | None]]
"""From the address of a pod to the text of its `/metrics`; None when it does not answer in time."""

CONNECTIONS = 32
"""At once, to all pods of all deployments."""
TIMEOUT = aiohttp.ClientTimeout(total=4)
MOST_BYTES = 4 << 20
"""Of one answer."""


class MetricsReader:
    """Use as an async context manager."""

    def __init__(self, port: int = names.HTTP_PORT) -> None:
        self._port = port
        self._session: aiohttp.ClientSession | None = None
        self._places = asyncio.Semaphore(CONNECTIONS)

    async def __aenter__(self) -> Self:
        # Pods come and go: a kept connection would mostly be one to a pod that is gone.
        self._session = aiohttp.ClientSession(
            timeout=TIMEOUT, connector=aiohttp.TCPConnector(limit=CONNECTIONS, force_close=True)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def read(self, address: str) -> str | None:
        """The text of one pod."""
        assert self._session is not None
        url = f"http://{authority(address, self._port)}/metrics"
        try:
            # Waiting for a place is no silence of the pod: the time-out begins after it.
            async with self._places, self._session.get(url) as answer:
                if answer.status != 200:
                    return None
                body = bytearray()
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > MOST_BYTES:
                        return None
                return body.decode(errors="replace")
        except (TimeoutError, aiohttp.ClientError, OSError):
            return None
