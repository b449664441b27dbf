"""Reads `/metrics` of pods over few connections; a missing or unusable answer is None."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import aiohttp

from mamba_api import names
from mamba_api.names import authority

ReadMetrics = Callable[[str], Awaitable[str | None]]
"""Function from the address of a pod to the text of its `/metrics`; None when it does not answer in time."""

CONNECTIONS = 32
"""Largest number of connections at the same time, to all pods of all deployments."""
TIMEOUT = aiohttp.ClientTimeout(total=4)
MAX_ANSWER_BYTES = 4 << 20
"""Largest size of one answer."""


class MetricsReader:
    """Reads the `/metrics` of pods over HTTP; used as an async context manager."""

    def __init__(self, port: int = names.HTTP_PORT) -> None:
        self._port = port
        self._session: aiohttp.ClientSession | None = None
        self._places = asyncio.Semaphore(CONNECTIONS)

    async def __aenter__(self) -> Self:
        # Pods come and go: most kept connections would lead to pods that no longer exist.
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
        """Return the text of a pod's `/metrics`; None without a usable answer.

        That is so if the pod cannot be reached, does not answer in time or with status 200, or sends more
        than `MAX_ANSWER_BYTES`.
        """
        assert self._session is not None
        url = f"http://{authority(address, self._port)}/metrics"
        try:
            # The time-out begins after the wait for a free connection, which is not the pod's fault.
            async with self._places, self._session.get(url) as answer:
                if answer.status != 200:
                    return None
                body = bytearray()
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        return None
                return body.decode(errors="replace")
        except (TimeoutError, aiohttp.ClientError, OSError):
            return None
